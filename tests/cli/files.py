#!/usr/bin/env python3
"""Files that belong to the moment: dump --files, and what restore puts back, where, and over what."""
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from harness import become_subreaper, state_of, wait_until
from prompt import CKPT, main, run

NOBODY = 65534
# Counts in a log that it appends to, and keeps files of every kind open.
TARGET = """
import os, sys, time
log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
data = os.open("data", os.O_RDWR | os.O_CREAT, 0o600)
os.pwrite(data, b"begin" * 1000, 0)
os.pwrite(data, b"end", 40 << 20)
twin = os.open("twin", os.O_RDWR | os.O_CREAT, 0o600)
os.pwrite(twin, b"begin" * 1000, 0)
linked = os.open("linked", os.O_RDWR | os.O_CREAT, 0o644)
os.write(linked, b"one file, two names")
if not os.path.exists("other name"):
    os.link("linked", "other name")
other = os.open("other name", os.O_RDWR)
moved = os.open("before", os.O_RDWR | os.O_CREAT, 0o600)
os.rename("before", "after")
os.write(moved, b"moved")
gone = os.open("gone", os.O_RDWR | os.O_CREAT, 0o600)
os.write(gone, b"deleted")
os.unlink("gone")
unnamed = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600)
os.write(unnamed, b"unnamed")
half = os.open("first", os.O_RDWR | os.O_CREAT, 0o600)
os.link("first", "second")
os.unlink("first")
os.write(half, b"one name left")
given = os.open("given", os.O_RDONLY)
count = 0
while True:
    os.write(log, b"%d\\n" % count)
    count += 1
    if os.pread(gone, 99, 0) != b"deleted" or os.pread(unnamed, 99, 0) != b"unnamed":
        os.write(log, b"bad\\n")
    time.sleep(0.003)
"""
FILES = ["log", "data", "twin", "linked", "other name", "after", "second"]


