#!/usr/bin/env python3
"""Runs one self-checking target under every flavour of dump and restore.

  run.py NAME [--flavours a,b] [--arguments ...]   flavours side by side, each with a process of its own
  run.py --special NAME                            one of the tests below that need more than the flavours

CKPT_BIN is the ckpt to test, CKPT_TARGETS the folder of the built targets.
"""
import argparse
import concurrent.futures
import contextlib
import ctypes
import glob
import os
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from harness import (CKPT, LONG, SKIPPED, STARTED_BY, TARGETS, TIMEOUT, Failure, Skip, Target, Workplace, become_subreaper, being_filled, check_released, ckpt, ckpt_restore,
                     differences, exists_unreaped, fingerprint, parent_outside, read_text, reap_strays, session_of, wait_until)

# Stopped with SIGSTOP these see EINTR from the kernel itself (signal(7)).
INTERRUPTED_BY_STOP = {"block_calls", "block_limits", "fd_io_uring_busy"}

# Their processes and threads come and go, so that they look another way at every look.
RESTLESS = {"tree_churn", "sock_tcp_accepted_later"}


# What a dump of them must be told.
DUMP_FLAGS = {"sock_tcp_pair": ["--tcp-established"], "sock_tcp_accepted_later": ["--tcp-established"],
              "sock_tcp_many_files": ["--tcp-established"]}
# Their queues hold empty datagrams, which the kernel shows to nobody a second time: one dump of a live process at most.
ONE_DUMP = {"sock_pair_records", "sock_shutdown", "sock_udp"}
# Connections that have just ended keep the port for a minute, and it did not ask to share that (SO_REUSEADDR).
ONE_DUMP |= {"sock_tcp_listen"}


def flags_of(target):
    return DUMP_FLAGS.get(target.program, [])


def image(target, name):
    return os.path.join(os.path.dirname(target.folder), name)


def unharmed(target, before):
    """The process is as it was, apart from what it did itself."""
    if not target.running():
        raise Failure(f"the target has ended: {target.ending}")
    check_released(target.pid, before)
    if target.program in RESTLESS or STARTED_BY:  # what was started with something preloaded moves descriptors of its own
        return
    found = list(differences(before, fingerprint(target.pid)))
    if found:
        raise Failure("the target was altered: " + "; ".join(found))


def pre_dump(target, name, *more):
    before = fingerprint(target.pid)
    ckpt("pre-dump", "-p", target.pid, "-f", image(target, name), *flags_of(target), *more).expect(0)
    unharmed(target, before)


def dump(target, name, *more):
    tree = target.tree()
    ckpt("dump", "-p", target.pid, "-f", image(target, name), *flags_of(target), *more).expect(0)
    target.reap(tree)


def restore(target, name, *more):
    target.forget_answers()
    pidfile = image(target, "pid")
    ckpt_restore("-f", image(target, name), "-d", "--pidfile", pidfile, *more).expect(0)
    target.adopt()
    with open(pidfile) as stream:
        if stream.read().strip() != str(target.pid):
            raise Failure("the pidfile holds another pid")
    os.unlink(pidfile)


def restore_and_check(target, name, steps):
    restore(target, name)
    target.check(steps)


def flavour_alone(target):
    """No ckpt at all: the target passes its own check, also after stops."""
    time.sleep(0.02)
    target.step()
    target.check()


def flavour_stopped(target):
    for _ in range(3):
        os.kill(target.pid, signal.SIGSTOP)
        time.sleep(0.03)
        os.kill(target.pid, signal.SIGCONT)
        time.sleep(0.02)
    target.check()


def flavour_dump(target):
    dump(target, "image")
    restore_and_check(target, "image", 0)


def flavour_incremental(target):
    """pre-dump, then dump --prev; then the pre-dump's own image, which is of an earlier instant."""
    pre_dump(target, "first")
    target.step()
    dump(target, "last", "--prev", image(target, "first"))
    restore_and_check(target, "last", 1)
    restore_and_check(target, "first", 0)


def flavour_chain(target):
    pre_dump(target, "first")
    target.step()
    pre_dump(target, "second", "--prev", image(target, "first"))
    target.step()
    dump(target, "last", "--prev", image(target, "second"))
    restore_and_check(target, "last", 2)
    restore_and_check(target, "second", 1)


def flavour_rounds(target):
    """Copied ahead in rounds while it runs, both times; the delta is that of its write tracking."""
    pre_dump(target, "first", "--rounds", "2")
    target.step()
    dump(target, "last", "--rounds", "3")
    restore_and_check(target, "last", 1)
    restore_and_check(target, "first", 0)


def flavour_leave_running(target):
    """The original goes on and passes, also after a pre-dump; after its end the images are restored and pass, too."""
    for name, more in (("whole", []), ("first", None), ("delta", ["--prev", image(target, "first")])):
        if more is None:
            pre_dump(target, name)
            target.step()
            continue
        before = fingerprint(target.pid)
        ckpt("dump", "-p", target.pid, "-f", image(target, name), "-R", *flags_of(target), *more).expect(0)
        unharmed(target, before)
    target.check(1)
    restore_and_check(target, "whole", 0)
    restore_and_check(target, "delta", 1)


def flavour_twice(target):
    """Restored, killed, restored again; the second time it is dumped once more, which must be as good as the first."""
    dump(target, "image")
    restore(target, "image")
    target.kill()
    restore(target, "image")
    dump(target, "again")
    restore_and_check(target, "again", 0)


def flavour_pidns(target):
    """Restored in a pid namespace of its own, while a sleeper has taken its number outside: it sees the number it had."""
    dump(target, "image")
    target.forget_answers()
    pidfile = image(target, "pid")
    ckpt("restore", "-f", image(target, "image"), "-d", "--new-pidns", "--pidfile", pidfile).expect(0)
    with open(pidfile) as stream:
        outside = int(stream.read())
    target.check_apart(outside)


def as_copy(target):
    """Made as one of several copies would be: its memory comes from that which they share."""
    dump(target, "image")
    target.forget_answers()
    pidfile = image(target, "pid-{copy}")
    ckpt("restore", "-f", image(target, "image"), "-d", "--new-pidns", "--copies", "1", "--share-file", "*", "--pidfile", pidfile).expect(0)
    with open(image(target, "pid-1")) as stream:
        outside = int(stream.read())
    target.check_apart(outside)


