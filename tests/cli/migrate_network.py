#!/usr/bin/env python3
"""migrate between two network namespaces, over a line that loses 1 % of the packets and takes 20 ms for each: moves, moves lazily, and what
becomes of it when the line is cut in the middle."""
import contextlib
import glob
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))


def copy(source, target):
    with contextlib.suppress(OSError):
        while data := os.read(source, 65536):
            while data:
                data = data[os.write(target, data):]


def connect(address, port, command):
    """In the place of ssh."""
    with socket.create_connection((address, port), 10) as there:
        there.settimeout(None)
        there.sendall(json.dumps(command).encode() + b"\n")
        back = threading.Thread(target=copy, args=(there.fileno(), 1))
        back.start()
        copy(0, there.fileno())
        there.shutdown(socket.SHUT_WR)
        back.join()


def serve(address, port):
    """In the place of sshd."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.create_server((address, port)) as door:
        while True:
            there, _ = door.accept()
            line = b""
            while not line.endswith(b"\n"):
                line += there.recv(1) or b"null\n"
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                subprocess.run(json.loads(line), stdin=there, stdout=there, stderr=subprocess.DEVNULL, check=False)
                os._exit(0)
            there.close()


if sys.argv[1] == "serve":
    serve(sys.argv[2], int(sys.argv[3]))
if sys.argv[1] == "connect":
    connect(sys.argv[2], int(sys.argv[3]), sys.argv[5:])
    sys.exit(0)

from harness import become_subreaper, state_of, wait_until
from migrate_peer import Peer
from nodes import Nodes, skip
from prompt import CKPT, main

PORT, SCRIPT = 7100, os.path.abspath(__file__)


class Line:
    """Between two nodes, of which one has who answers."""

    def __enter__(self):
        self.nodes = Nodes(2, (0.01, 0.02))
        self.server = subprocess.Popen(self.within(1, "serve", self.nodes.address(1)), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            wait_until(self.answers, "the other node answers", pause=0.05)
        except BaseException:
            self.__exit__()
            raise
        return self

    def answers(self):
        table = subprocess.run(["nsenter", f"--net=/run/netns/{self.nodes.names[1]}", "cat", "/proc/net/tcp"], capture_output=True, check=True)
        return b":1BBC " in table.stdout

    def __exit__(self, *_):
        self.server.kill()
        self.server.wait()
        self.let_go()
        self.nodes.remove()

    def within(self, node, what, address):
        return ["nsenter", f"--net=/run/netns/{self.nodes.names[node]}", sys.executable, SCRIPT, what, address, str(PORT)]

    def cut(self):
        os.kill(self.nodes.relay.pid, signal.SIGSTOP)

    def let_go(self):
        os.kill(self.nodes.relay.pid, signal.SIGCONT)

    def migrate(self, pid, *options):
        ssh = " ".join(self.within(0, "connect", self.nodes.address(1)))
        return subprocess.Popen([CKPT, "migrate", "-p", str(pid), "--to", "there", "--remote-ckpt", CKPT, "--ssh", ssh, "--new-pidns", "--json", *options],
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def sent(line):
    """By the near end: so many packets have gone through its device."""
    got = subprocess.run(["nsenter", f"--net=/run/netns/{line.nodes.names[0]}", "cat", "/proc/net/dev"], capture_output=True, text=True, check=True).stdout
    return next(int(row.split()[9]) for row in got.splitlines() if row.strip().startswith("tun0:"))


def moves():
    """At once and lazily; and once with a line that is dead for a second."""
    with Line() as line:
        for options in ([], ["--lazy"]):
            with Peer(1) as peer:
                moving = line.migrate(peer.pid, "--timeout", "20", *options)
                if not options:
                    wait_until(lambda: sent(line) > 200 << 10 or moving.poll() is not None, "something is sent", pause=0.05)
                    line.cut()
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        moving.wait(1)
                    line.let_go()
                out, err = moving.communicate(timeout=60)
                if moving.returncode != 0:
                    yield f"{options}: exit {moving.returncode}: {err}"
                    continue
                report = json.loads(out)
                if peer.all() != [report["pid_outside_there"]] or report["lazy"] != bool(options):
                    yield f"{options}: {peer.all()}, {report}"
                if problem := peer.problem():
                    yield f"{options}: {problem}"
            os.unlink("count")


def a_cut_line_leaves_it_here():
    """Before it was made there: it goes on here, and nothing is left there."""
    with Line() as line, Peer(2) as peer:
        moving = line.migrate(peer.pid, "--timeout", "1")
        wait_until(lambda: sent(line) > 200 << 10 or moving.poll() is not None, "something is sent", pause=0.05)
        line.cut()
        err = moving.communicate(timeout=60)[1]
        if moving.returncode != 7 or "for 1 seconds" not in err:
            yield f"exit {moving.returncode}: {err}"
        if peer.all() != [peer.pid]:
            yield f"{peer.all()}: {err}"
        if problem := peer.problem():
            yield f"{problem}: {err}"
        line.let_go()  # without that the other end waits for ten minutes
        wait_until(lambda: not glob.glob("/dev/shm/.ckpt-receive-*"), "nothing is left")


def a_cut_line_that_pages_come_over():
    """It has run there: there it ends, here it is kept stopped."""
    with Line() as line, Peer(2) as peer:
        moving = line.migrate(peer.pid, "--lazy", "--timeout", "3", "--bandwidth", "200K")
        wait_until(lambda: len(peer.all()) == 2 or moving.poll() is not None, "it is made there", pause=0.05)
        before = peer.count()
        wait_until(lambda: peer.count() > before + 5 or moving.poll() is not None, "it runs there", pause=0.05)
        line.cut()
        err = moving.communicate(timeout=60)[1]
        if moving.returncode != 10 or "kill -CONT" not in err:
            yield f"exit {moving.returncode}: {err}"
        wait_until(lambda: peer.all() == [peer.pid] and state_of(peer.pid) == "T", "it ends there and is stopped here")
        line.let_go()
        wait_until(lambda: not glob.glob("/dev/shm/.ckpt-receive-*/pages*"), "nothing is left")


if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("nsenter") is None or not os.path.exists("/dev/net/tun"):
    skip("needs root, ip, nsenter and /dev/net/tun")
become_subreaper()
main(moves, a_cut_line_leaves_it_here, a_cut_line_that_pages_come_over)