class Target:
    def __init__(self, folder="work", user=0):
        os.mkdir(folder)
        os.chown(folder, user, user)
        self.folder = os.path.abspath(folder)
        with open(f"{folder}/given", "w", encoding="ascii") as given:
            given.write("read only")
        os.chmod(f"{folder}/given", 0o644)
        self.process = subprocess.Popen([sys.executable, "-S", "-c", TARGET], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, cwd=self.folder, start_new_session=True, user=user, group=user, extra_groups=[])
        self.pid = self.process.pid
        wait_until(lambda: len(self.lines()) > 20, "it counts")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def end(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        wait_until(lambda: state_of(self.pid) in ("", "Z"), "it has ended")

    def path(self, name):
        return os.path.join(self.folder, name)

    def lines(self, root=""):
        with contextlib.suppress(OSError), open(root + self.path("log"), encoding="ascii") as log:
            return log.read().splitlines()
        return []

    def counts(self, root=""):
        """It goes on, from where the log ends, and nothing is missing or there twice."""
        before = len(self.lines(root))
        wait_until(lambda: len(self.lines(root)) > before + 10, "it counts again")
        lines = self.lines(root)
        return lines[:-1] == [str(i) for i in range(len(lines) - 1)]


def read(path):
    with open(path, "rb") as stream:
        return stream.read()


def stamps(folder, names):
    return {name: (os.stat(f"{folder}/{name}").st_ino, os.stat(f"{folder}/{name}").st_ctime_ns) for name in names}


def as_it_was(target, root=""):
    path = lambda name: root + target.path(name)
    if read(path("data")) != b"begin" * 1000 + bytes((40 << 20) - 5000) + b"end":
        yield "data has another content"
    if os.stat(path("data")).st_blocks * 512 > 1 << 20:
        yield "data has lost its hole"
    if read(path("linked")) != b"one file, two names" or os.stat(path("linked")).st_ino != os.stat(path("other name")).st_ino:
        yield "linked is not one file with two names"
    if os.stat(path("linked")).st_mode & 0o777 != 0o644 or os.stat(path("after")).st_mode & 0o777 != 0o600:
        yield "other modes"
    if read(path("second")) != b"one name left" or os.path.exists(path("first")):
        yield "second has another content, or the name that was deleted is back"
    if read(path("after")) != b"moved":
        yield "after has another content"


def restore(*options):
    return run("restore", "-f", "image", "-d", "--quiet", *options)


def puts_back():
    """What was written since, made worse, or deleted is as it was; never over what is newer, unless told to."""
    with Target() as target:
        done = run("dump", "-p", str(target.pid), "-f", "image", "-R", "--files", "written", "--json")
        if done.returncode != 0:
            yield f"dump: exit {done.returncode}: {done.stderr}"
            return
        if '"other_space":0' in done.stdout.replace(" ", ""):
            yield f"equal content of two files is there twice: {done.stdout}"
        at = len(target.lines())
        wait_until(lambda: len(target.lines()) > at + 10, "it goes on")
        os.unlink(target.path("after"))
        refused = restore("--force")
        if refused.returncode != 7 or os.path.exists(target.path("after")) or not target.counts():
            yield f"beside the process itself: exit {refused.returncode}: {refused.stderr}"
        target.end()
        with open(target.path("data"), "wb") as data:
            data.write(b"something else" * 100000)
        for name in ("linked", "other name", "second"):
            os.unlink(target.path(name))
        longer = target.lines()
        for options in ([], ["--dry-run"]):
            refused = restore(*options)
            if refused.returncode != 1 or "log: is newer" not in refused.stderr or "--force" not in refused.stderr:
                yield f"{options}: exit {refused.returncode}: {refused.stderr}"
        if target.lines() != longer or not read(target.path("data")).startswith(b"something") or os.path.exists(target.path("linked")):
            yield "a refused restore has changed a file"
        dry = restore("--dry-run", "--force")
        if dry.returncode != 0 or target.lines() != longer or os.path.exists(target.path("linked")):
            yield f"dry run: exit {dry.returncode}: {dry.stderr}"
        rehearsed = run("verify", "image", "--rehearse", "--quiet")
        if rehearsed.returncode != 0 or target.lines() != longer or os.path.exists(target.path("linked")):
            yield f"rehearse: exit {rehearsed.returncode}: {rehearsed.stderr}"
        done = restore("--force", "--lazy")
        if done.returncode != 0:
            yield f"restore: exit {done.returncode}: {done.stderr}"
            return
        yield from goes_on(target)


def needs_no_right_to_write():
    """To what is as it was; what is not, and cannot be written, is refused before anything is changed."""
    with Target() as target, contextlib.ExitStack() as stack:
        def start_tool():
            busy = subprocess.Popen([target.path("tool"), "60"])
            stack.callback(busy.wait)
            stack.callback(busy.kill)

        shutil.copy("/bin/sleep", target.path("tool"))
        start_tool()
        done = run("dump", "-p", str(target.pid), "-f", "image", "--files", "written", "--files", target.path("tool"))
        target.end()
        if done.returncode == 0:
            done = restore("--force")
        if done.returncode != 0 or not target.counts():
            yield f"exit {done.returncode}: {done.stderr}"
            return
        target.end()
        with open(target.path("data"), "wb") as data:
            data.write(b"something else")
        os.unlink(target.path("tool"))
        shutil.copy("/bin/sleep", target.path("tool"))
        with open(target.path("tool"), "ab") as tool:
            tool.write(b"more")
        os.utime(target.path("tool"), (0, 0))
        start_tool()
        refused = restore("--force")
        if refused.returncode == 0 or "tool: is not as the image has it" not in refused.stderr or read(target.path("data")) != b"something else":
            yield f"another tool: exit {refused.returncode}: {refused.stderr}"


def leaves_alone():
    """What nobody has changed is not written, and needs no --force."""
    with Target() as target:
        names = [name for name in FILES if name not in ("log", "second")]  # which gets its other name for a moment
        before = stamps(target.folder, names)
        done = run("dump", "-p", str(target.pid), "-f", "image", "--files", "open", "--quiet")
        target.process.wait()
        log = os.stat(target.path("log"))
        if done.returncode != 0 or stamps(target.folder, names) != before:
            yield f"dump: exit {done.returncode}: {done.stderr}"
        done = restore()
        if done.returncode != 0:
            yield f"restore: exit {done.returncode}: {done.stderr}"
            return
        after = stamps(target.folder, [*names, "given"])
        if {name: after[name] for name in names} != before or os.stat(target.path("log")).st_ino != log.st_ino:
            yield f"written all the same: {before} {after}"
        if not target.counts():
            yield f"the log: {target.lines()[-30:]}"


def elsewhere():
    """--files-root: below another folder, and what is there stays."""
    with Target() as target:
        extra = os.path.abspath("extra [file]")
        with open(extra, "wb") as stream:
            stream.write(b"nobody has it open" * 10000)
        words = ["--files", "written", "--files", extra, "--files", target.path("giv*")]
        done = run("dump", "-p", str(target.pid), "-f", "image", *words, "--quiet")
        target.process.wait()
        if done.returncode != 0:
            yield f"dump: exit {done.returncode}: {done.stderr}"
            return
        lines = target.lines()
        with open(target.path("log"), "a", encoding="ascii") as log:
            log.write("newer\n")
        os.mkdir("root")
        root = os.path.abspath("root")
        done = restore("--files-root", "root")
        if done.returncode != 0:
            yield f"restore: exit {done.returncode}: {done.stderr}"
            return
        if not target.counts(root):
            yield f"the log: {target.lines(root)[-30:]}"
        if target.lines() != [*lines, "newer"]:
            yield "the log where it was has changed"
        yield from as_it_was(target, root)
        if read(root + extra) != b"nobody has it open" * 10000 or read(root + target.path("given")) != b"read only":
            yield "the content of what was named"
        target.end()
        again = restore("--files-root", "root")
        if again.returncode != 1 or "is newer" not in again.stderr:
            yield f"over its own newer log: exit {again.returncode}: {again.stderr}"


def without_room():
    """What could not be put back whole is named, and another attempt needs no --force."""
    os.mkdir("small")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", "small"], check=True)
    try:
        with Target() as target:
            large = os.path.abspath("large")
            content = os.urandom(1 << 20)
            with open(large, "wb") as stream:
                stream.write(content)
            done = run("dump", "-p", str(target.pid), "-f", "image", "--files", "written", "--files", large, "--quiet")
            target.process.wait()
            if done.returncode != 0:
                yield f"dump: exit {done.returncode}: {done.stderr}"
                return
            root = os.path.abspath("small")
            failed = restore("--files-root", "small")
            said = ("large has the image's content in part", "other files have been put back")
            if failed.returncode != 9 or any(text not in failed.stderr for text in said) or state_of(target.pid) not in ("", "Z"):
                yield f"without room: exit {failed.returncode}, process {target.pid}: {state_of(target.pid)}: {failed.stderr}"
            subprocess.run(["mount", "-o", "remount,size=64m", "small"], check=True)
            done = restore("--files-root", "small")
            if done.returncode != 0:
                yield f"with room: exit {done.returncode}: {done.stderr}"
                return
            if not target.counts(root) or read(root + large) != content:
                yield f"with room: {target.lines(root)[-30:]}"
            yield from as_it_was(target, root)
    finally:
        subprocess.run(["umount", "small"], check=True)


def has_no_root():
    """--files-root wants files to put there, and a folder that the processes can have."""
    with Target() as target:
        os.mkdir("root")
        for words, code, text in (([], 2, "content of no file"), (["--files", "open"], 6, "mount namespace")):
            done = run("dump", "-p", str(target.pid), "-f", f"image{code}", "-R", *words, "--quiet")
            into = ["--join-ns", f"mnt:{os.getpid()}"] if code == 6 else []
            refused = run("restore", "-f", f"image{code}", "-d", "--dry-run", "--files-root", "root", *into)
            if done.returncode != 0 or refused.returncode != code or text not in refused.stderr:
                yield f"{words}: exit {done.returncode}, {refused.returncode}: {done.stderr} {refused.stderr}"


def goes_on(target):
    if not target.counts():
        yield f"the log: {target.lines()[-30:]}"
    yield from as_it_was(target)


def comes_back(target):
    """After its files are gone."""
    for name in FILES:
        os.unlink(target.path(name))
    done = restore()
    if done.returncode != 0:
        yield f"restore: exit {done.returncode}: {done.stderr}"
        return
    yield from goes_on(target)


def increments():
    """After a pre-dump, of which one has the files and the other other ones."""
    with Target() as target:
        first = run("pre-dump", "-p", str(target.pid), "-f", "first", "--files", "written", "--quiet")
        os.truncate(target.path("twin"), 0)
        done = run("dump", "-p", str(target.pid), "-f", "image", "--prev", "first", "--files", "written", "--quiet")
        target.process.wait()
        if first.returncode != 0 or done.returncode != 0:
            yield f"exit {first.returncode}, {done.returncode}: {first.stderr} {done.stderr}"
            return
        problems = list(comes_back(target))
        yield from problems
        if not problems and os.path.getsize(target.path("twin")) != 0:
            yield "twin has the content of the pre-dump"


def of_a_stranger():
    """Root puts back what a user's process had with that user's rights, and through no link of his."""
    os.chmod(".", 0o755)
    with Target("home", NOBODY) as target:
        done = run("dump", "-p", str(target.pid), "-f", "image", "--files", "written", "--quiet")
        target.process.wait()
        if done.returncode != 0:
            yield f"dump: exit {done.returncode}: {done.stderr}"
            return
        os.mkdir("secret", 0o700)
        os.rename("home", "real")
        os.symlink("secret", "home")
        for options in ([], ["--force"]):
            refused = restore(*options)
            if refused.returncode == 0 or "link" not in refused.stderr:
                yield f"a link: {options}: exit {refused.returncode}: {refused.stderr}"
        os.unlink("home")
        os.mkdir("home", 0o755)  # root's
        os.link("real/given", "home/given")
        refused = restore()
        if refused.returncode == 0 or "cannot make it" not in refused.stderr:
            yield f"a folder of root's: exit {refused.returncode}: {refused.stderr}"
        if os.listdir("secret") or os.listdir("home") != ["given"]:
            yield f"made: {os.listdir('secret')}, {os.listdir('home')}"
        with open("home/log", "wb"):
            pass
        os.chmod("home/log", 0o600)
        os.utime("home/log", (0, 0))
        refused = restore("--force")
        if refused.returncode == 0 or read("home/log") != b"":
            yield f"a file of root's: exit {refused.returncode}: {refused.stderr}"
        os.unlink("home/log")
        os.unlink("home/given")
        os.rmdir("home")
        os.rename("real", "home")
        problems = list(comes_back(target))
        yield from problems
        if not problems and {os.stat(target.path(name)).st_uid for name in FILES} != {NOBODY}:
            yield "files are another user's"


WRITER = """
for i in 1 2 3; do ( echo "child $i" >"child$i" ); done
cat given >copied
echo half >temporary; mv temporary whole
echo gone >deleted; rm deleted
( ( sleep 0.2; echo orphan >orphan ) & )
sleep 0.5
touch ready
exec sleep 1000
"""


def tracked():
    """What was written and closed since the start is known: by children that have ended, under the name that it has now, and nobody else's."""
    os.mkdir("work")
    with open("work/given", "w", encoding="ascii") as given:
        given.write("read only")
    words = [CKPT, "run", "--track-fs", "--", "sh", "-c", WRITER]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd="work", start_new_session=True) as process:
        wait_until(lambda: os.path.exists("work/ready") or process.poll() is not None, "it has written")
        if process.poll() is not None:
            yield f"exit {process.returncode}: {process.stderr.read().decode()}"
            return
        with open("work/somebody elses", "w", encoding="ascii") as other:
            other.write("not of the tree")
        mine = sockets_of(process.pid)
        trackers = trackers_with(mine)
        if len(mine) != 1 or len(trackers) != 1:
            yield f"{mine}, {trackers}"
        done = run("dump", "-p", str(process.pid), "-f", "image", "--files", "written", "--external-pipes", "null", "--quiet")
        process.wait()
        if done.returncode != 0:
            yield f"dump: exit {done.returncode}: {done.stderr}"
            return
    names = ["child1", "child2", "child3", "copied", "whole", "orphan", "ready"]
    contents = {name: read(f"work/{name}") for name in names}
    for name in os.listdir("work"):
        os.unlink(f"work/{name}")
    wait_until(lambda: all(state_of(pid) in ("", "Z") for pid in trackers), "the tracker ends")
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0] != 0:  # orphans, whose session is in the way
            pass
    restored = restore("--pidfile", "pid")
    if restored.returncode != 0:
        yield f"restore: exit {restored.returncode}: {restored.stderr}"
        return
    with open("pid", encoding="ascii") as pid:
        number = int(pid.read())
    os.kill(number, signal.SIGKILL)
    os.waitpid(number, 0)
    if {name: read(f"work/{name}") for name in os.listdir("work")} != contents:
        yield f"put back: {os.listdir('work')}"


