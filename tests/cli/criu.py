#!/usr/bin/env python3
"""ckpt in criu's place: the command lines that criu's users type, and the RPC that container runtimes speak."""
import ctypes
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from prompt import CKPT, main
from criu_rpc import (CHECK, DUMP, FEATURE_CHECK, PAGE_SERVER, PRE_DUMP, RESTORE, SINGLE_PRE_DUMP, VERSION, WAIT_PID, Swrk, decode, encode, folder,
                      options)

SKIPPED = 77
COUNTER = r"""
import os, time
number, file = 0, os.open("count", os.O_RDWR | os.O_CREAT, 0o600)
memory = bytearray(os.urandom(1 << 20))
total = sum(memory)
while sum(memory) == total:
    number += 1
    os.pwrite(file, b"%9d" % number, 0)
    time.sleep(0.005)
"""


class Target:
    """Counts into a file for as long as its memory is what it was."""

    def __init__(self, **streams):
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **streams}
        self.process = subprocess.Popen(["/usr/bin/python3", "-c", COUNTER], start_new_session=True, **streams)
        self.pid = self.process.pid
        self.goes_on()

    def count(self):
        try:
            with open("count", encoding="ascii") as stream:
                return int(stream.read() or 0)
        except FileNotFoundError:
            return 0

    def goes_on(self):
        before = self.count()
        for _ in range(2000):
            if self.count() > before + 3:
                return True
            time.sleep(0.005)
        return False

    def runs(self):
        try:
            with open(f"/proc/{self.pid}/stat", encoding="ascii") as stream:
                return stream.read().rpartition(")")[2].split()[0] != "Z"
        except (FileNotFoundError, ProcessLookupError):
            return False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.reap()

    def reap(self):
        for _ in range(1000):
            try:
                if os.waitpid(self.pid, os.WNOHANG)[0] == self.pid:
                    return
            except ChildProcessError:
                return
            time.sleep(0.005)


def criu(*words, code=0, **keywords):
    """Runs it by criu's name; what is not as expected is an AssertionError."""
    if not os.path.islink("criu"):
        os.symlink(CKPT, "criu")
    result = subprocess.run(["./criu", *map(str, words)], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=60,
                            env={"PATH": os.environ["PATH"], "HOME": os.getcwd()}, check=False, **keywords)
    if result.returncode != code:
        raise AssertionError(f"criu {' '.join(map(str, words))}: exit {result.returncode}, expected {code}: {result.stderr}")
    return result


def text(path):
    with open(path, encoding="utf-8") as stream:
        return stream.read()


def magic_of(path, words):
    """The first words of a file of criu's, and its message."""
    with open(path, "rb") as stream:
        data = stream.read()
    found = struct.unpack_from(f"<{words + 1}I", data)
    body = data[4 * (words + 1):]
    return found[:words], decode(body) if len(body) == found[words] else None


def versions_and_checks():
    if not re.fullmatch(r"Version: \d+\.\d+(\.\d+)?\nckpt .*\n", criu("--version").stdout):
        yield f"--version prints {criu('-V').stdout!r}"
    behind = subprocess.run([CKPT, "criu", "--version"], text=True, stdout=subprocess.PIPE, check=True)
    if behind.stdout != criu("-V").stdout:
        yield f"ckpt criu --version prints {behind.stdout!r}"
    if criu("check").stdout != "Looks good.\n":
        yield "check does not look good"
    criu("check", "--feature", "mem_dirty_track")
    criu("check", "--all")
    criu("check", "--feature", "no_such_feature", code=1)


