"""Nodes of a job on one machine: network namespaces, and ckpts that mpirun starts, one for each."""
import collections
import ctypes
import fcntl
import os
import random
import select
import shutil
import signal
import struct
import subprocess
import sys
import time

LAUNCHER = shutil.which("mpirun.openmpi") or shutil.which("mpirun")
PREFIX = f"ckt{os.getpid()}"


def command(*words):
    return subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def check_launcher(ckpt):
    """Or the test is skipped."""
    if LAUNCHER is None or not os.path.exists(os.path.join(os.path.dirname(ckpt), "libckpt-openmpi.so")):
        skip("no Open MPI here")
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("nsenter") is None:
        skip("no network namespaces without root and ip")


def wait_until(condition, what, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited in vain: {what}")
        time.sleep(0.005)


class Nodes:
    """Network namespaces, each with a line to a router in one of its own. `worse`: (share of packets lost, seconds that each takes)."""

    def __init__(self, count, worse=None):
        self.net = 77
        if worse and not os.path.exists("/dev/net/tun"):
            skip("no /dev/net/tun here")
        self.names = [f"{PREFIX}n{i}" for i in range(count)]
        self.router, self.relay = f"{PREFIX}r", None
        for name in [self.router, *self.names]:
            made = command("ip", "netns", "add", name)
            if made.returncode != 0:
                skip(f"no network namespace can be made: {made.stdout}")
            command("ip", "-n", name, "link", "set", "lo", "up")
        if worse:
            self.relay = Relay(self, *worse)
        else:
            self.connect()

    def connect(self):
        command("ip", "netns", "exec", self.router, "sysctl", "-q", "net.ipv4.ip_forward=1")
        for i, name in enumerate(self.names):
            made = command("ip", "-n", self.router, "link", "add", f"p{i}", "type", "veth", "peer", "name", "eth0", "netns", name)
            if made.returncode != 0:
                self.remove()
                skip(f"no pair of interfaces can be made: {made.stdout}")
            command("ip", "-n", self.router, "addr", "add", f"10.{self.net}.{i}.1/24", "dev", f"p{i}")
            command("ip", "-n", self.router, "link", "set", f"p{i}", "up")
            self.give_address(i, "eth0")

    def give_address(self, i, device):
        name = self.names[i]
        command("ip", "-n", name, "addr", "add", f"{self.address(i)}/24", "dev", device)
        command("ip", "-n", name, "link", "set", device, "up")
        command("ip", "-n", name, "route", "add", "default", "via", f"10.{self.net}.{i}.1", "dev", device)

    def address(self, i):
        return f"10.{self.net}.{i}.2"

    def move(self, net):
        """To other addresses."""
        for i, name in enumerate(self.names):
            command("ip", "-n", name, "addr", "flush", "dev", "eth0")
            command("ip", "-n", self.router, "addr", "flush", "dev", f"p{i}")
        self.net = net
        for i in range(len(self.names)):
            command("ip", "-n", self.router, "addr", "add", f"10.{net}.{i}.1/24", "dev", f"p{i}")
            self.give_address(i, "eth0")

    def remove(self):
        if self.relay:
            self.relay.end()
        for name in [*self.names, self.router]:
            command("ip", "netns", "del", name)


class Relay:
    """A process that carries packets between the nodes, loses some of them and takes its time: what tc's netem does, where the kernel has none."""

    def __init__(self, nodes, loss, delay):
        self.fds = []
        own = os.open("/proc/self/ns/net", os.O_RDONLY)
        for i, name in enumerate(nodes.names):
            self.enter(os.open(f"/run/netns/{name}", os.O_RDONLY))
            fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(fd, 0x400454CA, struct.pack("16sH22x", b"tun0", 0x1001))  # TUNSETIFF, IFF_TUN | IFF_NO_PI
            self.fds.append(fd)
        self.enter(own)
        for i in range(len(nodes.names)):
            nodes.give_address(i, "tun0")
        self.pid = os.fork()
        if self.pid == 0:
            self.carry(loss, delay)
        for fd in self.fds:
            os.close(fd)

    @staticmethod
    def enter(fd):
        if ctypes.CDLL(None, use_errno=True).setns(fd, 0) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        os.close(fd)

    def carry(self, loss, delay):
        rng, under_way, poll = random.Random(1), collections.deque(), select.poll()
        for fd in self.fds:
            poll.register(fd, select.POLLIN)
        while True:
            poll.poll(max(0, (under_way[0][0] - time.monotonic()) * 1000) if under_way else None)
            now = time.monotonic()
            for fd in self.fds:
                try:
                    while True:
                        packet = os.read(fd, 65536)
                        if packet[0] >> 4 == 4 and packet[18] < len(self.fds) and rng.random() >= loss:
                            under_way.append((now + delay, self.fds[packet[18]], packet))
                except BlockingIOError:
                    pass
            while under_way and under_way[0][0] <= time.monotonic():
                _, fd, packet = under_way.popleft()
                try:
                    os.write(fd, packet)
                except OSError:
                    pass

    def end(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def start_together(ckpt, size, verb, *arguments, member=None, **keywords):
    """`member`: words of the shell that differ, with $R the rank."""
    environment = {"PATH": os.environ["PATH"], "HOME": os.getcwd(), "TMPDIR": "/tmp"}
    script = f'R=$OMPI_COMM_WORLD_RANK; exec "$0" {verb} --together "$@" {member or ""}'
    return subprocess.Popen([LAUNCHER, "--allow-run-as-root", "--oversubscribe", "-n", str(size), "sh", "-c", script, ckpt, *arguments], text=True,
                            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **keywords)


def one_of(words):
    """That of each rank, for `member`."""
    return "$(set -- " + " ".join(map(str, words)) + "; shift $R; echo $1)"


def finish(process, code=0):
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, f"exit {process.returncode}, not {code}\n{out}\n{err}"
    return out, err
