#!/usr/bin/env python3
"""dump --safe-point: programs are stopped where they said that they may be, and the members of a job at the same one."""
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from harness import become_subreaper, state_of, wait_until
from nodes import LAUNCHER, one_of, start_together
from prompt import CKPT, main, run

LIBRARY = os.path.join(os.path.dirname(CKPT), "libckpt-flash.so")
START = f"""
import ctypes, os, signal, socket, sys, time
library = ctypes.CDLL({LIBRARY!r})
def say(text):
    with open(".new." + name, "w") as file:
        file.write(text)
    os.rename(".new." + name, name)
"""
# Works for a while, then comes to its safe point.
ALONE = START + """
name = "alone"
for step in range(1000000):
    say(f"in {step}")
    time.sleep(0.05)
    say(f"at {step}")
    has_waited = library.ckpt_safe_point()
    with open("waited", "a") as file:
        file.write(str(has_waited))
"""
# Comes to one only when it is asked to.
ASKED = START + """
name, wanted = "asked", [True]
signal.signal(signal.SIGUSR1, lambda *_: wanted.append(True))
for step in range(1000000):
    if wanted:
        wanted.clear()
        say(f"at {step}")
        library.ckpt_safe_point()
        say(f"in {step}")
    time.sleep(0.001)
"""
# Maps other memory over the library's once it is asked to come to a safe point, and looks at it a while later.
REPLACES = START + """
name, wanted = "replaces", []
libc = ctypes.CDLL(None)
libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
areas = []
with open("/proc/self/maps") as maps:
    for line in maps:
        if "libckpt-flash.so" in line and " rw-p " in line:
            areas.append([int(end, 16) for end in line.split()[0].split("-")])
signal.signal(signal.SIGUSR1, lambda *_: wanted.append(True))
library.ckpt_safe_point()
say("in 0")
while not wanted:
    time.sleep(0.001)
for start, end in areas:
    libc.mmap(start, end - start, 3, 0x32, -1, 0)  # PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED
    ctypes.memset(start, 0xAA, end - start)
time.sleep(1)
same = all(set(ctypes.string_at(start, end - start)) == {0xAA} for start, end in areas)
say(("same" if same and areas else "written") + " 0")
time.sleep(1000)
"""
# Two that send each other a byte in each step, and wait for the other's.
PAIR = START + """
def work(own, socket, pause):
    global name
    name = own
    for step in range(1000000):
        say(f"in {step}")
        socket.send(b".")
        if socket.recv(1) != b".":
            os._exit(1)
        time.sleep(pause)
        say(f"at {step}")
        library.ckpt_safe_point()
"""
TREE = PAIR + """
left, right = socket.socketpair()
if os.fork() == 0:
    work("child", left, 0.001)
work("parent", right, 0.003)
"""
LISTENS = PAIR + """
listener = socket.create_server(("127.0.0.1", 0))
with open("port", "w") as file:
    file.write(str(listener.getsockname()[1]))
peer = listener.accept()[0]
listener.close()
work("rank0", peer, 0.001)
"""
CONNECTS = PAIR + """
with open("port") as file:
    work("rank1", socket.create_connection(("127.0.0.1", int(file.read()))), 0.003)
"""


@contextlib.contextmanager
def started(*programs):
    processes = []
    try:
        for program in programs:
            processes.append(subprocess.Popen([sys.executable, "-S", "-c", program], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                              stderr=subprocess.DEVNULL, start_new_session=True))
            if len(processes) < len(programs):
                wait_until(lambda: os.path.exists("port") and os.path.getsize("port") > 0, "the first one listens")
        yield processes
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def said(name):
    with contextlib.suppress(OSError, ValueError), open(name, encoding="ascii") as stream:
        where, step = stream.read().split()
        return where, int(step)
    return "", -1


def goes_on(*names):
    before = {name: said(name)[1] for name in names}
    wait_until(lambda: all(said(name)[1] > before[name] + 3 for name in names), "it goes on")