def flavour_lazy(target):
    """Runs before its memory is in, and passes while the rest comes in."""
    dump(target, "image")
    restore(target, "image", "--lazy", "--lazy-log", image(target, "log"))
    target.check(0)


def flavour_lazy_chain(target):
    """From a chain of images; once all is in it is an ordinary process, which can be dumped."""
    pre_dump(target, "first")
    target.step()
    dump(target, "last", "--prev", image(target, "first"))
    restore(target, "last", "--lazy")
    wait_until(lambda: not being_filled(target.pid), f"all pages of {target.pid} are in")
    dump(target, "again")
    restore_and_check(target, "again", 1)


def rehearse(target, name):
    """Exit 0, and nothing that a look at the system could show has changed."""
    ckpt("verify", "--rehearse", image(target, name)).expect(0)


def flavour_rehearse(target):
    """The image is rehearsed beside the target, once while that runs and once while it stands still, and after its end."""
    steps = 0
    if target.program not in ONE_DUMP:
        before = fingerprint(target.pid)
        ckpt("dump", "-p", target.pid, "-f", image(target, "running"), "-R", "--rehearse", *flags_of(target)).expect(0)
        unharmed(target, before)
        target.step()
        steps = 1
    dump(target, "image", "--rehearse")
    rehearse(target, "image")
    restore_and_check(target, "image", steps)


# What a rehearsal finds in them, rightly: descriptors of terminals that close on exec, children whose end nobody is told.
NOT_AS_THEY_WERE = {"terminal_pair", "terminal_session", "tree_daemon", "tree_pid_namespaces", "tree_sessions"}


FLAVOURS = {name[len("flavour_"):]: body for name, body in sorted(globals().items()) if name.startswith("flavour_")}
# Not what every program can have: where it is asked for.
ASKED_FOR = {"copies": as_copy}


def run_flavour(name, flavour, arguments, folder):
    target = None
    try:
        target = Target(name, folder, *arguments)
        {**FLAVOURS, **ASKED_FOR}[flavour](target)
        return None
    except (Failure, OSError) as failure:
        log = f"\n  log: {target.log_tail()}" if target is not None and target.log_tail() else ""
        if target is not None:
            try:
                target.kill()
            except Failure as left:
                log += f"\n  {left}"
        return f"{flavour}: {failure}{log}"


def run_with_numbers_free(name, flavour, arguments, place):
    """Anew where the target's number went to a process of this machine that stays (tests run side by side, with others)."""
    for attempt in range(3):
        failure = run_flavour(name, flavour, arguments, place.folder(f"{flavour}{attempt or ''}"))
        if failure is None or "is taken by" not in failure:
            break
    return failure


HUGE_PAGES = "/proc/sys/vm/nr_hugepages"
HUGE_KIB = 2048


@contextlib.contextmanager
def huge_pages(count):
    """As many more as there are, reserved for the moment."""
    before = int(read_text(HUGE_PAGES) or -1)
    if before < 0 or f"Hugepagesize: {HUGE_KIB:>10} kB" not in read_text("/proc/meminfo"):
        raise Skip("this kernel has no huge pages of 2 MiB")
    if not os.access(HUGE_PAGES, os.W_OK):
        raise Skip(f"no right to reserve huge pages ({HUGE_PAGES})")
    try:
        with open(HUGE_PAGES, "w") as stream:
            stream.write(str(before + count))
        if int(read_text(HUGE_PAGES)) < before + count:
            raise Skip(f"there is no memory for {count} huge pages")
        yield
    finally:
        with open(HUGE_PAGES, "w") as stream:
            stream.write(str(before))


# What a dump of them looks for in the kernel's own memory.
HIDDEN = {"aio_busy", "aio_contexts", "fd_io_uring_eventfd", "sem_undo", "sock_errors"}
KERNEL_TYPES = "/sys/kernel/btf/vmlinux"

# Of each of its processes, and of what a rehearsal makes beside it.
NEEDED = {"mem_huge_pages": 2 * 8}


def run_flavours(name, flavours, arguments):
    if name in HIDDEN and not os.path.exists(KERNEL_TYPES) and flavours != ["alone"]:
        raise Skip(f"this kernel does not describe itself ({KERNEL_TYPES})")
    with contextlib.ExitStack() as stack:
        if name in NEEDED:
            stack.enter_context(huge_pages(NEEDED[name] * len(flavours)))
        return run_flavours_side_by_side(name, flavours, arguments)


def run_flavours_side_by_side(name, flavours, arguments):
    with Workplace(name) as place:
        with concurrent.futures.ThreadPoolExecutor(len(flavours)) as pool:
            failures = [f for f in pool.map(lambda flavour: run_with_numbers_free(name, flavour, arguments, place), flavours) if f]
        try:
            reap_strays()
        except Failure as left:
            failures.append(str(left))
    for failure in failures:
        print(f"FAIL {name}: {failure}", file=sys.stderr)
    print(f"{name}: {len(flavours)} flavours, {len(failures)} failures")
    return 1 if failures else 0


# Special tests: more than one target, or another standard stream than usual.

BLOCKED = {  # what to hold: a word that the message must have
    "connection": "--tcp-established", "aio": "in flight", "aio_forked": "another process's",
    "io_uring": "in flight (poll)", "io_uring_timeout": "in flight", "io_uring_polled": "IORING_SETUP_SQPOLL",
    "io_uring_changed": "other credentials", "io_uring_groups": "buffers in groups", "io_uring_number": "enters by a number",
    "io_uring_eventfd": "eventfd", "io_uring_closed": "no descriptor leads to",
    "sem_undo": "of its own", "sem_undo_shared": "CLONE_SYSVSEM", "hugetlb": "huge", "userfaultfd": "userfaultfd", "stranger": "a process outside",
    "thread_pidfd": "a pidfd of thread", "gone_process": "/proc/",
    "udp_cork": "still being put together", "sock_packet": "SOCK_PACKET", "packet_ring": "PACKET_RX_RING",
    "fanotify_unread": "has not read yet", "lease_broken": "holds a lease that somebody waits for",
    "pressure": "PSI", "notify": "F_NOTIFY", "capable_file": "security.capability", "unaccepted": "not been accepted yet", "reuseport": "SO_ATTACH_REUSEPORT", "zero_copy": "MSG_ZEROCOPY",
    "error_queue": "MSG_ERRQUEUE", "error": "has not been told yet", "stamp_numbers": "SOF_TIMESTAMPING_OPT_ID", "core_cookie": "PR_SCHED_CORE",
    "pid_namespace": "for its children", "time_namespace": "for its children", "thread_namespace": "another one than its process's",
}


