#!/usr/bin/env python3
"""Network namespaces with links, addresses, routes, rules, neighbours, settings and filters, which a restore makes again.

All of it happens in a network namespace of the test's own, which is what is outside.
"""
import ctypes
import os
import re
import signal
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from harness import Failure, Skip, become_subreaper, ckpt, exists_unreaped, read_text, run_cases, wait_until

# A bridge with a port that has settings of its own, a veth with both ends inside, and on it what addresses and routes there are.
INSIDE = """
ip link set lo up
ip link add br0 type bridge forward_delay 700 ageing_time 12000
ip link add index 40 name left type veth peer name right
ip link set left master br0 alias 'to the right'
ip link set left type bridge_slave cost 7 hairpin on isolated on
ip link set right address 02:00:00:00:00:07 mtu 1400 txqueuelen 77
ip link add link right name mac0 type macvlan mode bridge
ip addr add 10.1.2.3/24 dev right
ip addr add 10.1.2.4/24 dev right
ip addr add 10.1.2.9/24 dev right valid_lft 5000 preferred_lft 4000
ip addr add 10.7.0.1 peer 10.7.0.2 dev mac0
ip addr add 10.5.0.1/32 dev lo
ip addr add fd00::5/64 dev right nodad
ip link set br0 up
ip link set left up
ip link set right up
ip link set mac0 up promisc on
ip route add 10.9.0.0/16 via 10.1.2.1 metric 5 mtu 1300
ip route add default via 10.9.0.1 dev right onlink
ip route add 10.11.0.0/16 nexthop via 10.1.2.5 weight 2 nexthop via 10.7.0.2
ip route add blackhole 10.12.0.0/16
ip route del 10.1.2.0/24 dev right proto kernel src 10.1.2.3
ip route add 10.1.2.0/24 dev right metric 9
ip -6 route add fd01::/64 via fd00::1 dev right
ip rule add pref 99 from 10.1.2.3 lookup 7
ip rule add pref 0 fwmark 3 lookup 9
ip rule del pref 32767
ip route add default via 10.1.2.1 table 7
ip neigh add 10.1.2.1 lladdr 02:00:00:00:00:01 dev right nud permanent
ip neigh add proxy 10.1.2.200 dev right
echo 1 > /proc/sys/net/ipv4/ip_forward
echo 2 > /proc/sys/net/ipv4/conf/right/rp_filter
echo 0 > /proc/sys/net/ipv6/conf/right/accept_ra
echo 55 > /proc/sys/net/ipv4/neigh/right/gc_stale_time
"""
FILTERS = """
table inet guard {
  set bad { type ipv4_addr; flags timeout; elements = { 10.0.0.1, 10.0.0.2 timeout 1h } }
  counter seen { packets 12 bytes 345 }
  chain input {
    type filter hook input priority filter; policy accept;
    iifname "right" ip saddr @bad counter name seen drop comment "not these; include them"
    tcp dport { 22, 80 } ct state new accept
  }
}
table ip nat {
  chain out {
    type nat hook postrouting priority srcnat;
    oifname "right" masquerade
  }
}
"""
ASKED = ("link show", "-d link show", "addr show", "route show table all", "-6 route show table all", "rule show", "-6 rule show", "neigh show nud permanent", "neigh show proxy")


def nftables(*commands):
    """What libnftables answers: the program of that name need not be there."""
    library = ctypes.CDLL("libnftables.so.1")
    library.nft_ctx_new.restype = ctypes.c_void_p
    library.nft_ctx_get_output_buffer.restype = ctypes.c_char_p
    context = ctypes.c_void_p(library.nft_ctx_new(0))
    library.nft_ctx_buffer_output(context)
    for command in commands:
        if library.nft_run_cmd_from_buffer(context, command.encode()) != 0:
            raise Skip("no nftables here")
    return library.nft_ctx_get_output_buffer(context).decode()


def in_network_of(pid, work):
    """What `work` returns in a process that is in the network namespace of another one."""
    ends = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with open(f"/proc/{pid}/ns/net", encoding="ascii") as namespace:
                ctypes.CDLL(None).setns(namespace.fileno(), 0)
            with os.fdopen(ends[1], "w", encoding="utf-8") as stream:
                stream.write(work())
            code = 0
        except Skip:
            code = 77
        finally:
            os._exit(code)
    os.close(ends[1])
    with os.fdopen(ends[0], encoding="utf-8") as stream:
        said = stream.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != 0:
        raise Skip("no nftables here") if code == 77 else Failure("the network namespace cannot be looked at")
    return said


def state_of(pid):
    """All that the tools tell of a network namespace, but for what cannot be the same: times, and how addresses came about."""
    def ask():
        said = "".join(f"# {what}\n" + subprocess.run(["ip", *what.split()], capture_output=True, text=True, check=True).stdout for what in ASKED)
        return said + nftables("list ruleset") + subprocess.run(
            "cd /proc/sys/net; grep -r . ipv4/conf ipv6/conf ipv4/neigh ipv4/ip_forward 2>/dev/null | grep -v stable_secret | sort", shell=True, capture_output=True, text=True, check=True).stdout
    said = in_network_of(pid, ask)
    for pattern in (r"valid_lft \S+ preferred_lft \S+", r"\w+_timer +\S+", r" nodad| tentative", r"expires \w+"):
        said = re.sub(pattern, "", said)
    # Of IPv6 the kernel makes these for addresses, some of them a moment later.
    return re.sub(r".* proto kernel .* pref medium\n", "", said)