def dump(pid, *options):
    shutil.rmtree("image", ignore_errors=True)
    return run("dump", "-p", str(pid), "-f", "image", "--quiet", "--safe-point", *options)


def waits():
    """It stands where it said, and goes on from there; what is restored does, too."""
    with started(ALONE) as [process]:
        wait_until(lambda: said("alone")[1] > 1, "it works")
        for _ in range(5):
            waited = waits_counted()
            done = dump(process.pid, "-s")
            wait_until(lambda: state_of(process.pid) == "T", "it is stopped")
            if done.returncode != 0 or said("alone")[0] != "at":
                yield f"exit {done.returncode}: {said('alone')}, {state_of(process.pid)}: {done.stderr}"
            os.kill(process.pid, signal.SIGCONT)
            goes_on("alone")
            if waits_counted() != waited + 1:
                yield f"the call says that it has waited {waits_counted() - waited} times"
        done = run("pre-dump", "-p", str(process.pid), "-f", "before", "--quiet", "--safe-point")
        goes_on("alone")
        last = dump(process.pid, "--prev", "before")
        process.wait()
        if done.returncode != 0 or last.returncode != 0 or said("alone")[0] != "at":
            yield f"exit {done.returncode}, {last.returncode}: {said('alone')}: {done.stderr} {last.stderr}"
        restored = run("restore", "-f", "image", "-d", "--quiet")
        if restored.returncode != 0:
            yield f"restore: exit {restored.returncode}: {restored.stderr}"
            return
        goes_on("alone")
        os.kill(process.pid, signal.SIGKILL)
        os.waitpid(process.pid, 0)


def waits_counted():
    with open("waited", encoding="ascii") as stream:
        answers = stream.read()
    return answers.count("1") if set(answers) <= {"0", "1"} else -1


def asks_by_signal():
    with started(ASKED) as [process]:
        wait_until(lambda: said("asked")[0] == "in", "it works")
        late = dump(process.pid, "-R", "--timeout", "0.3")
        if late.returncode != 7:
            yield f"without a signal: exit {late.returncode}: {late.stderr}"
        done = dump(process.pid, "-s", "--safe-point-signal", "USR1")
        if done.returncode != 0 or said("asked")[0] != "at":
            yield f"exit {done.returncode}: {said('asked')}: {done.stderr}"
        os.kill(process.pid, signal.SIGCONT)
        wait_until(lambda: said("asked")[0] == "in", "it goes on")


def agrees():
    """Processes that wait for each other stand at the same safe point."""
    with started(TREE) as [process]:
        wait_until(lambda: said("child")[1] > 1 and said("parent")[1] > 1, "they work")
        for _ in range(10):
            done = dump(process.pid, "-s", "--barrier")
            parent, child = said("parent"), said("child")
            if done.returncode != 0 or parent != child or parent[0] != "at":
                yield f"exit {done.returncode}: {parent}, {child}: {done.stderr}"
            for pid in [process.pid, *children(process.pid)]:
                os.kill(pid, signal.SIGCONT)
            goes_on("child", "parent")


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as stream:
        return [int(word) for word in stream.read().split()]


def agrees_together():
    """The same of a job of many ckpts."""
    if LAUNCHER is None or not os.path.exists(os.path.join(os.path.dirname(CKPT), "libckpt-openmpi.so")):
        print("no Open MPI here: not tried with --together")
        return
    with started(LISTENS, CONNECTS) as processes:
        wait_until(lambda: said("rank0")[1] > 1 and said("rank1")[1] > 1, "they work")
        for number in range(3):
            done = start_together(CKPT, 2, "dump", "--safe-point", "--barrier", "-s", "--quiet", "-f", f"job{number}",
                                  member=f"-p {one_of(process.pid for process in processes)}")
            err = done.communicate(timeout=60)[1]
            first, second = said("rank0"), said("rank1")
            if done.returncode != 0 or first != second or first[0] != "at":
                yield f"exit {done.returncode}: {first}, {second}: {err}"
            for process in processes:
                os.kill(process.pid, signal.SIGCONT)
            goes_on("rank0", "rank1")