def the_usual_lines_work():
    for name in ("pre", "now", "work"):
        os.mkdir(name)
    with Target() as target:
        criu("pre-dump", "-t", target.pid, "-D", "pre", "-o", "pre.log", "-v4", "--track-mem")
        if not target.goes_on():
            yield "a pre-dump has stopped the process"
        criu("dump", "--tree", target.pid, "-D", "now", "-W", "work", "-odump.log", "-vvvv", "--track-mem", "--prev-images-dir=../pre", "--tcp-established",
             "--file-locks", "--ext-unix-sk", "--auto-dedup", "--leave-running", "-l")
        if not target.goes_on():
            yield "dump --leave-running has stopped the process"
        stats = magic_of("work/stats-dump", 2)[1]
        if stats is None or decode(stats[1][0])[6][0] == 0:
            yield f"no page was found in the parent: {stats}"
        criu("dump", "-t", target.pid, "-D", "now", "-W", "work", "-o", "dump.log", "-v4", "--prev-images-dir", "../pre", "--evasive-devices", "--link-remap")
        if target.runs():
            yield "the process has not been ended"
        target.reap()
        if sorted(os.listdir("now")) != ["ckpt", "inventory.img"] or sorted(os.listdir("pre")) != ["ckpt", "inventory.img", "pre.log", "stats-dump"]:
            yield f"folders: {os.listdir('now')} {os.listdir('pre')}"
        if not re.search(r"^\(\d\d\.\d{6}\) image .*/now/ckpt: .* written, frozen for .*: ended$", text("work/dump.log"), re.M):
            yield f"the log: {text('work/dump.log')}"
        magic, stats = magic_of("work/stats-dump", 2)
        if magic != (0x55105940, 0x57093306) or stats is None or set(decode(stats[1][0])) < {1, 2, 3, 4, 5, 6, 7, 9}:
            yield f"stats-dump: {magic} {stats}"
        if magic_of("now/inventory.img", 1)[0] != (0x58313116,):
            yield "inventory.img has not criu's first word"
        restored = criu("restore", "-D", "now", "-W", "work", "-o", "restore.log", "-d", "--pidfile", "pid", "-v4", "--display-stats")
        if int(text("work/pid")) != target.pid or not target.goes_on():
            yield "the process does not go on after its restore"
        if "Displaying restore stats:" not in restored.stdout or magic_of("work/stats-restore", 2)[1] is None:
            yield f"statistics of the restore: {restored.stdout}"
        criu("dedup", "-D", "now")


def a_restore_in_the_foreground_ends_as_its_process():
    os.mkdir("images")
    with Target() as target:
        criu("dump", "-t", target.pid, "-D", "images")
        target.reap()
        waiting = subprocess.Popen(["./criu", "restore", "-D", "images"], stderr=subprocess.PIPE)
        if not target.goes_on():
            yield "the process does not go on"
        os.kill(target.pid, signal.SIGTERM)
        if waiting.wait(60) != 128 + signal.SIGTERM:
            yield f"exit {waiting.returncode}: {waiting.stderr.read()}"


def a_sibling_is_the_callers_child():
    os.mkdir("images")
    with Target() as target:
        criu("dump", "-t", target.pid, "-D", "images")
        target.reap()
        criu("restore", "-D", "images", "-d", "-S")
        parent = re.search(r"^PPid:\s*(\d+)", text(f"/proc/{target.pid}/status"), re.M)
        if int(parent.group(1)) != os.getpid() or not target.goes_on():
            yield f"its parent is {parent.group(1)}, not {os.getpid()}"
    criu("restore", "-D", "images", "-S", code=1)


def pipes_are_given_or_have_ended():
    os.mkdir("images")
    reader, writer = os.pipe()
    with Target(stdout=writer) as target:
        os.close(writer)
        name = os.readlink(f"/proc/{target.pid}/fd/1")
        criu("dump", "-t", target.pid, "-D", "images")
        target.reap()
        criu("restore", "-D", "images", "-d")
        given = os.readlink(f"/proc/{target.pid}/fd/1")
        if not given.startswith("pipe:") or given == name:
            yield f"without --inherit-fd its pipe is {given}"
        os.kill(target.pid, signal.SIGKILL)
        target.reap()
        other, mine = os.pipe()
        criu("restore", "-D", "images", "-d", "--inherit-fd", f"fd[{mine}]:{name}", pass_fds=[mine])
        if os.readlink(f"/proc/{target.pid}/fd/1") != os.readlink(f"/proc/self/fd/{mine}") or not target.goes_on():
            yield f"with --inherit-fd its pipe is {os.readlink(f'/proc/{target.pid}/fd/1')}"
        for fd in (other, mine, reader):
            os.close(fd)


