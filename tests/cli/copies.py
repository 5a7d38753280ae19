#!/usr/bin/env python3
"""restore --copies: each copy in namespaces of its own and with its number, memory in common until it is written to; all of them, or none."""
import contextlib
import glob
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

from prompt import CKPT, main, run

PEER = os.path.join(os.path.dirname(CKPT), "copies_peer")
LINE = re.compile(r"(child )?number (\d+) host (\S+) file (\S+) pid (\d+) rounds (\d+)")


def state_of(pid):
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stream:
            return stream.read().rpartition(")")[2].split()[0]
    return "X"


def peers():
    """Processes of this program that live, by their numbers outside."""
    out = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(entry)
            with open(f"/proc/{pid}/cmdline", "rb") as stream:
                words = stream.read().split(b"\0")
            if words[0] == PEER.encode() and words[2].startswith(os.getcwd().encode()) and state_of(pid) not in "ZX":
                out.append(pid)
    return sorted(out)


def ckpts():
    """Processes of ckpt's that work on images of this folder, process 1 of a namespace among them."""
    out = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            with open(f"/proc/{int(entry)}/cmdline", "rb") as stream:
                words = stream.read().split(b"\0")
            if words[0] == CKPT.encode() and os.getcwd().encode() + b"/image" in words:
                out.append(int(entry))
    return out


def wait_until(condition, what, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.01)


def end_all():
    for pid in peers():
        with contextlib.suppress(ProcessLookupError):  # one ends with another one's namespace
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not peers() and not ckpts(), "all have ended")


def last_line(path, who=""):
    with contextlib.suppress(OSError):
        with open(path, encoding="ascii") as stream:
            lines = [LINE.fullmatch(line) for line in stream.read().splitlines()]
        lines = [line for line in lines if line and (line[1] or "") == who]
        return lines[-1] if lines else None
    return None


@contextlib.contextmanager
def image_of(mib, *more, **how):
    """Of a peer that has ended; and an end to whatever was made of it."""
    for left in ("image", *glob.glob("out-*"), "log"):
        shutil.rmtree(left) if os.path.isdir(left) else os.path.exists(left) and os.unlink(left)
    number_file = os.path.abspath("number")
    with open(number_file, "w", encoding="ascii") as stream:
        stream.write("none\n")
    with open("log", "ab") as log:
        peer = subprocess.Popen([PEER, str(mib), number_file, *more], stdin=subprocess.DEVNULL, stdout=how.get("stdout", log), stderr=log,
                                start_new_session=True, close_fds=True)
    try:
        wait_until(lambda: last_line("log"), "the peer runs") if "stdout" not in how else time.sleep(0.3)
        dumped = run("dump", "-p", str(peer.pid), "-f", os.path.abspath("image"))
        if dumped.returncode != 0:
            raise RuntimeError(dumped.stderr)
        peer.wait()
        yield number_file
    finally:
        peer.kill()
        peer.wait()
        end_all()


def restore(*options, image="image"):
    return run("restore", "-f", os.path.abspath(image), "--new-pidns", *options)


