#!/usr/bin/env python3
"""A TCP connection with both buffers full and traffic both ways, whose peer goes on sending while one end is dumped and
restored: it never stalls. In a network namespace of its own; CKPT_TCP_ROUNDS is the number of restores (10), half of them of
the end that connected, half of the one that accepted."""
import ctypes
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from harness import LONG, Failure, Skip, ckpt, ckpt_restore, read_text, run_tests, wait_until

ROUNDS = int(os.environ.get("CKPT_TCP_ROUNDS", "500" if LONG else "10"))
CONNECTIONS, MORE, PART, STALL = 4, 1 << 20, 1 << 16, 20.0
SIZES = (1 << 18, 0, 1 << 20)  # SO_RCVBUF of the target; 0: the kernel's choice
SEGMENT = 1 << 17  # the kernel takes one more than there is room for

# Fills its side, and after the restore writes on before it reads anything: it needs the window that the peer opens.
TARGET = r"""
import select, signal, socket, sys
role, port, count, more, part, size = sys.argv[1], *map(int, sys.argv[2:])
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
# With a size of its own the kernel does not make the buffer larger when it has to.
def sized(end):
    if size:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
    return end
if role == "connects":
    ends = [sized(socket.socket()) for _ in range(count)]
    for end in ends:
        end.connect(("127.0.0.1", port))
else:
    listener = sized(socket.socket())
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(count)
    ends = [listener.accept()[0] for _ in range(count)]
    listener.close()
sent = [0] * count
def write(limits, patience):
    left = [i for i in range(count) if sent[i] < limits[i]]
    while left:
        ready = select.select([], [ends[i] for i in left], [], patience)[1]
        if not ready:
            return
        for i in left:
            if ends[i] in ready:
                sent[i] += ends[i].send(bytes(min(part, limits[i] - sent[i])))
        left = [i for i in left if sent[i] < limits[i]]
for end in ends:
    end.setblocking(False)
write([1 << 40] * count, 0.1)
print("full", flush=True)
signal.sigwait([signal.SIGUSR1])
goals = [n + more for n in sent]
write(goals, 60)
print("written", *sent, flush=True)
got = []
for end in ends:
    end.shutdown(socket.SHUT_WR)
    end.settimeout(60)
    got.append(0)
    while data := end.recv(1 << 20):
        got[-1] += len(data)
print("read", *got, flush=True)
"""


class Peer(threading.Thread):
    """Writes as much as goes, all the time; reads once it may."""

    def __init__(self, ends):
        super().__init__(daemon=True)
        self.ends, self.sent, self.got = ends, [0] * len(ends), [0] * len(ends)
        self.goals, self.may_read, self.failure = None, False, None
        for end in ends:
            end.setblocking(False)
        self.start()

    def run(self):
        writing, reading = set(range(len(self.ends))), set(range(len(self.ends)))
        try:
            while writing or reading:
                readable, writable, _ = select.select([self.ends[i] for i in reading] if self.may_read else [],
                                                      [self.ends[i] for i in writing], [], 0.02)
                for i in list(writing):
                    if self.ends[i] in writable:
                        self.sent[i] += self.ends[i].send(bytes(PART))
                    if self.goals and self.sent[i] >= self.goals[i]:
                        writing.remove(i)
                        self.ends[i].shutdown(socket.SHUT_WR)
                for i in list(reading):
                    if self.ends[i] in readable:
                        data = self.ends[i].recv(1 << 20)
                        self.got[i] += len(data)
                        if not data:
                            reading.remove(i)
        except OSError as error:
            self.failure = str(error)


def isolate():
    """This thread and all that it starts: the filter and the ports are seen by nobody else."""
    if ctypes.CDLL(None, use_errno=True).unshare(0x40000000) != 0:  # CLONE_NEWNET
        raise Skip("no right to make a network namespace")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def start(place, role, number):
    """The target, its output, and our ends of its connections."""
    log = os.path.join(place.path, f"log{number}")
    listener = socket.create_server(("127.0.0.1", 0), backlog=CONNECTIONS)
    port = listener.getsockname()[1]
    if role == "accepts":
        listener.close()
    with open(log, "wb") as stream:
        process = subprocess.Popen([sys.executable, "-c", TARGET, role, str(port), str(CONNECTIONS), str(MORE), str(PART),
                                    str(SIZES[number // 2 % len(SIZES)])],
                                   stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True)
    if role == "connects":
        ends = [listener.accept()[0] for _ in range(CONNECTIONS)]
        listener.close()
        return process, log, ends
    ends = []

    def connect():
        try:
            ends.append(socket.create_connection(("127.0.0.1", port)))
        except ConnectionRefusedError:
            pass
        return len(ends) == CONNECTIONS
    wait_until(connect, "the target accepts")
    return process, log, ends


def sockets():
    return subprocess.run(["ss", "-tinomH"], capture_output=True, text=True).stdout


def expect_room(ends):
    """What a socket of the target holds fits into its buffer: the kernel breaks its promises to the peer otherwise."""
    lines = sockets().splitlines()
    for end in ends:
        found = [i for i, line in enumerate(lines) if line.split()[3:5] == [":".join(map(str, name)) for name in (end.getpeername(), end.getsockname())]]
        held, room = map(int, re.search(r"skmem:\(r(\d+),rb(\d+)", " ".join(lines[found[0]:found[0] + 2])).groups())
        if held > room + SEGMENT:
            raise Failure(f"a socket holds {held} bytes in a buffer of {room}")


def answer(log, word, what):
    """The numbers that the target writes after the word."""
    pattern = re.compile(rf"^{word} (.*)\n", re.M)
    wait_until(lambda: pattern.search(read_text(log)) or "Error" in read_text(log), what, STALL)
    found = pattern.search(read_text(log))
    if not found:
        raise Failure(what)
    return [int(number) for number in found.group(1).split()]


def one_round(place, role, number, pause):
    process, log, ends = start(place, role, number)
    peer = Peer(ends)
    image = os.path.join(place.path, f"image{number}")
    wait_until(lambda: "full" in read_text(log), "the target has filled its side")
    time.sleep(pause)
    ckpt("dump", "-p", process.pid, "-f", image, "--tcp-established").expect(0)
    process.wait()
    try:
        peer.may_read = number % 4 >= 2  # else only once the target writes again
        ckpt_restore("-f", image, "-d").expect(0)
        if not peer.may_read:
            expect_room(ends)
            time.sleep(20 * pause)  # some segments are sent again
        peer.goals = [n + MORE for n in peer.sent]
        peer.may_read = True
        os.kill(process.pid, signal.SIGUSR1)
        written = answer(log, "written", "the target writes on: the connection has stalled")
        read = answer(log, "read", "the target reads all")
        peer.join(STALL)
        if read != peer.sent or written != peer.got:
            raise Failure(f"bytes are lost: peer sent {peer.sent} and got {peer.got} ({peer.failure})")
    except Failure as failure:
        state = sockets()
        os.kill(process.pid, signal.SIGKILL)
        raise Failure(f"round {number}, the target {role}: {failure}\n{read_text(log)}\n{state}") from failure
    finally:
        for end in ends:
            end.close()
    os.waitpid(process.pid, 0)
    subprocess.run(["rm", "-rf", image], check=True)


def never_stalls(place):
    isolate()
    pauses = random.Random(7)
    for number in range(ROUNDS):
        one_round(place, ("connects", "accepts")[number % 2], number, pauses.uniform(0, 0.05))
    return f"{ROUNDS} restores of {CONNECTIONS} connections"


sys.exit(run_tests(never_stalls))