# Shows only when the process stands still.
SHOWS_FROZEN = {"io_uring_timeout", "io_uring_number", "sem_undo", "sem_undo_shared"}


def each_refused(place, program, things):
    """Each thing is refused by name, exit 6, and the process goes on as it was. Yields it once it has been."""
    for thing, word in things.items():
        try:
            target = Target(program, place.folder(thing), thing)
        except Skip as lacking:
            print(f"{thing}: skipped, {lacking}")
            continue
        before = fingerprint(target.pid)
        try:
            for verb in (["dump"], ["dump", "-R"], ["pre-dump"]):
                # What may pass is waited for.
                said = ckpt(*verb, "-p", target.pid, "-f", image(target, "image"), "--timeout", "0.2").expect(6, word).err
                unharmed(target, before)
                if os.path.exists(image(target, "image")):
                    raise Failure(f"{' '.join(verb)} left an image")
                yield target, thing, word, said
            unharmed(target, before)
            target.check(0)
        except GeneratorExit:  # who asked has found a fault
            target.kill()
            raise
        except Failure as failure:
            target.kill()
            raise Failure(f"{thing}: {failure}") from failure


def special_blocked(place):
    """Each thing that is not supported is refused before anything is touched."""
    for target, thing, word, said in each_refused(place, "blocked", BLOCKED):
        first = [line for line in said.splitlines() if line.startswith(("  ", "ckpt: thread "))][0]
        if thing.startswith("io_uring") and word not in first:  # its mappings are no reason of their own
            raise Failure(f"{thing}: another reason is told first: {first.strip()}")
        if thing not in SHOWS_FROZEN:
            ckpt("check", "-p", target.pid).expect(1, word)


REFUSED = {  # as BLOCKED, but seen only while the process stands still, or in the image
    "dispatch": "PR_SET_SYSCALL_USER_DISPATCH", "segments": "modify_ldt", "clock": "PR_SET_TSC", "cpuid": "ARCH_SET_CPUID", "mdwe": "PR_SET_MDWE",
    "timer": "which has ended", "folder": "a working folder, root folder and umask of its own", "table": "a descriptor table of its own",
    "landlock": "Landlock", "landlock_thread": "Landlock", "landlock_user": "Landlock", "ports": "ioperm",
    "process_key": "its process's keyring", "thread_key": "its own keyring",
}


def special_refused(place):
    """What only a stopped process shows is refused, too."""
    for target, thing, word, _ in each_refused(place, "refused", REFUSED):
        if thing.startswith("landlock"):  # check reads the kernel's memory, where it may
            ckpt("check", "-p", target.pid).expect(1, word)


def special_blocked_list(place):
    """`check -p` lists all blockers at once, and none where there is none."""
    target = Target("blocked", place.folder("all"), "all")
    words = [BLOCKED[name] for name in ("connection", "stranger")]
    ckpt("check", "-p", target.pid).expect(1, *words)
    target.check(0)
    free = Target("blocked", place.folder("nothing"), "nothing")
    ckpt("check", "-p", free.pid).expect(0)
    free.check(0)


def special_sem_undo_waited(place):
    """Whoever waits outside for a semaphore that the end of the process would give back stands in the way, until he is gone."""
    target = Target("sem_undo_held", place.folder("held"))
    libc = ctypes.CDLL(None, use_errno=True)
    get_pid, get_waiting, semaphores, empty = 11, 14, 6, 5
    rows = [line.split() for line in read_text("/proc/sysvipc/sem").splitlines()[1:]]
    found = [int(row[1]) for row in rows if int(row[3]) == semaphores and libc.semctl(int(row[1]), 0, get_pid, 0) == target.pid]
    if len(found) != 1:
        raise Failure(f"the set of the target is not there: {found}")
    script = "import ctypes, struct, sys; ctypes.CDLL(None).semop(int(sys.argv[1]), struct.pack('hhh', 5, -1, 0), 1)"
    with subprocess.Popen([sys.executable, "-c", script, str(found[0])]) as waiter:
        try:
            wait_until(lambda: libc.semctl(found[0], empty, get_waiting, 0) == 1, "somebody waits for the semaphore")
            before = fingerprint(target.pid)
            ckpt("dump", "-p", target.pid, "-f", image(target, "image"), "--timeout", "0.2").expect(
                6, "for which a process outside waits")
            unharmed(target, before)
        finally:
            waiter.kill()
    dump(target, "image")
    restore_and_check(target, "image", 0)


def special_log_grew(place):
    """A log that the process was writing may have grown: that is said, and it goes on at its recorded offset."""
    target = Target("log_writer", place.folder("log"))
    log = os.path.join(target.folder, "log")
    pre_dump(target, "first")
    target.step()
    dump(target, "last", "--prev", image(target, "first"))
    restore_and_check(target, "last", 1)
    target.forget_answers()
    ckpt("restore", "-f", image(target, "first"), "-d").expect(0, "log")
    target.adopt()
    target.check(0)
    with open(log) as stream:
        if stream.read() != "start\nend\n 1\nend\n":
            raise Failure("the log does not go on at the recorded offset")