def configuration_files_count():
    os.makedirs(".criu")
    os.mkdir("images")
    with open(".criu/default.conf", "w", encoding="ascii") as stream:
        stream.write("# what we always want\nleave-running\nlog-file \"from the file.log\"  # quoted\n")
    with Target() as target:
        criu("dump", "-t", target.pid, "-D", "images")
        if not target.goes_on() or "from the file.log" not in os.listdir("images"):
            yield f"default.conf was not read: {os.listdir('images')}"
        with open(".criu/default.conf", "w", encoding="ascii") as stream:
            stream.write("lazy-pages\n")
        if "default.conf:1" not in criu("dump", "-t", target.pid, "-D", "images", code=1).stderr:
            yield "the refusal does not name the file"


def what_is_not_supported_is_refused_by_name():
    os.mkdir("images")
    with Target() as target:
        for words, name in ((["--lazy-pages"], "--lazy-pages"), (["--page-server", "--address", "::1"], "--page-server"),
                            (["--lsm-profile", "smack:x"], "smack:x"), (["--lsm-mount-context", "x"], "--lsm-mount-context"), (["--cgroup-props", "x"], "--cgroup-props"),
                            (["--manage-cgroups=full"], "--manage-cgroups=full"), (["--cpu-cap", "--network-lock", "skip"], "--network-lock skip"),
                            (["--no-such-option"], "--no-such-option is no option of criu's"), (["--inherit-fd", "fd[1]:socket[5]"], "socket[5]"),
                            (["-p"], "-p is no option of criu's"), (["--prev-images-dir", "../none"], "holds no image of an earlier dump")):
            words = [word.replace("-p is", "-p: is") for word in words]
            error = criu("dump", "-t", target.pid, "-D", "images", *words, code=1).stderr
            if name.replace(" is no", ": is no") not in error:
                yield f"{words}: {error}"
        for words in (["dump", "-D", "images"], ["dump", "-t", "0", "-D", "images"], ["service"], ["lazy-pages", "-D", "images"], ["page-server"], [], ["dance"],
                      ["dump", "-t", target.pid, "-D", "nowhere"], ["dump", "-t"], ["swrk"], ["swrk", "77"], ["restore", "-D", "images"]):
            if "Error (ckpt)" not in criu(*words, code=1).stderr:
                yield f"criu {words} says no error"
        if os.listdir("images") or not target.goes_on():
            yield f"something was done: {os.listdir('images')}"


def swrk(**keywords):
    return Swrk([CKPT, "criu"], **keywords)


def rpc_answers_questions():
    asked = swrk()
    answer = asked.ask(VERSION, keep_open=1)
    version = decode(answer[10][0])
    if answer[2] != [1] or version[1][0] < 3 or 3 in version:
        yield f"version: {answer}"
    answer = asked.ask(FEATURE_CHECK, features=encode((1, 1), (2, 1), (3, 1)), keep_open=1)
    if answer[2] != [1] or decode(answer[8][0])[2] != [0]:
        yield f"features: {answer}"
    if asked.ask(CHECK)[2] != [1]:
        yield "check"
    if asked.end() != 0:
        yield "swrk has not ended well"
    refused = swrk()
    answer = refused.ask(PAGE_SERVER)
    if answer[2] != [0] or b"a page server" not in answer[9][0] or refused.end() != 1:
        yield f"a page server: {answer}"
    broken = swrk()
    broken.socket.send(b"\xff\xff\xff")
    if broken.end() != 1:
        yield "what is no message is not refused"