def proportional(pid):
    """Bytes of its memory; what is shared by n counts a nth."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as stream:
        fields = dict(line.split(":") for line in stream.read().splitlines()[1:])
    return int(fields["Pss"].split()[0]) << 10


def three():
    """Numbers by signal, file and hostname; output, namespaces and process of its own; the report says which."""
    with image_of(16) as number:
        options = ["-d", "--json", "--copies", "3", "--output", "out-{copy}", "--copy-file", number, "--copy-signal", "SIGUSR1", "--pidfile",
                   "pid-{copy}"]
        done = restore(*options)
        if done.returncode != 0:
            yield f"exit {done.returncode}: {done.stderr}"
            return
        report = json.loads(done.stdout)
        copies = report["copies"]
        if [copy["copy"] for copy in copies] != [1, 2, 3] or report["event"] != "done" or report["bytes_common"] < 16 << 20:
            yield f"report: {report}"
        if sorted(copy["pid_outside"] for copy in copies) != peers():
            yield f"{peers()} run: {report}"
        for kind, different in (("pid", 3), ("mnt", 3), ("uts", 3), ("net", 1), ("ipc", 1)):
            if len({copy["namespaces"][kind] for copy in copies}) != different:
                yield f"{kind} namespaces: {report}"
        for copy in copies:
            name = f"out-{copy['copy']}"
            wait_until(lambda: (line := last_line(name)) and line[2] != "0" and int(line[6]) > 5, f"{name} is written to")
            line = last_line(name)
            host = f"{socket.gethostname()}-{copy['copy']}"[-64:]
            if line[2] != str(copy["copy"]) or line[4] != line[2] or line[3] != host or copy["hostname"] != host or int(line[5]) != copy["pid"]:
                yield f"{name}: {line[0]}; {copy}"
            if os.readlink(f"/proc/{copy['pid_outside']}/ns/uts") != copy["namespaces"]["uts"]:
                yield f"uts namespace: {copy}"
            with open(f"pid-{copy['copy']}", encoding="ascii") as stream:
                if int(stream.read()) != copy["pid_outside"]:
                    yield f"pidfile: {copy}"
        with open(number, encoding="ascii") as stream:
            if stream.read() != "none\n":
                yield "the number is seen outside"
        for name in glob.glob("out-*"):
            with open(name, encoding="ascii") as stream:
                if "bad" in stream.read():
                    yield f"{name} found other memory than it had"


def memory():
    """Eight of 256 MiB take little more than one; so do two of a parent and a child who share it."""
    for mib, count, more in ((256, 8, []), (64, 2, ["child"])):
        with image_of(mib, *more) as number:
            done = restore("-d", "--copies", str(count), "--output", "out-{copy}", "--copy-file", number, "--copy-signal", "USR1")
            if done.returncode != 0:
                yield f"exit {done.returncode}: {done.stderr}"
                return
            wait_until(lambda: all((line := last_line(f"out-{n + 1}")) and line[2] != "0" and int(line[6]) > 3 for n in range(count)), "all write")
            processes = count * (2 if more else 1)
            if len(peers()) != processes:
                yield f"{len(peers())} processes of {processes}"
            total = sum(proportional(pid) for pid in peers())
            written = 32 * 4096 * processes  # every 64th page of 8 MiB
            if total > 1.2 * (mib << 20) + written:
                yield f"{count} copies of {mib} MiB take {total >> 20} MiB"
            if more:
                wait_until(lambda: all((line := last_line(f"out-{n + 1}", "child ")) and line[2] == str(n + 1) for n in range(count)),
                           "each child knows its number")


def again():
    """A copy is a process like any other: it can be dumped, and copied again."""
    with image_of(4) as number:
        done = restore("-d", "--json", "--copies", "2", "--output", "out-{copy}", "--copy-file", number, "--copy-signal", "USR1")
        second = json.loads(done.stdout)["copies"][1]
        wait_until(lambda: (line := last_line("out-2")) and line[2] == "2", "the second knows its number")
        dumped = run("dump", "-p", str(second["pid_outside"]), "-f", os.path.abspath("image2"))
        if dumped.returncode != 0:
            yield f"dump of a copy: {dumped.stderr}"


def foreground():
    """Without --detach ckpt stands in for all of them: its exit status is that of the first that did not end well."""
    with image_of(4):
        command = [CKPT, "restore", "-f", os.path.abspath("image"), "--new-pidns", "--copies", "2", "--output", "out-{copy}", "--json"]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as ckpt:
            report = json.loads(ckpt.stdout.readline())
            os.kill(report["copies"][0]["pid_outside"], signal.SIGKILL)
            ended = json.loads(ckpt.stdout.readline())
            if (ended["event"], ended["copy"], ended["signal"], ended["exit_code"]) != ("ended", 1, signal.SIGKILL, None):
                yield f"{ended}"
            if len(peers()) != 1:
                yield f"{peers()} run on"
            os.kill(ckpt.pid, signal.SIGTERM)
            if ckpt.wait(20) != 128 + signal.SIGKILL or peers():
                yield f"exit {ckpt.returncode}, {peers()} run on: {ckpt.stderr.read()}"


def all_or_none(count):
    """All have been let go, or nothing is left; not those that are made and may yet be undone."""
    found = peers()
    return (not found and not ckpts()) or (len(found) == count and all(state_of(pid) in "SRD" for pid in found))


def killed():
    """kill -9 of ckpt while it makes them: nothing is left."""
    with image_of(64):
        before = set(os.listdir("."))
        for wait_ms in (1, 20, 60, 100, 150, 200, 300):
            command = [CKPT, "restore", "-f", os.path.abspath("image"), "--new-pidns", "-d", "--copies", "6", "--share-file", "*/log"]
            with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as ckpt:
                time.sleep(wait_ms / 1000)
                ckpt.kill()
            try:
                wait_until(lambda: all_or_none(6), "none, or all", 40)
            except TimeoutError:
                yield f"killed after {wait_ms} ms: {peers()} run, and {ckpts()} of ckpt"
            end_all()
        if set(os.listdir(".")) != before:
            yield f"left: {set(os.listdir('.')) - before}"


def one_fails():
    """The third cannot be made, as an action script has it: the two before it are not let go, and its name is said."""
    with image_of(4) as number:
        with open("script", "w", encoding="ascii") as stream:
            stream.write('#!/bin/sh\n[ "$CKPT_ACTION" != post-restore ] || [ "$(cat "$(dirname "$0")/number")" != 3 ]\n')
        os.chmod("script", 0o700)
        done = restore("-d", "--copies", "4", "--output", "out-{copy}", "--copy-file", number, "--action-script", os.path.abspath("script"))
        if done.returncode == 0 or "copy 3 of 4" not in done.stderr:
            yield f"exit {done.returncode}: {done.stderr}"
        wait_until(lambda: not peers() and not ckpts(), "nothing is left")
        if glob.glob("out-*"):
            yield f"left: {glob.glob('out-*')}"


def refused():
    """By name, before anything is made."""
    here = os.path.abspath("image")
    with image_of(4):
        cases = [(["--copies", "2", "--copy-file", "missing", "--output", "o-{copy}"], 4, "missing"),
                 (["--copies", "2", "--output", "same"], 2, "needs {copy}"), (["--copies", "2", "--output", "7=o-{copy}"], 4, "descriptor 7"),
                 (["--copies", "2", "--lazy"], 2, "--lazy"), (["--copies", "2", "--pidfile", "pid"], 2, "needs {copy}"),
                 (["--copies", "2", "--output", "o-{copy}", "--copy-signal", "SIGUSR2"], 2, "USR2"), (["--output", "o-{copy}"], 2, "goes with --copies"),
                 (["--copies", "2", "--output", "o-{copy}", "--copy-signal", "KILL"], 2, "no signal")]
        for options, code, text in cases:
            done = restore("-d", *options)
            if done.returncode != code or text not in done.stderr:
                yield f"{options}: exit {done.returncode}: {done.stderr}"
        done = run("restore", "-f", here, "--copies", "2")
        if done.returncode != 2 or "--new-pidns" not in done.stderr:
            yield f"without --new-pidns: {done.stderr}"
        if peers() or glob.glob("o-*"):
            yield f"{peers()} run, {glob.glob('o-*')}"


def refused_state():
    """What there can be once: a port, a lock, a file that is written, a name of a socket, a named pipe, queues, semaphores."""
    program = """
