#!/usr/bin/python3
"""In the place of ssh: runs the command behind HOST, and passes the frames of the stream on, one by one.

usage: migrate_link.py WHAT HOST COMMAND... WHAT: "-", or VICTIM:SIDE:KIND:WHEN[:N]: at the N-th frame KIND of SIDE ("to" or "from" the
receiver), "before" or "after" it is passed on (or "amid": half of it is), the victim gets a SIGKILL: "receiver" (its front), "receivers" (and
the restore), "front", "worker" (of ckpt migrate), "link" (this), all of which end the stream, or "daemon" (of lazy pages, of what the
file "count" in this folder is the count of). Only once for a folder: the file "hit" says so, with the pid of the receiver (its front).
"hook:FILE": sh FILE KIND is run before each frame that tells the receiver to make or to let go the processes.
"""
import os
import signal
import struct
import subprocess
import sys
import threading

HEADER = struct.Struct("<IBBHIIQ")
KINDS = ["", "hello", "ready", "data", "end", "make", "made", "go", "runs", "not", "alive", "done", "later", "want", "all"]


def read_exactly(stream, size):
    data = b""
    while len(data) < size:
        piece = stream.read(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def descendants(pid):
    out = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as stream:
                for child in stream.read().split():
                    out += [int(child), *descendants(int(child))]
    except OSError:
        pass
    return out


def is_restored(pid):
    """It is what was moved, or number 1 of its pid namespace, whose end is its end."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as stream:
            fields = dict(line.split(":", 1) for line in stream.read().splitlines() if ":" in line)
    except OSError:
        return True
    numbers = fields["NSpid"].split()
    return fields["Name"].strip() == "migrate_peer" or (len(numbers) > 1 and numbers[-1] == "1")


def lazy_daemons():
    """In the pid namespace of what counts there."""
    file = os.path.abspath("count").encode()
    def look(pid, what):
        try:
            with open(f"/proc/{pid}/{what}", "rb") as stream:
                return stream.read()
        except OSError:
            return b""
    def namespace(pid):
        try:
            return os.readlink(f"/proc/{pid}/ns/pid")
        except OSError:
            return ""
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    theirs = {namespace(pid) for pid in pids if file in look(pid, "cmdline").split(b"\0")} - {"", namespace("self")}
    return [pid for pid in pids if look(pid, "comm") == b"ckpt-lazy\n" and namespace(pid) in theirs]


def parent_of(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as stream:
        return int(stream.read().rpartition(")")[2].split()[1])


class Link:
    def __init__(self, what, command):
        self.plan = None if what == "-" or os.path.exists("hit") else what.split(":")
        self.seen = 0
        self.hook = ["sh", what.partition(":")[2]] if what.startswith("hook:") else None
        if self.hook:
            self.plan = None
        self.receiver = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

    def victims(self, name):
        worker = os.getppid()
        return {"receiver": [self.receiver.pid],
                "receivers": [pid for pid in [*descendants(self.receiver.pid), self.receiver.pid] if not is_restored(pid)],
                "front": [parent_of(worker)],
                "worker": [worker], "link": [os.getpid()], "daemon": lazy_daemons()}[name]

    def hit(self):
        victims = self.victims(self.plan[0])
        self.plan = None
        with open("hit", "w", encoding="ascii") as stream:
            stream.write(str(self.receiver.pid))
        for pid in victims:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def relay(self, side, source, target):
        try:
            while True:
                header = read_exactly(source, HEADER.size)
                _, kind, name, _, length, _, _ = HEADER.unpack(header)
                frame = header + read_exactly(source, name + length)
                when = None
                if self.hook and side == "to" and KINDS[kind] in ("make", "go"):
                    subprocess.run([*self.hook, KINDS[kind]], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)
                if self.plan and self.plan[1] == side and self.plan[2] == KINDS[kind]:
                    self.seen += 1
                    if self.seen == int((self.plan + ["1"])[4]):
                        when = self.plan[3]
                if when == "before":
                    self.hit()
                target.write(frame[:len(frame) // 2] if when == "amid" else frame)
                if when in ("after", "amid"):
                    self.hit()
                if when == "amid":
                    break
        except (EOFError, OSError, ValueError):
            pass
        try:
            target.close()
        except OSError:
            pass

    def run(self):
        back = threading.Thread(target=self.relay, args=("from", self.receiver.stdout, os.fdopen(1, "wb", 0)))
        back.start()
        self.relay("to", os.fdopen(0, "rb", 0), self.receiver.stdin)
        back.join()
        self.receiver.wait()


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    Link(sys.argv[1], sys.argv[3:]).run()