def gives_up():
    """Who never comes, who has none, and a ckpt that is killed: all go on."""
    with started(START + "time.sleep(1000)") as [process]:
        wait_until(lambda: LIBRARY in open(f"/proc/{process.pid}/maps", encoding="utf-8").read(), "it has loaded the library")
        done = dump(process.pid, "-R")
        rehearsed = dump(process.pid, "-n")
        for one in (done, rehearsed):
            if one.returncode != 6 or "ckpt_safe_point" not in one.stderr:
                yield f"none: exit {one.returncode}: {one.stderr}"
    # A child of one that has come to a safe point has come to none, and is not waited for.
    forks = ALONE.replace('name = "alone"', 'name = "alone"\nlibrary.ckpt_safe_point()\nif os.fork() == 0:\n    time.sleep(1000)')
    with started(forks) as [process]:
        wait_until(lambda: said("alone")[1] > 1, "it works")
        done = dump(process.pid, "-R", "--barrier")
        if done.returncode != 0:
            yield f"a child that has come to none: exit {done.returncode}: {done.stderr}"
    # Its child has come to one, and never will again.
    stuck = forks.replace("time.sleep(1000)", "library.ckpt_safe_point(), time.sleep(1000)")
    os.unlink("alone")
    with started(stuck) as [process]:
        wait_until(lambda: said("alone")[1] > 1, "it works")
        done = dump(process.pid, "-R", "--timeout", "0.5")
        if done.returncode != 7 or "--timeout" not in done.stderr:
            yield f"exit {done.returncode}: {done.stderr}"
        goes_on("alone")
        words = [CKPT, "dump", "-p", str(process.pid), "-f", "killed", "-R", "--safe-point", "--timeout", "60"]
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as killed:
            wait_until(lambda: stands("alone"), "it waits")
            kill_all(words)
        # Once it has given up, it waits at no further safe point: one of them takes 0.05 s.
        begin, before = time.monotonic(), said("alone")[1]
        wait_until(lambda: said("alone")[1] >= before + 10, "it goes on")
        if time.monotonic() - begin > 5:
            yield f"it has gone on too late: {time.monotonic() - begin} s"


def leaves_others_alone():
    """What lies where the library was is not written to: there the program has something else by now."""
    with started(REPLACES) as [process]:
        wait_until(lambda: said("replaces")[0] == "in", "it works")
        done = dump(process.pid, "-R", "--safe-point-signal", "USR1", "--timeout", "2")
        if done.returncode != 7 or "another program" not in done.stderr:
            yield f"exit {done.returncode}: {done.stderr}"
        wait_until(lambda: said("replaces")[0] in ("same", "written"), "it has looked")
        if said("replaces")[0] != "same":
            yield "its memory has been written to"


def kill_all(words):
    """What works for a ckpt, too: it would tidy up. The last one made comes first."""
    for pid in sorted((int(name) for name in os.listdir("/proc") if name.isdigit()), reverse=True):
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as stream:
                if stream.read().split("\0")[:-1] == words:
                    os.kill(pid, signal.SIGKILL)


def stands(name):
    before = said(name)
    time.sleep(0.3)
    return before[0] == "at" and said(name) == before


def refuses():
    for words in (["--barrier"], ["--safe-point-signal", "USR1"], ["--safe-point", "--safe-point-signal", "KILL"]):
        done = run("dump", "-p", str(os.getpid()), "-f", "image", *words)
        if done.returncode != 2:
            yield f"{words}: exit {done.returncode}: {done.stderr}"


if os.geteuid() != 0:
    print("not root: a process cannot be dumped and restored")
    sys.exit(77)
become_subreaper()
main(waits, asks_by_signal, agrees, agrees_together, gives_up, leaves_others_alone, refuses)