def compare(before, after):
    if before == after:
        return
    one, other = before.splitlines(), after.splitlines()
    raise Failure("the network namespace is another one:\n" + "\n".join([f"- {line}" for line in one if line not in other] + [f"+ {line}" for line in other if line not in one]))


class Container:
    """Process 1 of a pid namespace, in a network namespace that `setup` has made."""

    def __init__(self, place, name, setup, command=("sleep", "1000"), wire=None):
        self.image, self.pidfile = os.path.join(place.path, name), os.path.join(place.path, "pid")
        ready = os.path.join(place.path, name + "-ready")
        script = setup + '\ntouch "$0"; exec "$@" 2> /dev/null'
        self.popen = subprocess.Popen(["unshare", "--fork", "--pid", "--net", "sh", "-ec", script, ready, *command],
                                      stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if wire:
            wait_until(lambda: self.popen.poll() is not None or self.children(), "process 1 is there")
            wire(int(self.children()[0]))
        wait_until(lambda: self.popen.poll() is not None or os.path.exists(ready), "the namespace is set up")
        if self.popen.poll() is not None:
            raise Skip(f"this kernel cannot make it: {self.popen.stderr.read().strip()}")
        self.pid = int(self.children()[0])

    def children(self):
        return read_text(f"/proc/{self.popen.pid}/task/{self.popen.pid}/children").split()

    def dump(self, *flags):
        return ckpt("dump", "-p", self.pid, "-f", self.image, *flags)

    def restore(self, *flags):
        wait_until(lambda: not exists_unreaped(self.pid), "it has ended")
        ckpt("restore", "-f", self.image, "-d", "--pidfile", self.pidfile, *flags).expect(0)
        self.pid = int(read_text(self.pidfile))

    def end(self):
        self.popen.kill()
        self.popen.wait()
        if exists_unreaped(self.pid):
            os.kill(self.pid, signal.SIGKILL)


def made_again(place):
    """Everything at once, twice: what is made is told as what it was made from."""
    one = Container(place, "inside", INSIDE)
    try:
        in_network_of(one.pid, lambda: nftables(FILTERS))
        before = state_of(one.pid)
        ckpt("check", "-p", one.pid).expect(0)
        for _ in range(2):
            one.dump().expect(0)
            ckpt("restore", "-f", one.image, "--dry-run").expect(0)
            one.restore()
            compare(before, state_of(one.pid))
            one.image += "-again"
    finally:
        one.end()


SERVER = """
import socket
server = socket.create_server(("10.231.0.2", 4711))
peer = server.accept()[0]
while True:
    peer.sendall(peer.recv(100).upper())
"""


def wired(place, name, command):
    """With one end of a veth, whose other end is a port of a bridge outside."""
    def wire(pid):
        subprocess.run(f"ip link add port0 type veth peer name eth0 netns {pid}; ip link set port0 up master outer", shell=True, check=True)
    if subprocess.run(["ip", "link", "show", "outer"], capture_output=True, check=False).returncode != 0:
        subprocess.run("ip link set lo up; ip link add outer type bridge; ip addr add 10.231.0.1/24 dev outer; ip link set outer up", shell=True, check=True)
    return Container(place, name, "while ! ip link set eth0 up 2> /dev/null; do sleep 0.05; done; ip addr add 10.231.0.2/24 dev eth0; ip route add default via 10.231.0.1", command, wire)


def leads_outside(place):
    """A veth into a bridge outside: its other end is what restore is told, and a connection through it goes on."""
    one = wired(place, "veth", (sys.executable, "-c", SERVER))
    try:
        wait_until(lambda: ":1267" in read_text(f"/proc/{one.pid}/net/tcp"), "the server listens")
        client = socket.create_connection(("10.231.0.2", 4711), timeout=20)

        def echo(word):
            client.sendall(word.lower())
            if client.recv(100) != word:
                raise Failure("the connection does not go on")
        echo(b"BEFORE")
        said = ckpt("check", "-p", one.pid, "--tcp-established").expect(0)
        if "--veth eth0=NAME[@BRIDGE]" not in said.out + said.err:
            raise Failure(f"check does not tell of the other end: {said.out}{said.err}")
        one.dump("--tcp-established").expect(0, "--veth eth0=NAME")
        wait_until(lambda: not exists_unreaped(one.pid), "it has ended")
        ckpt("restore", "-f", one.image, "-d").expect(6, "interface eth0, a veth", "--join-ns net:")
        ckpt("restore", "-f", one.image, "-d", "--veth", "eth0").expect(2)
        ckpt("restore", "-f", one.image, "-d", "--veth", "eth0=a/b").expect(2)
        ckpt("restore", "-f", one.image, "-d", "--veth", "eth7=port1").expect(6, "interface eth0")
        ckpt("restore", "-f", one.image, "-d", "--veth", "eth0=port1", "--veth", "eth7=port2").expect(2, "--veth eth7")
        ckpt("restore", "-f", one.image, "-d", "--veth", "eth0=outer").expect(7, "outer")
        ckpt("restore", "-f", one.image, "-d", "--veth", "eth0=port1@nowhere").expect(4, "nowhere")
        ckpt("restore", "-f", one.image, "--dry-run", "--veth", "eth0=port1@outer").expect(0)
        if "port1" in subprocess.run(["ip", "link"], capture_output=True, text=True, check=True).stdout:
            raise Failure("a dry run makes something outside")
        one.restore("--veth", "eth0=port1@outer")
        if "master outer" not in subprocess.run(["ip", "link", "show", "port1"], capture_output=True, text=True, check=True).stdout:
            raise Failure("the other end is no port of the bridge")
        echo(b"AFTER")
    finally:
        one.end()


def as_criu(place):
    """By criu's names of what is outside, and with a network that whoever restores it fills."""
    one = wired(place, "criu", ("sleep", "1000"))

    def again(name, dump, restore):
        folder = place.folder(name)
        ckpt("criu", "dump", "-t", one.pid, "-D", folder, "-o", "log", *dump).expect(0)
        wait_until(lambda: not exists_unreaped(one.pid), "it has ended")
        if os.path.exists(one.pidfile):
            os.unlink(one.pidfile)
        ckpt("criu", "restore", "-D", folder, "-d", "--pidfile", one.pidfile, *restore).expect(0)
        one.pid = int(read_text(one.pidfile))
        return in_network_of(one.pid, lambda: subprocess.run(["ip", "-o", "addr"], capture_output=True, text=True, check=True).stdout)
    try:
        if "10.231.0.2/24" not in again("external", (), ("--external", "veth[eth0]:port2@outer")):
            raise Failure("the veth has not been made again")
        if "10.231.0.2/24" not in again("pair", (), ("--veth-pair", "eth0=port3")):
            raise Failure("the veth has not been made again")
        if "eth0" in again("emptied", (), ("--empty-ns", "net")):
            raise Failure("the network is not empty")
        in_network_of(one.pid, lambda: str(subprocess.run("ip tuntap add tun7 mode tun", shell=True, check=True).returncode))
        given = again("given", ("--external", f"net[{os.stat(f'/proc/{one.pid}/ns/net').st_ino}]:theirs"), ("--join-ns", f"net:/proc/{os.getpid()}/ns/net"))
        if "10.231.0.1/24" not in given:
            raise Failure("it is not in the network namespace that was given")
    finally:
        one.end()
    one = Container(place, "tunnelled", "ip tuntap add tun7 mode tun")
    try:
        if "tun7" in again("left", ("--empty-ns", "net"), ("--empty-ns", "net")):
            raise Failure("the network is not empty")
    finally:
        one.end()


def refused(place):
    """What cannot be made again is named before anything is ended; of a process that is not alone it is a warning."""
    for name, setup, words in (("tun", "ip tuntap add tun7 mode tun", "interface tun7 (tun)"),
                               ("qdisc", "ip link add v type veth peer name w; tc qdisc add dev v root tbf rate 1mbit burst 10k latency 10ms", "a queueing discipline (tbf)"),
                               ("nexthop", "ip link set lo up; ip nexthop add id 3 blackhole", "nexthop objects"),
                               ("encapsulated", "ip link set lo up; ip route add 10.9.0.0/16 encap ip id 3 dst 10.0.0.9 dev lo", "encapsulation"),
                               ("fdb", "ip link add br7 type bridge; ip link add v type veth peer name w; ip link set w up master br7; bridge fdb add 02:00:00:00:00:09 dev w master static", "static entries"),
                               ("alternative", "ip link add v type veth peer name w; ip link property add dev v altname second", "interface v (with a second name)")):
        try:
            one = Container(place, name, setup)
        except Skip as lacking:
            print(f"skipped: {name}: {lacking}")
            continue
        try:
            one.dump().expect(6, words)
            ckpt("check", "-p", one.pid).expect(1, words)
            if not exists_unreaped(one.pid):
                raise Failure("it has ended")
        finally:
            one.end()


if __name__ == "__main__":
    if os.environ.get("CKPT_NETWORK_OF_TEST") is None:
        os.environ["CKPT_NETWORK_OF_TEST"] = "1"
        if subprocess.run(["unshare", "--net", "true"], check=False).returncode != 0:
            print("skipped: no network namespace can be made here")
            sys.exit(77)
        os.execvp("unshare", ["unshare", "--net", sys.executable, *sys.argv])
    become_subreaper()
    sys.exit(run_cases("network", [("made again", made_again), ("leads outside", leads_outside), ("as criu", as_criu), ("refused", refused)], ("unshare", "ip", "tc", "bridge")))