def name_of(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", encoding="ascii", errors="replace") as comm:
        return comm.read().strip()
    return ""


def tracker_and_new_mounts():
    """What was written on a file system before the tracker has seen it is missed, and that is said."""
    process = subprocess.Popen([CKPT, "run", "--track-fs", "--", "sleep", "1000"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, start_new_session=True)
    mounted = []
    try:
        wait_until(lambda: name_of(process.pid) == "sleep", "it is started")
        tracker = int(trackers_with(sockets_of(process.pid))[0])
        for name, code in (("empty", 0), ("with blank", 8)):
            os.mkdir(name)
            os.kill(tracker, signal.SIGSTOP)
            subprocess.run(["mount", "-t", "tmpfs", "none", name], check=True)
            mounted.append(name)
            if code != 0:
                with open(f"{name}/file", "w", encoding="ascii") as file:
                    file.write("before it is watched")
            os.kill(tracker, signal.SIGCONT)
            done = run("dump", "-p", str(process.pid), "-f", f"image {name}", "-R", "--files", "written")
            if done.returncode != code or (code != 0 and "has missed something" not in done.stderr):
                yield f"{name}: exit {done.returncode}: {done.stderr}"
    finally:
        process.kill()
        process.wait()
        for name in mounted:
            subprocess.run(["umount", name], check=True)


def tracker_that_was_killed():
    """Is told of: nothing is left out without a word."""
    process = subprocess.Popen([CKPT, "run", "--track-fs", "--", "sleep", "1000"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        wait_until(lambda: name_of(process.pid) == "sleep", "it is started")
        mine = sockets_of(process.pid)
        tracker = trackers_with(mine)
        if len(mine) != 1 or len(tracker) != 1:
            yield f"{mine}, {tracker}"
            return
        os.kill(int(tracker[0]), signal.SIGKILL)
        wait_until(lambda: state_of(tracker[0]) in ("", "Z"), "the tracker has ended")
        done = run("dump", "-p", str(process.pid), "-f", "image", "-R", "--files", "written")
        if done.returncode != 8 or "ckpt-track" not in done.stderr:
            yield f"exit {done.returncode}: {done.stderr}"
        done = run("dump", "-p", str(process.pid), "-f", "image", "-R", "--files", "open", "--quiet")
        if done.returncode != 0:
            yield f"--files open: exit {done.returncode}: {done.stderr}"
    finally:
        process.kill()
        process.wait()
    subprocess.run([CKPT, "run", "--track-fs", "--", "true"], check=True)
    if os.path.exists(f"/run/ckpt/{mine[0]}"):
        yield "its socket is left"


def tracker_of_others():
    """One that does not answer, and watches nobody above these processes, holds nobody up for long, and is named."""
    with subprocess.Popen([CKPT, "run", "--track-fs", "--", "sleep", "1000"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, start_new_session=True) as other:
        wait_until(lambda: name_of(other.pid) == "sleep", "it is started")
        mine = sockets_of(other.pid)
        tracker = int(trackers_with(mine)[0])
        os.kill(tracker, signal.SIGSTOP)
        try:
            with Target() as target:
                begin = time.monotonic()
                done = run("dump", "-p", str(target.pid), "-f", "image", "-R", "--files", "written")
                if done.returncode != 0 or f"{mine[0]} does not answer" not in done.stderr or time.monotonic() - begin > 30:
                    yield f"exit {done.returncode} after {time.monotonic() - begin} s: {done.stderr}"
        finally:
            os.kill(tracker, signal.SIGCONT)
            other.kill()


def tracked_from_below():
    """A process that a tracked one has started is dumped alone, once that one has ended, and another tracker has started."""
    os.mkdir("work")
    child = "echo closed >closed; echo $$ >.pid; mv .pid pid; exec sleep 1000"
    with subprocess.Popen([CKPT, "run", "--track-fs", "--", "sh", "-c", f"setsid sh -c '{child}' &"], stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="work", start_new_session=True) as process:
        process.wait()
    wait_until(lambda: os.path.exists("work/pid"), "its child has written")
    number = int(read("work/pid"))
    try:
        wait_until(lambda: name_of(number) == "sleep", "its child waits")
        subprocess.run([CKPT, "run", "--track-fs", "--", "true"], check=True)
        done = run("dump", "-p", str(number), "-f", "image", "--files", "written", "--quiet")
        if done.returncode != 0:
            yield f"dump: exit {done.returncode}: {done.stderr}"
            return
        wait_until(lambda: state_of(number) in ("", "Z"), "it has ended")
        with contextlib.suppress(ChildProcessError):
            os.waitpid(number, 0)
        os.unlink("work/closed")
        restored = restore()
        if restored.returncode != 0 or read("work/closed") != b"closed\n":
            yield f"restore: exit {restored.returncode}: {os.listdir('work')}: {restored.stderr}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(number, 0)


# In a mount namespace of its own. Whoever would have to answer ends with the exec.
SERVED = """
import ctypes, os, sys
try:
    server = os.open("/dev/fuse", os.O_RDWR)
except OSError:
    sys.exit(77)
how = f"fd={server},rootmode=40000,user_id=0,group_id=0"
if ctypes.CDLL(None).mount(b"none", b"served", b"fuse", 0, how.encode()) != 0:
    sys.exit(77)
os.execv(sys.argv[1], [sys.argv[1], "run", "--track-fs", "--", "true"])
"""


def says_what_it_does_not_watch():
    """A file system that another program answers for, which is not asked."""
    os.mkdir("served")
    done = subprocess.run(["unshare", "-m", sys.executable, "-S", "-c", SERVED, CKPT], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode == 77:
        print("no FUSE here: not tried")
    elif done.returncode != 0 or "/served (fuse): not watched" not in done.stderr:
        yield f"exit {done.returncode}: {done.stderr}"


def sockets_of(root):
    return [socket for socket in os.listdir("/run/ckpt") if socket.startswith(f"track-{root}-")]


def trackers_with(sockets):
    return [pid for pid in os.listdir("/proc") if pid.isdigit() and name_of(pid) == "ckpt-track" and has_open(pid, sockets)]


def has_open(pid, sockets):
    if state_of(pid) in ("", "Z"):
        return False
    with open(f"/proc/{pid}/net/unix", encoding="ascii", errors="replace") as table:
        inodes = {line.split()[6] for line in table if any(line.rstrip().endswith(socket) for socket in sockets)}
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/fd/{fd}").removeprefix("socket:[").removesuffix("]") in inodes:
                return True
    return False


def can_track():
    """A kernel without the process connector, a pid namespace."""
    os.makedirs("/run/ckpt", mode=0o700, exist_ok=True)
    done = run("run", "--track-fs", "--", "true")
    if done.returncode == 6:
        print(f"not tracked here: {done.stderr.strip()}")
    return done.returncode != 6


LEASES = """
import fcntl, os, signal, time
signal.signal(signal.SIGIO, lambda *_: os.write(os.open("broken", os.O_WRONLY | os.O_CREAT, 0o600), b"!"))
leased = os.open("one", os.O_RDWR | os.O_CREAT, 0o600)
os.link("one", "two")
fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_WRLCK)
open("ready", "w").close()
time.sleep(1000)
"""


def leases():
    """No lease of the tree is broken, under whichever name, and that of another process is not waited for."""
    os.mkdir("leased")
    process = subprocess.Popen([sys.executable, "-S", "-c", LEASES], cwd="leased", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, start_new_session=True)
    two = os.path.abspath("leased/two")
    try:
        wait_until(lambda: os.path.exists("leased/ready") or process.poll() is not None, "it has a lease")
        done = run("dump", "-p", str(process.pid), "-f", "image", "-R", "--files", two)
        if done.returncode != 6 or "lease" not in done.stderr or os.path.exists("leased/broken"):
            yield f"of the tree: exit {done.returncode}, broken: {os.path.exists('leased/broken')}: {done.stderr}"
        with Target("besides") as target:
            begin = time.monotonic()
            done = run("dump", "-p", str(target.pid), "-f", "image", "-R", "--files", two)
            if done.returncode != 7 or "lease" not in done.stderr or time.monotonic() - begin > 20:
                yield f"of another: exit {done.returncode} after {time.monotonic() - begin} s: {done.stderr}"
            if not target.counts():
                yield "the target was harmed"
    finally:
        process.kill()
        process.wait()


def refuses():
    with Target() as target:
        os.symlink("data", target.path("link"))
        os.symlink(target.folder, "folder")
        cases = [(["--files", target.path(f"../{os.path.basename(target.folder)}/data")], 2, "not written as plainly"),
                 (["--files", target.path("./data")], 2, "not written as plainly"),
                 (["--files", os.path.abspath("folder/data")], 2, "through a symbolic link"),
                 (["--files", "all"], 2, "neither written, nor open"), (["--files", "/nowhere/at/all"], 2, "no absolute path of a regular file"),
                 (["--files", target.path("link")], 2, "through a symbolic link"),
                 (["--files", target.folder], 2, "no absolute path of a regular file"),
                 (["--files", "written", "--ghost-limit", "1"], 6, "--ghost-limit")]
        for words, code, text in cases:
            done = run("dump", "-p", str(target.pid), "-f", "image", *words)
            if done.returncode != code or text not in done.stderr:
                yield f"{words}: exit {done.returncode}: {done.stderr}"
        done = run("dump", "-p", str(target.pid), "-f", "image", "-R", "--files", target.path("none*"), "--files", target.path("d?ta"))
        if done.returncode != 0 or "none*: names no file" not in done.stderr or "d?ta" in done.stderr:
            yield f"a pattern that names nothing: exit {done.returncode}: {done.stderr}"
        if not target.counts():
            yield "the target was harmed"


if os.geteuid() != 0:
    print("not root: a process cannot be dumped and restored")
    sys.exit(77)
become_subreaper()
main(puts_back, needs_no_right_to_write, leaves_alone, elsewhere, without_room, has_no_root, increments, of_a_stranger, leases, refuses,
     *([tracked, tracked_from_below, tracker_and_new_mounts, tracker_that_was_killed, tracker_of_others, says_what_it_does_not_watch] if can_track() else []))