import ctypes, fcntl, os, socket, sys, time
libc = ctypes.CDLL(None)
os.mkfifo("pipe"); f = os.open("pipe", os.O_RDWR)
name = b"/ckpt-copies-%d" % os.getpid()
g = libc.mq_open(name, os.O_CREAT | os.O_RDWR, 0o600, None)
h = libc.semget(0, 1, 0o1600); libc.semctl(h, 0, 16, 1)
a = socket.socket(); a.bind(("127.0.0.1", 0)); a.listen()
b = socket.socket(socket.AF_UNIX); b.bind("name")
c = open("written", "w"); d = open("locked", "r"); fcntl.flock(d, fcntl.LOCK_EX)
e = open("appended", "a")
open("ready", "w").close()
while os.path.exists("ready"): time.sleep(0.05)
libc.mq_unlink(name); libc.semctl(h, 0, 0)
"""
    open("locked", "w", encoding="ascii").close()
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          start_new_session=True, close_fds=True) as target:
        try:
            wait_until(lambda: os.path.exists("ready"), "the target is ready")
            dumped = run("dump", "-p", str(target.pid), "-f", os.path.abspath("image"), "-R")
            done = restore("-d", "--copies", "2")
            for text in ("/pipe", "is a message queue", "System V shared memory, semaphores", "listens on 127.0.0.1:", "is bound to ", "/written, open for writing", "write lock of ", "/appended: all copies append"):
                if text not in done.stderr:
                    yield f"{text!r} is not in: {dumped.stderr} {done.stderr}"
            if done.returncode != 6:
                yield f"exit {done.returncode}"
            os.unlink("ready")
            target.wait(20)
        finally:
            target.kill()


if os.geteuid() != 0:
    print("skipped: restore needs root")
    sys.exit(77)
main(three, memory, again, foreground, killed, one_fails, refused, refused_state)