def special_rounds(place):
    """Rounds without number end by themselves against writers at full speed; what does not fit into memory goes through; a
    snapshot that gets too dear stops the target, and says so."""
    target = Target("mem_writer", place.folder("rounds"))

    def capture(verb, name, *flags):
        out = ckpt(verb, "-p", target.pid, "-f", image(target, name), "--json", *flags)
        out.expect(0)
        unharmed(target, before)
        return out.document(), out.err

    before = fingerprint(target.pid)
    report, _ = capture("pre-dump", "auto", "--downtime-goal", "0.01", "--max-rounds", "5")
    if not 1 <= len(report["rounds"]) <= 5 or report["stops_us"] == 0:
        raise Failure(f"rounds {report['rounds']}, stops {report['stops_us']}")
    report, _ = capture("dump", "small", "-R", "--max-memory", "1M", "--rounds", "0")
    if report["rounds"]:
        raise Failure("--rounds 0 copied ahead")
    # A writer rewrites 4 MiB in a moment, which is more than the snapshot may cost; where that is over first, there is no need to stop.
    for attempt in range(20):
        report, said = capture("pre-dump", f"cow{attempt}", "--rounds", "0", "--max-cow", "64K")
        if "--max-cow" in said:
            break
    else:
        raise Failure("a snapshot past --max-cow did not stop the target")
    folder, staging = os.path.split(image(target, "long"))
    with subprocess.Popen([CKPT, "pre-dump", "-p", str(target.pid), "-f", image(target, "long"), "--rounds", "1000"],
                          stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as first:
        wait_until(lambda: any(name.startswith(f".ckpt-staging-{staging}") for name in os.listdir(folder)), "a long capture goes on")
        for verb in (["dump", "-R"], ["pre-dump"]):
            for _ in range(50):  # while the first holds the target by ptrace, that is what the second sees
                second = ckpt(*verb, "-p", target.pid, "-f", image(target, "second"))
                if second.code != 6 or "is traced by" not in second.err:
                    break
            second.expect(7, "another ckpt")
        first.send_signal(signal.SIGINT)
    if first.returncode != 130 or os.path.exists(image(target, "long")):
        raise Failure(f"interrupted in the middle of its rounds: exit {first.returncode}")
    unharmed(target, before)
    for rounds in ("two", "-1", "1001", ""):
        ckpt("dump", "-p", target.pid, "-f", image(target, "no"), f"--rounds={rounds}").expect(2)
    target.check(0)
    for name in ("auto", "small", f"cow{attempt}"):
        restore_and_check(target, name, 0)


def special_group_stop(place):
    """A process in group-stop stays stopped: after pre-dump and dump -R, and after a restore until it is continued."""
    target = Target("mem_anonymous", place.folder("stop"))

    def state():
        with open(f"/proc/{target.pid}/stat") as stream:
            return stream.read().rpartition(")")[2].split()[0]
    os.kill(target.pid, signal.SIGSTOP)
    wait_until(lambda: state() == "T", "the target stops", 5)
    ckpt("pre-dump", "-p", target.pid, "-f", image(target, "first")).expect(0)
    wait_until(lambda: state() == "T", "the target is stopped after pre-dump", 5)
    ckpt("dump", "-p", target.pid, "-f", image(target, "last"), "--prev", image(target, "first")).expect(0)
    target.reap()
    restore(target, "last")
    wait_until(lambda: state() == "T", "the restored target is stopped", 5)
    os.kill(target.pid, signal.SIGCONT)
    target.check(0)


def special_squash(place):
    """A chain made into one image is restored when the chain is gone; before that rm takes no image that another needs."""
    for program in ("mem_adversary", "pipes", "tree_children"):
        target = Target(program, place.folder(program))
        first, last, one = (image(target, name) for name in ("first", "last", "one"))
        pre_dump(target, "first")
        target.step()
        dump(target, "last", "--prev", first)
        ckpt("rm", first).expect(2, last)
        ckpt("squash", "-n", last, one).expect(0)
        ckpt("squash", last, last, "--force").expect(2)
        ckpt("squash", last, one).expect(0)
        ckpt("rm", "-n", "--chain", last).expect(0, first)
        ckpt("rm", "--chain", last).expect(0)
        for name in (first, last):
            if os.path.exists(name):
                raise Failure(f"{name} is still there")
        ckpt("verify", one).expect(0)
        restore_and_check(target, "one", 1)


def special_shell_job(place):
    """A terminal and a pipe from outside the tree are refused, unless --shell-job hands over the restorer's own."""
    leader, follower = pty.openpty()
    attributes = termios.tcgetattr(follower)
    reader, writer = os.pipe()
    target = Target("blocked", place.folder("shell"), "nothing", stdin=follower, stdout=writer)
    ckpt("dump", "-p", target.pid, "-f", image(target, "image")).expect(6)
    ckpt("dump", "-p", target.pid, "-f", image(target, "image"), "--shell-job").expect(0)
    target.reap()
    for fd in (leader, follower, reader, writer):
        os.close(fd)
    ckpt("restore", "-f", image(target, "image"), "-d").expect(2, "--shell-job")
    leader, follower = pty.openpty()
    termios.tcsetattr(follower, termios.TCSANOW, attributes)
    reader, writer = os.pipe()
    import subprocess
    from harness import CKPT
    target.forget_answers()
    done = subprocess.run([CKPT, "restore", "-f", image(target, "image"), "-d", "--shell-job"], stdin=follower,
                          stdout=writer, stderr=subprocess.PIPE, timeout=30, check=False)
    if done.returncode != 0:
        raise Failure(f"restore --shell-job: exit {done.returncode}\n{done.stderr.decode()}")
    target.adopt()
    if os.readlink(f"/proc/{target.pid}/fd/0") != os.ttyname(follower):
        raise Failure("stdin is not the terminal of the restorer")
    if os.fstat(writer).st_ino != os.stat(f"/proc/{target.pid}/fd/1").st_ino:
        raise Failure("stdout is not the pipe of the restorer")
    target.check(0)


def special_external_pipes(place):
    """A pipe from outside the tree is /dev/null after a restore, where the dump says so or the restore."""
    for at_dump, at_restore in ((["--external-pipes", "null"], []), (["--external-pipes", "keep"], ["--external-pipes", "null"])):
        reader, writer = os.pipe()
        target = Target("blocked", place.folder(f"pipes{len(at_restore)}"), "nothing", stdout=writer)
        said = ckpt("dump", "-p", target.pid, "-f", image(target, "image")).expect(6, "held by", "--external-pipes null").err
        if str(os.getpid()) not in said:
            raise Failure(f"does not say who has the other end: {said}")
        ckpt("check", "-p", target.pid).expect(1)
        ckpt("check", "-p", target.pid, *at_dump).expect(0)
        ckpt("dump", "-p", target.pid, "-f", image(target, "image"), *at_dump).expect(0)
        target.reap()
        os.close(reader)
        os.close(writer)
        target.forget_answers()
        if at_restore:
            ckpt("restore", "-f", image(target, "image"), "-d").expect(2, "--external-pipes null")
        ckpt_restore("-f", image(target, "image"), "-d", *at_restore).expect(0)
        target.adopt()
        if os.readlink(f"/proc/{target.pid}/fd/1") != "/dev/null":
            raise Failure(f"standard output is {os.readlink(f'/proc/{target.pid}/fd/1')}")
        target.check(0)


def special_external_memory(place):
    """What a process outside the tree has, too, is refused by name, or copied if that is asked for; in a tree with both it is no obstacle."""
    kinds = ("anonymous", "memfd", "mapped_memfd", "deleted", "eventfd", "timerfd", "epoll", "sealed_memfd", "nothing")
    for kind in kinds:
        target = Target("shared_outside", place.folder(kind), kind)
        child = int(read_text(os.path.join(target.folder, "child")))
        if kind in ("sealed_memfd", "nothing"):
            ckpt("dump", "-p", child, "-f", image(target, "child"), "-R").expect(0)
        else:
            before = fingerprint(child)
            ckpt("dump", "-p", child, "-f", image(target, "child"), "-R").expect(
                6, f"{target.pid} (target_shared_o), outside the tree, has too", "--external-memory copy", "dump the tree from that process on")
            found = list(differences(before, fingerprint(child)))
            if found:
                raise Failure("the target was altered: " + "; ".join(found))
            ckpt("check", "-p", child).expect(1, "--external-memory copy")
            ckpt("check", "-p", child, "--external-memory", "copy").expect(0)
            ckpt("dump", "-p", child, "-f", image(target, "child"), "-R", "--external-memory", "copy").expect(0, "a restore makes a copy")
        ckpt("dump", "-p", target.pid, "-f", image(target, "all"), "-R").expect(0)
        target.check(0)


def special_external_pipe_watched(place):
    """/dev/null cannot be watched by epoll: refused by name, at the dump or at the restore, whichever would make it so."""
    reader, writer = os.pipe()
    target = Target("blocked", place.folder("watched"), "watched_output", stdout=writer)
    before = fingerprint(target.pid)
    ckpt("dump", "-p", target.pid, "-f", image(target, "image"), "--external-pipes", "null").expect(6, "an epoll set watches")
    unharmed(target, before)
    ckpt("dump", "-p", target.pid, "-f", image(target, "image"), "--external-pipes", "keep").expect(0)
    target.reap()
    for more in ([], ["-n"]):
        ckpt("restore", "-f", image(target, "image"), "-d", "--external-pipes", "null", *more).expect(6, "an epoll set watches")
    os.close(reader)
    os.close(writer)


def special_roots_keyring(place):
    """Root's session keyring is not that of a user's process which it restores."""
    libc = ctypes.CDLL(None, use_errno=True)

    def take_key():
        """Runs in the child that becomes ckpt."""
        add_key, keyctl, session, join = 248, 250, -3, 1
        if libc.syscall(keyctl, join, None) < 0 or libc.syscall(add_key, b"user", b"ckpt-test-key", b"secret", 6, session) < 0:
            os._exit(77)

    target = Target("keyring", place.folder("keyring"))
    dump(target, "image")
    target.forget_answers()
    done = ckpt_restore("-f", image(target, "image"), "-d", preexec_fn=take_key)
    if done.code == 77:
        raise Skip("no keys may be made here")
    done.expect(0)
    target.adopt()
    target.check(0)


def special_session_keys(place):
    """A dump says that the keys of another session than ckpt's do not go along, and is silent where there are none."""
    said = "its session's keyring has a key of its own"
    for thing, has_key in (("session_key", True), ("nothing", False)):
        target = Target("blocked", place.folder(thing), thing)
        err = ckpt("dump", "-R", "-p", target.pid, "-f", image(target, "image")).expect(0).err
        if (said in err) != has_key:
            raise Failure(f"{thing}: {err}")
        target.check(0)


def see_outsider(user, seen):
    """What the user `user` may read of the process that ckpt makes for its question about Landlock, once there is one."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid != user or not read_text(f"/proc/{pid}/cmdline").startswith("ckpt-outsider"):
                continue
            descriptors = [os.readlink(f"/proc/{pid}/fd/{fd}").partition(":")[0] for fd in os.listdir(f"/proc/{pid}/fd")]
            groups = re.search(r"^Groups:[ \t]*(.*?)[ \t]*$", read_text(f"/proc/{pid}/status"), re.M).group(1)
            if not any(".so" in name for name in descriptors):  # its libraries are being loaded
                seen.append((read_text(f"/proc/{pid}/environ"), sorted(descriptors), groups, os.readlink(f"/proc/{pid}/cwd")))


def special_outsider(place):
    """Nothing of ckpt's is in the process that the target's user may look into."""
    user, seen, over, folder = 65534, [], threading.Event(), place.folder("images")
    create_ruleset, version = 444, 1
    if ctypes.CDLL(None).syscall(create_ruleset, None, 0, version) < 1:
        raise Skip("this kernel has no Landlock")

    def look():
        while not over.wait(0.001):
            see_outsider(user, seen)

    process = subprocess.Popen(["sleep", "1000"], user=user, group=user, extra_groups=[], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")
    watcher = threading.Thread(target=look)
    os.environ["CKPT_TEST_SECRET"] = "secret"
    try:
        watcher.start()
        for attempt in range(50):
            if not seen:
                ckpt("dump", "-R", "-p", process.pid, "-f", os.path.join(folder, str(attempt))).expect(0)
    finally:
        over.set()
        watcher.join()
        process.kill()
        process.wait()
        del os.environ["CKPT_TEST_SECRET"]
    if not seen:
        raise Failure("there is no such process")
    for environment, descriptors, groups, folder in seen:
        if environment or set(descriptors) - {"/dev/null", "pipe"} or groups or folder != "/":
            raise Failure(f"something of ckpt's is in it: {seen}")


CONNECTING = """
import select, socket, sys
connection, to = socket.socket(), ("127.0.0.1", int(sys.argv[1]))
if sys.argv[2] == "polls":
    connection.setblocking(False)
    connection.connect_ex(to)
    select.select([], [connection], [])
    connection.setblocking(True)
else:
    connection.connect(to)
connection.sendall(b"%d" % connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
"""


def special_tcp_connecting(place):
    """A connection that nobody has answered yet is asked for again, from the same port, whoever waits for it and how."""
    def asking(port):
        """Ports that have sent a SYN to this one."""
        lines = [line.split() for line in read_text("/proc/net/tcp").splitlines()[1:]]
        return [int(line[1].split(":")[1], 16) for line in lines if line[2] == f"0100007F:{port:04X}" and line[3] == "02"]

    for how in ("waits", "polls"):
        with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, contextlib.ExitStack() as filling:
            port = listener.getsockname()[1]
            while not asking(port):
                one = filling.enter_context(socket.socket())
                one.setblocking(False)
                one.connect_ex(("127.0.0.1", port))
                select.select([], [one], [], 0.2)
            filling.close()  # who has asked in vain is gone; the others wait in the queue
            target = subprocess.Popen([sys.executable, "-c", CONNECTING, str(port), how], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                      stderr=subprocess.DEVNULL, start_new_session=True)
            try:
                wait_until(lambda: asking(port), "it asks for a connection")
                own, folder = asking(port), place.folder(how)
                ckpt("check", "-p", target.pid).expect(0)
                ckpt("dump", "-p", target.pid, "-f", f"{folder}/running", "-R").expect(0)
                ckpt("dump", "-p", target.pid, "-f", f"{folder}/image").expect(0, "ended")
                target.wait()
                ckpt_restore("-f", f"{folder}/image", "-d").expect(0)
                if asking(port) != own:
                    raise Failure(f"{how}: asked from {own}, and now from {asking(port)}")
                listener.settimeout(20)
                said = b""
                while not said:
                    with listener.accept()[0] as connection:
                        said = connection.recv(10)
                if said != b"0":
                    raise Failure(f"{how}: the connection has the error {said}")
                wait_until(lambda: not exists_unreaped(target.pid), "it ends")
            finally:
                if exists_unreaped(target.pid):
                    os.kill(target.pid, signal.SIGKILL)
                target.wait()


def special_epoll_unready(place):
    """A one-shot watch that had fired, and cannot be made to fire again, is said by name."""
    target = Target("epoll_fired", place.folder("unready"), "unready")
    dump(target, "image")
    target.forget_answers()
    said = ckpt_restore("-f", image(target, "image"), "-d").expect(0, "a one-shot watch of an epoll set that had fired").err
    if said.count("one-shot watch") != 1:
        raise Failure(f"says more than it has to: {said}")
    target.adopt()
    target.check(0)


def special_lock_limit(place):
    """Locked memory comes back locked, whatever limit ckpt itself has; where it may not raise that, it is said."""
    target = Target("mem_locked_tight", place.folder("limit"))
    dump(target, "image")
    for may_raise in (False, True):
        hard = 262144 if may_raise else 65536
        target.forget_answers()
        done = subprocess.run(["prlimit", f"--memlock=65536:{hard}", "setpriv", "--bounding-set=-ipc_lock,-sys_resource", CKPT, "restore", "-f", image(target, "image"), "-d"],
                              capture_output=True, text=True, timeout=TIMEOUT, check=False)
        if not may_raise:
            if done.returncode == 0 and "is not locked" not in done.stderr:
                raise Failure(f"memory that is not locked, without a word: {done.stderr}")
            if done.returncode == 0:
                target.adopt()
                target.kill()
            continue
        if done.returncode != 0:
            raise Failure(f"exit {done.returncode}: {done.stderr}")
        target.adopt()
        target.check(0)


def special_actions(place):
    """Action scripts run at their points, are told what it is about, and can stop what has not happened yet."""
    target = Target("tree_children", place.folder("actions"))
    seen, script = image(target, "seen"), image(target, "script")
    with open(script, "w") as stream:
        stream.write(f'#!/bin/sh\necho "$CKPT_ACTION $CKPT_PID" >>{seen}\ntest "$CKPT_ACTION" != "$FAIL_AT"\n')
    os.chmod(script, 0o755)
    scripted = ["--action-script", script]

    def expect_seen(*actions):
        with open(seen) as stream:
            if stream.read() != "".join(f"{action} {target.pid}\n" for action in actions):
                raise Failure(f"not the actions {actions}")
        os.unlink(seen)

    before = fingerprint(target.pid)
    for point, left in (("pre-dump", False), ("post-dump", True)):
        os.environ["FAIL_AT"] = point
        ckpt("dump", "-p", target.pid, "-f", image(target, point), *scripted).expect(1, "action script")
        unharmed(target, before)
        if os.path.exists(image(target, point)) != left:
            raise Failure(f"the image of a dump that failed at {point}")
        expect_seen("pre-dump", *(["post-dump"] if left else []))
    del os.environ["FAIL_AT"]
    ckpt("pre-dump", "-p", target.pid, "-f", image(target, "first"), *scripted).expect(0)
    expect_seen("pre-dump", "post-dump")
    dump(target, "image", *scripted)
    expect_seen("pre-dump", "post-dump")
    for point in ("pre-restore", "post-restore"):
        os.environ["FAIL_AT"] = point
        ckpt("restore", "-f", image(target, "image"), "-d", *scripted).expect(1, "action script")
        if os.path.exists(f"/proc/{target.pid}"):
            raise Failure(f"a restore that failed at {point} left a process")
    del os.environ["FAIL_AT"]
    os.unlink(seen)
    restore(target, "image", *scripted)
    expect_seen("pre-restore", "post-restore", "post-resume")
    target.check(0)


def special_status(place):
    """The status descriptor tells when the processes run."""
    import subprocess
    from harness import CKPT
    target = Target("mem_anonymous", place.folder("status"))
    dump(target, "image")
    target.forget_answers()
    reader, writer = os.pipe()
    done = subprocess.run([CKPT, "restore", "-f", image(target, "image"), "-d", "--status-fd", str(writer)], pass_fds=[writer],
                          timeout=30, check=False)
    os.close(writer)
    if done.returncode != 0 or os.read(reader, 10) != b"\0" or os.read(reader, 10) != b"":
        raise Failure(f"exit {done.returncode}, or not one zero byte")
    target.adopt()
    target.check(0)


def special_busy_poll(place):
    """What no call tells, a second dump finds in the kernel's memory as the first one did."""
    if not os.path.exists(KERNEL_TYPES):
        raise Skip(f"this kernel does not describe itself ({KERNEL_TYPES})")
    target = Target("sock_options", place.folder("budget"))
    for name in ("first", "second"):
        dump(target, name)
        if "SO_BUSY_POLL_BUDGET" not in read_text(os.path.join(image(target, name), "manifest.json")):
            raise Failure(f"the {name} image has no budget")
        restore(target, name)
    target.check(0)


def proportional_kib(tree):
    """What a tree has in memory, each page counted once."""
    total = 0
    for pid in tree:
        with open(f"/proc/{pid}/smaps_rollup") as stream:
            total += next(int(line.split()[1]) for line in stream if line.startswith("Pss:"))
    return total


def special_sharing(place):
    """What processes share since a fork is copied and stored once, and shared again by those that are restored."""
    for children in (1, 6, 64):
        target = Target("mem_forked", place.folder(f"shared{children}"), str(children))
        before = proportional_kib(target.tree())
        tree = target.tree()
        out = ckpt("dump", "-p", target.pid, "-f", image(target, "image"), "--json")
        out.expect(0)
        target.reap(tree)
        stored = out.document()["bytes_written"] // 1024
        restore(target, "image")
        after = proportional_kib(target.tree())
        if after > before * 1.1:
            raise Failure(f"{children} children: {before} KiB in memory before, {after} after")
        if stored > before * 1.5:  # blocks of 64 KiB in which a page differs are stored anew
            raise Failure(f"{children} children: {before} KiB in memory, {stored} stored")
        target.check(0)


def special_huge_room(place):
    """Whether there are enough huge pages is told before anything is made."""
    with huge_pages(NEEDED["mem_huge_pages"]):
        target = Target("mem_huge_pages", place.folder("huge"))
        dump(target, "image")
    pool = f"/sys/kernel/mm/hugepages/hugepages-{HUGE_KIB}kB"
    free, reserved, more = (int(read_text(f"{pool}/{name}_hugepages") or 0) for name in ("free", "resv", "nr_overcommit"))
    if free - reserved + more >= NEEDED["mem_huge_pages"]:
        raise Skip("this machine has enough huge pages anyway")
    target.forget_answers()
    for more in (["-n"], []):
        ckpt("restore", "-f", image(target, "image"), "-d", *more).expect(9, "huge pages of 2.00 MiB are needed")
    if exists_unreaped(target.pid):
        raise Failure("something was made")
    with huge_pages(NEEDED["mem_huge_pages"]):
        restore_and_check(target, "image", 0)


def special_undisturbed(place, captures=1000 if LONG else 6):
    """Images of a program that runs at full speed, one after the other: it goes on as if nobody had looked."""
    target = Target("undisturbed", place.folder("live"))
    for i in range(captures):
        done = ckpt("pre-dump", "-p", target.pid, "-f", image(target, "image"), *(["--rounds", "1"] if i % 4 == 0 else []))
        if os.path.exists(os.path.join(target.folder, "result")):
            break
        done.expect(0)
        shutil.rmtree(image(target, "image"))
    target.check(0)


class DetachedTarget(Target):
    """One whose session was begun by a process that has ended, stays as a zombie, or lives on: a job, as a shell or ssh starts it."""

    def __init__(self, program, folder, leader):
        self.program, self.steps, self.popen = program, 0, None
        self.folder, self.log = os.path.join(folder, "work"), os.path.join(folder, "log")
        os.makedirs(self.folder)
        reader, writer = os.pipe()
        self.leader = os.fork()
        if self.leader == 0:
            os.setsid()
            pid = os.fork()
            if pid == 0:
                null, log = os.open(os.devnull, os.O_RDONLY), os.open(self.log, os.O_WRONLY | os.O_CREAT)
                for fd, to in ((null, 0), (log, 1), (log, 2)):
                    os.dup2(fd, to)
                os.closerange(3, 256)
                os.execv(os.path.join(TARGETS, f"target_{program}"), [program, self.folder])
            os.write(writer, str(pid).encode())
            while leader == "lives":
                try:
                    os.wait()
                except ChildProcessError:
                    time.sleep(0.05)
            os._exit(0)
        self.pid = int(os.read(reader, 16))
        os.close(reader), os.close(writer)
        if leader == "ended":
            os.waitpid(self.leader, 0)
        self.alive = True
        wait_until(lambda: self._exists("ready"), "a detached target is ready")
        self.number = self._read("ready").split()[1]

    def end_leader(self):
        os.kill(self.leader, signal.SIGKILL)
        os.waitpid(self.leader, 0)


def special_sessions(place):
    """A job whose session's leader is not of its tree comes back in its session; where that number is not free, in one of its own."""
    for leader in ("ended", "zombie", "lives", "ends later"):
        target = DetachedTarget("tree_children", place.folder(leader.replace(" ", "_")), "lives" if leader == "ends later" else leader)
        dump(target, "image")
        if leader == "ends later":
            target.end_leader()
        ckpt("restore", "-n", "-f", image(target, "image")).expect(0)
        restored = ckpt_restore("-f", image(target, "image"), "-d").expect(0)
        target.adopt()
        session = session_of(target.pid)
        if leader in ("ended", "ends later"):
            if session != target.leader or "session or process group" in restored.err:
                raise Failure(f"leader {leader}: in session {session}, not {target.leader}\n{restored.err}")
        elif session in (target.leader, os.getsid(0)) or "session or process group" not in restored.err:
            raise Failure(f"leader {leader}: in session {session}, told: {restored.err}")
        target.forget_answers()
        target.check(0)
        if leader in ("zombie", "lives"):
            target.end_leader()


def daemons_of(target):
    """The tracking daemons that hold its pidfd."""
    def holds(pid):
        return any(f"\nPid:\t{target.pid}\n" in read_text(path) for path in glob.glob(f"/proc/{pid}/fdinfo/*"))
    return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and read_text(f"/proc/{pid}/comm") == "ckpt-tracking\n" and holds(pid)]


LAST_PID = "/proc/sys/kernel/ns_last_pid"
RESERVED_PIDS = 300


def far_from(last):
    """The number that a helper which stays takes (lib/proc/fork_far_away.cpp), where it is free."""
    numbers = int(read_text("/proc/sys/kernel/pid_max")) - RESERVED_PIDS
    return RESERVED_PIDS + (last - RESERVED_PIDS + numbers // 2) % numbers


@contextlib.contextmanager
def last_pid(number):
    """The numbers of others go on where they were."""
    before = read_text(LAST_PID)
    with open(LAST_PID, "w") as stream:
        stream.write(str(number))
    try:
        yield
    finally:
        with open(LAST_PID, "w") as stream:
            stream.write(before)


def target_far_away(place):
    for attempt in range(20):
        number = far_from(int(read_text(LAST_PID)))
        with last_pid(number - 1):
            target = Target("mem_anonymous", place.folder(f"other-{attempt}"))
        if target.pid == number:
            return target
        target.kill()
    raise Skip("the number is always taken by others")


def special_daemon_moves(place):
    """A tracking daemon is out of the way of the next processes; where a restore needs its number all the same, it goes elsewhere, and
    still knows what its process wrote."""
    other = target_far_away(place)
    tracked = Target("mem_anonymous", place.folder("tracked"))
    dump(other, "image")
    pre_dump(tracked, "first")
    for _ in range(100):  # the daemons of others come and go there, too
        wait_until(lambda: len(daemons_of(tracked)) == 1, "one tracking daemon")
        daemon, = daemons_of(tracked)
        if daemon == other.pid:
            break
        if abs(daemon - int(read_text(LAST_PID))) < 1000:
            raise Failure(f"daemon {daemon} is in the way of processes to come")
        with last_pid(far_from(other.pid)):  # half the range away twice is where it was, or next to it
            os.kill(daemon, signal.SIGUSR1)
            wait_until(lambda: not exists_unreaped(daemon), "the daemon moves")
    else:
        other.kill()
        tracked.kill()
        raise Skip("the number is always taken by others")
    reaper = threading.Thread(target=os.waitpid, args=(other.pid, 0))  # as init does for such daemons
    reaper.start()
    restore_and_check(other, "image", 0)
    reaper.join()
    report = ckpt("dump", "-p", tracked.pid, "-f", image(tracked, "last"), "--json")
    report.expect(0)
    tracked.reap()
    if not report.document()["parent"]:
        raise Failure("the tracking is lost")
    restore_and_check(tracked, "last", 0)


def special_pidns_again(place):
    """What was restored in a pid namespace of its own is looked at and dumped from outside, by its number there."""
    target = Target("mem_anonymous", place.folder("apart"))
    dump(target, "image")
    target.forget_answers()
    pidfile = image(target, "pid")
    ckpt("restore", "-f", image(target, "image"), "-d", "--new-pidns", "--pidfile", pidfile).expect(0)
    outside = int(read_text(pidfile))
    first = parent_outside(outside)
    ckpt("check", "-p", outside).expect(0)
    ckpt("pre-dump", "-p", outside, "-f", "before", cwd=place.path).expect(0)
    ckpt("dump", "-p", outside, "-f", image(target, "again")).expect(0)
    wait_until(lambda: not exists_unreaped(first), "its pid namespace ends")
    restore_and_check(target, "again", 0)
    if not os.path.exists(os.path.join(place.path, "before", "manifest.json")):
        raise Failure("the image is not where ckpt was told to make it")


def special_init(place):
    """The init of ckpt's own pid namespace, which nobody inside can end, is refused before anything is touched; an image of it may be taken."""
    del place
    folder = tempfile.mkdtemp(prefix="ckpt-init-")
    apart = subprocess.Popen(["unshare", "-pfm", "--mount-proc", "--kill-child", "sleep", "60"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
    try:
        children = f"/proc/{apart.pid}/task/{apart.pid}/children"
        wait_until(lambda: read_text(children).strip(), "number 1 of the namespace is there")
        init = read_text(children).strip()
        wait_until(lambda: read_text(f"/proc/{init}/comm").strip() == "sleep", "it is what it is to be")
        # As by docker exec: what comes in from outside is no child of number 1.
        done = subprocess.run(["nsenter", "-t", init, "-p", "-m", "sh", "-c",
                               'cd "$1"; for verb in check "dump -f a" "dump -s -f a" "dump -R -f b"; do "$0" $verb -p 1; echo "$verb: $?"; done', CKPT, folder],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    finally:
        apart.kill()
        apart.wait()
    shutil.rmtree(folder, ignore_errors=True)
    for word in ("check: 1", "dump -f a: 6", "dump -s -f a: 6", "dump -R -f b: 0"):
        if word not in done.stdout:
            raise Failure(f"not '{word}': {done.stdout}{done.stderr}")


def special_old_code(place):
    """32-bit code is refused before it is stopped, and check says so."""
    code = bytes.fromhex("b81d000000cd80ebf7")  # mov $29 (pause), %eax; int $0x80; jmp
    head = struct.pack("<4sBBBB8x HHIIIIIHHHHHH", b"\x7fELF", 1, 1, 1, 0, 2, 3, 1, 0x8048054, 52, 0, 0, 52, 32, 1, 0, 0, 0)
    body = struct.pack("<8I", 1, 0, 0x8048000, 0x8048000, 84 + len(code), 84 + len(code), 5, 4096)
    program = os.path.join(place.folder("old"), "program")
    with open(program, "wb") as stream:
        stream.write(head + body + code)
    os.chmod(program, 0o755)
    try:
        process = subprocess.Popen([program], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError as error:
        raise Skip(f"no 32-bit programs here: {error}") from error
    with process:
        time.sleep(0.1)
        if process.poll() is not None:
            raise Skip("no 32-bit programs here")
        try:
            ckpt("check", "-p", process.pid).expect(1, "32-bit")
            ckpt("pre-dump", "-p", process.pid, "-f", program + ".image").expect(6, "32-bit")
            check_released(process.pid)
        finally:
            process.kill()


SPECIALS = {name[len("special_"):]: body for name, body in sorted(globals().items()) if name.startswith("special_")}


def run_special(name, *more):
    with Workplace(name) as place:
        try:
            SPECIALS[name](place, *more)
            reap_strays()
        except Skip as lacking:
            print(f"skipped {name}: {lacking}")
            reap_strays(0.1)
            return SKIPPED
        except Failure as failure:
            print(f"FAIL {name}: {failure}", file=sys.stderr)
            try:
                reap_strays(0.1)
            except Failure:
                pass
            return 1
    print(f"{name}: passed")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?")
    parser.add_argument("--flavours")
    parser.add_argument("--special", choices=SPECIALS)
    parser.add_argument("--arguments", nargs="*", default=[])
    parser.add_argument("--captures", type=int, help="how often the undisturbed target is looked at")
    options = parser.parse_args()
    become_subreaper()
    if options.special:
        return run_special(options.special, *([options.captures] if options.captures else []))
    flavours = options.flavours.split(",") if options.flavours else list(FLAVOURS)
    if options.name in ONE_DUMP and not options.flavours:
        flavours = [flavour for flavour in flavours if flavour not in ("chain", "incremental", "lazy_chain", "leave_running", "rounds", "twice")]
    if options.name in NOT_AS_THEY_WERE and not options.flavours:
        flavours.remove("rehearse")
    if options.name in INTERRUPTED_BY_STOP and not options.flavours:
        flavours.remove("stopped")
    try:
        return run_flavours(options.name, flavours, options.arguments)
    except Skip as lacking:
        print(f"skipped {options.name}: {lacking}")
        return SKIPPED


if __name__ == "__main__":
    sys.exit(main())