def rpc_dumps_and_restores():
    pre, now, work = folder("pre"), folder("now"), folder("work")
    with Target() as target:
        asked = swrk()
        if asked.ask(PRE_DUMP, options(images_dir_fd=pre, pid=target.pid, track_mem=1))[2] != [1] or not target.goes_on():
            yield f"pre-dump: {text('pre/criu.log')}"
        asked.end()
        one = swrk()
        if one.ask(SINGLE_PRE_DUMP, options(images_dir_fd=pre, pid=target.pid, track_mem=1))[2] != [1] or one.end() != 0:
            yield "a single pre-dump"
        common = dict(images_dir_fd=now, work_dir_fd=work, log_level=4, notify_scripts=1, root="/", manage_cgroups=1, manage_cgroups_mode=3,
                      orphan_pts_master=1, empty_ns=0x40000000, config_file="/nowhere", lazy_pages=0)
        running = swrk()
        answer = running.ask(DUMP, options(pid=target.pid, log_file="dump.log", leave_running=1, parent_img="../pre", track_mem=1, file_locks=1,
                                           freeze_cgroup="/sys/fs/cgroup", **common))
        if answer[2] != [1] or decode(answer[3][0]) != {1: [0]} or running.end() != 0 or not target.goes_on():
            yield f"dump, left running: {answer}: {text('work/dump.log')}"
        if [script for script, _ in running.notified] != ["pre-dump", "post-dump"]:
            yield f"notified: {running.notified}"
        ending = swrk()
        answer = ending.ask(DUMP, options(pid=target.pid, log_file="dump.log", **common))
        if answer[2] != [1] or target.runs():
            yield f"dump: {answer}"
        target.reap()
        stubborn = swrk(ack=lambda script: script != "post-restore")
        answer = stubborn.ask(RESTORE, options(log_file="restore.log", rst_sibling=1, **common))
        if answer[2] != [0] or target.runs() or "Error (ckpt): notification post-restore: the caller refused it" not in text("work/restore.log"):
            yield f"a caller who refuses: {answer} {text('work/restore.log')}"
        stubborn.end()
        target.reap()
        back = swrk()
        answer = back.ask(RESTORE, options(log_file="restore.log", rst_sibling=1, **common))
        if answer[2] != [1] or decode(answer[4][0]) != {1: [target.pid]} or back.end() != 0 or not target.goes_on():
            yield f"restore: {answer}: {text('work/restore.log')}"
        if back.notified[:2] != [("pre-restore", target.pid), ("post-restore", target.pid)]:
            yield f"notified: {back.notified}"
        if int(re.search(r"^PPid:\s*(\d+)", text(f"/proc/{target.pid}/status"), re.M).group(1)) != os.getpid():
            yield "it is not the caller's child"
        os.kill(target.pid, signal.SIGTERM)
        target.reap()
        held = swrk()
        answer = held.ask(RESTORE, options(log_file="restore.log", **common), keep_open=1)
        os.kill(target.pid, signal.SIGTERM)
        answer = held.ask(WAIT_PID, pid=target.pid)
        if answer[2] != [1] or answer[11] != [signal.SIGTERM] or held.end() != 0:
            yield f"wait-pid: {answer}"
        if magic_of("work/stats-dump", 2)[1] is None or magic_of("work/stats-restore", 2)[1] is None:
            yield "statistics"
    for fd in (pre, now, work):
        os.close(fd)


def rpc_gives_pipes_by_their_names():
    images = folder("images")
    reader, writer = os.pipe()
    with Target(stdout=writer) as target:
        name = os.readlink(f"/proc/{target.pid}/fd/1")
        asked = swrk()
        if asked.ask(DUMP, options(images_dir_fd=images, pid=target.pid))[2] != [1]:
            yield text("images/criu.log")
        target.reap()
        back = swrk(stdout=writer)
        answer = back.ask(RESTORE, options(images_dir_fd=images, inherit_fd=[(name, 1), ("pipe:[1]", 2)]))
        if answer[2] != [1] or os.readlink(f"/proc/{target.pid}/fd/1") != name or not target.goes_on():
            yield f"{answer}: {text('images/criu.log')}"
    for fd in (images, reader, writer):
        os.close(fd)


def rpc_hands_over_masters_of_terminals():
    images = folder("images")
    master, slave = pty.openpty()
    index = os.ttyname(slave)
    attributes = termios.tcgetattr(slave)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(slave, termios.TCSANOW, attributes)
    with Target(stdin=slave, stdout=slave, preexec_fn=lambda: fcntl.ioctl(slave, termios.TIOCSCTTY, 0)) as target:
        os.close(slave)
        asked = swrk()
        if asked.ask(DUMP, options(images_dir_fd=images, pid=target.pid))[2] != [0] or "a terminal" not in text("images/criu.log"):
            yield "a terminal from outside is no obstacle"
        asked.end()
        asked = swrk()
        answer = asked.ask(DUMP, options(images_dir_fd=images, pid=target.pid, orphan_pts_master=1))
        if answer[2] != [1]:
            yield text("images/criu.log")
        target.reap()
        os.close(master)
        lonely = swrk()
        answer = lonely.ask(RESTORE, options(images_dir_fd=images, rst_sibling=1))
        if answer[2] != [0] or b"nobody to take the new one" not in answer[9][0]:
            yield f"nobody asked for the master: {answer}"
        lonely.end()
        back = swrk()
        answer = back.ask(RESTORE, options(images_dir_fd=images, orphan_pts_master=1, rst_sibling=1))
        if answer[2] != [1] or ("orphan-pts-master", 0) not in back.notified or len(back.fds) != 1:
            yield f"{answer}, {back.notified}, {back.fds}: {text('images/criu.log')}"
            return
        back.end()
        if os.readlink(f"/proc/{target.pid}/fd/0") != index or not target.goes_on():
            yield f"its terminal is {os.readlink(f'/proc/{target.pid}/fd/0')}"
        with open(f"/proc/{target.pid}/fd/1", "wb", buffering=0) as theirs:
            theirs.write(b"line\n")
            if os.read(back.fds[0], 100) != b"line\n" or termios.tcgetattr(theirs)[1] != attributes[1]:
                yield "the settings are not those of before"
        os.write(back.fds[0], b"\x03")  # ^C, to the group in the foreground
        for _ in range(1000):
            if not target.runs():
                break
            time.sleep(0.005)
        else:
            yield "the terminal does not control its session"
        os.close(back.fds[0])
    os.close(images)


def rpc_refuses_by_name():
    images = folder("images")
    with Target() as target:
        for fields, name in ((dict(lazy_pages=1), "lazy_pages"), (dict(ps=encode((2, 5))), "ps (a page server)"), (dict(lsm_profile="x"), "apparmor:NAME"), (dict(lsm_mount_context="x"), "lsm_mount_context"),
                             (dict(manage_cgroups_mode=4), "--manage-cgroups=full"), (dict(later=1), "field 900 of criu_opts"), (dict(manage_cgroups_mode=77), "field 34"),
                             (dict(inherit_fd=[("tty[1:2]", 1)]), "tty[1:2]"), (dict(inherit_fd=[("pipe:[1]", 99)]), "inherit_fd 99"),
                             (dict(parent_img="../none"), "holds no image of an earlier dump"), (dict(pid=os.getpid()), "a process that dumps itself"),
                             (dict(log_file="a/b"), "log_file a/b")):
            asked = swrk()
            answer = asked.ask(DUMP, options(**{"images_dir_fd": images, "pid": target.pid, **fields}))
            if answer[2] != [0] or name.encode() not in answer[9][0] or asked.end() != 1:
                yield f"{fields}: {answer}"
            if "log_file" not in fields and name not in text("images/criu.log"):
                yield f"{fields}: the log has {text('images/criu.log')}"
        if sorted(os.listdir("images")) != ["criu.log"] or not target.goes_on():
            yield f"something was done: {os.listdir('images')}"
    os.close(images)


def who_kills_swrk_does_not_harm_the_process():
    images = folder("images")
    with Target() as target:
        asked = swrk(ack=lambda script: asked.process.kill() or True)
        try:
            asked.ask(DUMP, options(images_dir_fd=images, pid=target.pid, notify_scripts=1, leave_running=1))
        except (EOFError, ConnectionError):
            pass
        asked.end()
        if not target.goes_on():
            yield "the process stands still"
        again = swrk()
        for _ in range(50):  # the worker may still be letting go
            answer = again.ask(DUMP, options(images_dir_fd=images, pid=target.pid, leave_running=1))
            again.end()
            if answer[2] == [1]:
                break
            time.sleep(0.1)
            again = swrk()
        else:
            yield f"it cannot be dumped again: {answer}"
    os.close(images)


if os.geteuid() != 0 or ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) != 0:  # PR_SET_CHILD_SUBREAPER: what restore leaves comes to us
    print("needs root")
    sys.exit(SKIPPED)
main(versions_and_checks, the_usual_lines_work, a_restore_in_the_foreground_ends_as_its_process, a_sibling_is_the_callers_child,
     pipes_are_given_or_have_ended, configuration_files_count, what_is_not_supported_is_refused_by_name, rpc_answers_questions, rpc_dumps_and_restores,
     rpc_gives_pipes_by_their_names, rpc_hands_over_masters_of_terminals, rpc_refuses_by_name, who_kills_swrk_does_not_harm_the_process)
