#!/usr/bin/env python3
"""Pid namespaces within that of a tree's first process: a container in a container, a sandbox below a shell, two deep, and entered from outside.

The targets check themselves, and go on with the numbers that they have there; we look at their /proc.
"""
import contextlib
import os
import random
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from harness import CKPT, TARGETS, Failure, Skip, become_subreaper, ckpt, exists_unreaped, read_text, reap_strays, run_cases, wait_until
from outside import Namespaces, children_of, kill_restore, namespace

SANDBOX = "unshare --pid --fork --mount --mount-proc"
TARGET = 'setsid "$0" "$1" < /dev/null > "$1/log" 2>&1'
SHAPES = {
    "shell": f"{SANDBOX} sh -c '{TARGET} & wait; :' \"$0\" \"$1\" & wait; :",
    "first": f"{SANDBOX} sh -c 'exec {TARGET}' \"$0\" \"$1\" & wait; :",
    "deep": f"{SANDBOX} {SANDBOX} sh -c '{TARGET} & wait; :' \"$0\" \"$1\" & wait; :",
    "without proc": f"unshare --pid --fork sh -c '{TARGET} & wait; :' \"$0\" \"$1\" & wait; :",
    "masked": f"{SANDBOX} sh -c 'mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys; mount -t tmpfs mask /proc/scsi 2> /dev/null || "
              f"mount -t tmpfs mask /proc/fs; mkdir -p \"$1/bound\"; mount --bind /proc \"$1/bound\"; {TARGET} & wait; :' \"$0\" \"$1\" & wait; :",
    "entered": f"{SANDBOX} sh -c ': > \"$1/there\"; sleep 1000' \"$0\" \"$1\" & while [ ! -e \"$1/there\" ]; do sleep 0.01; done; "
               f"nsenter --pid --mount --target $(cat /proc/$!/task/$!/children) sh -c '{TARGET} & wait; :' \"$0\" \"$1\" & wait; :",
}
CONTAINER = ["unshare", "--fork", "--pid", "--mount", "--uts", "--ipc", "--net", "--mount-proc"]


def descendants(pid):
    out = []
    for child in children_of(pid):
        out += [int(child), *descendants(child)]
    return out


def numbers_of(pid):
    lines = dict(line.split(":", 1) for line in read_text(f"/proc/{pid}/status").splitlines() if ":" in line)
    return [int(word) for word in lines["NSpid"].split()]


class Inner:
    """A tree of a shape; with `own` its first process is number 1 of a container, and all others are further in."""

    def __init__(self, place, name, target, shape, own=False, apart=()):
        self.work, self.own, self.shape = place.folder(name), own, shape
        self.popen = subprocess.Popen([*(CONTAINER if own else apart), "sh", "-c", SHAPES[shape], os.path.join(TARGETS, f"target_{target}"), self.work],
                                      stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        self.root = 0
        wait_until(self.started, f"{name}: the target is ready")
        self.target = self.find()
        self.numbers, self.seen, self.mounts = self.inside(), self.processes(), self.points()

    def started(self):
        if self.popen.poll() is not None:
            raise Skip("no such namespaces can be made here")
        self.root = int((children_of(self.popen.pid) or [0])[0]) if self.own else self.popen.pid
        if os.path.exists(os.path.join(self.work, "result")):
            raise Skip(read_text(os.path.join(self.work, "result")).strip())
        return os.path.exists(os.path.join(self.work, "ready"))

    def find(self):
        number = int(read_text(os.path.join(self.work, "ready")).split()[0])
        found = [pid for pid in descendants(self.root) if numbers_of(pid)[-1] == number and read_text(f"/proc/{pid}/comm").startswith("target_")]
        if not found:
            raise Failure(f"no target of number {number}")
        return min(found, key=lambda pid: len(numbers_of(pid)))  # what it has made further in may have that number, too

    def inside(self):
        """What each has for numbers within the first process's pid namespace."""
        levels = len(numbers_of(self.root))
        return sorted(numbers_of(pid)[levels:] for pid in descendants(self.root))

    def run(self, *command):
        """What a program says that is there where the target is."""
        return subprocess.run(["nsenter", "--target", str(self.target), "--pid", "--mount", *command], capture_output=True, text=True, check=True).stdout

    def processes(self):
        """By the target's own /proc, without what looks; where that is ours, too, it shows more than the tree."""
        if self.shape == "without proc":
            return ""
        return self.run("sh", "-c", "for one in /proc/[0-9]*; do cat $one/comm 2> /dev/null; done | grep target_; readlink /proc/1/ns/pid > /dev/null && echo one")

    def points(self):
        """What is mounted last at each place."""
        out = {}
        for line in read_text(f"/proc/{self.target}/mountinfo").splitlines():
            words = line.split()
            if words[4] in ("/proc", "/proc/sys", "/proc/scsi", "/proc/fs", self.work + "/bound"):
                out[words[4]] = (words[3], words[5], line.split(" - ")[1].split()[0])
        return out

    def check(self):
        self.target = self.find()
        if self.inside() != self.numbers:
            raise Failure(f"the numbers inside are {self.inside()}, and were {self.numbers}")
        if self.processes() != self.seen or self.points() != self.mounts:
            raise Failure(f"its /proc shows {self.processes()} at {self.points()}, and showed {self.seen} at {self.mounts}")
        for pid in descendants(self.root):
            if len(numbers_of(pid)) > len(numbers_of(self.root)) and namespace(pid, "pid") == namespace(self.root, "pid"):
                raise Failure(f"{pid} is in the first process's namespace")

    def verdict(self):
        number = read_text(os.path.join(self.work, "ready")).split()[1]
        with open(os.path.join(self.work, ".check"), "w", encoding="ascii") as stream:
            stream.write("0")
        os.rename(os.path.join(self.work, ".check"), os.path.join(self.work, "check"))
        wait_until(lambda: os.path.exists(os.path.join(self.work, "result")), "the target answers")
        if read_text(os.path.join(self.work, "result")).strip() != f"pass {number}":
            raise Failure(read_text(os.path.join(self.work, "result")) + read_text(os.path.join(self.work, "log")))

    def dump(self, image, *flags):
        before = [self.root, *descendants(self.root)]
        dump = subprocess.Popen([CKPT, "dump", "-p", str(self.root), "-f", image, *flags], stdin=subprocess.DEVNULL)

        def gone():
            reap(dump)
            return dump.returncode is not None and not any(exists_unreaped(pid) for pid in before)
        wait_until(gone, "all have ended", 40)
        if dump.returncode != 0:
            raise Failure(f"the dump: exit {dump.returncode}")

    def restore(self, image, *flags):
        pidfile = os.path.join(os.path.dirname(image), "pid")
        ckpt("restore", "-f", image, "-d", "--pidfile", pidfile, *flags).expect(0)
        self.root = int(read_text(pidfile))
        self.check()

    def end(self):
        for pid in [self.popen.pid, self.root]:
            for one in [*descendants(pid), pid] if pid and exists_unreaped(pid) else []:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one, signal.SIGKILL)
        self.popen.wait()
        reap_strays()


def reap(known=None):
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0] != 0:
            if known is not None and ended[0] == known.pid:
                known.returncode = os.waitstatus_to_exitcode(ended[1])


def goes_on(place, target, shape, own=False):
    """Dumped while it runs on, dumped and restored twice, the second time on top of a pre-dump, then in a pid namespace of its own."""
    name = f"{target}-{shape}-{'own' if own else 'ours'}".replace(" ", "-")
    inner = Inner(place, name, target, shape, own)
    try:
        ckpt("check", "-p", inner.root).expect(0)
        ckpt("dump", "-p", inner.root, "-f", os.path.join(place.path, name + "-running"), "-R").expect(0)
        inner.check()
        for turn in ("one", "two"):
            image = os.path.join(place.path, f"{name}-{turn}")
            if turn == "two":
                ckpt("pre-dump", "-p", inner.root, "-f", image + "-before").expect(0)
            inner.dump(image, *(["--prev", image + "-before"] if turn == "two" else []))
            ckpt("verify", image).expect(0)
            ckpt("inspect", image).expect(0, "further pid")
            ckpt("restore", "-f", image, "--dry-run").expect(0)
            inner.restore(image)
        if not own:
            image = os.path.join(place.path, f"{name}-three")
            inner.dump(image)
            inner.restore(image, "--new-pidns")
            again = os.path.join(place.path, f"{name}-again")
            ckpt("dump", "-p", inner.root, "-f", again, "-R").expect(0)
        inner.verdict()
    finally:
        inner.end()


def into(place):
    """Taken here, restored where others are, dumped there once more."""
    there = Namespaces(place.folder("into"))
    inner = Inner(place, "into-work", "threads", "shell")
    try:
        image, pidfile = os.path.join(place.path, "into-image"), os.path.join(place.path, "pid")
        inner.dump(image)
        ckpt("restore", "-f", image, "-d", "--join-ns", f"pid:/proc/{there.init}/ns/pid", "--pidfile", pidfile).expect(0)
        inner.root = int(read_text(pidfile))
        if namespace(inner.root, "pid") != namespace(there.init, "pid"):
            raise Failure("restored into another pid namespace")
        inner.check()
        inner.verdict()
    finally:
        there.end()
        inner.end()


def killed(place):
    """ckpt is killed in the middle: of a dump everything goes on, of a restore nothing is left."""
    inner = Inner(place, "killed", "threads", "shell")
    image, pidfile = os.path.join(place.path, "killed-image"), os.path.join(place.path, "killed-pid")
    chance = random.Random(11)
    try:
        for turn in range(6):
            dump = subprocess.Popen([CKPT, "dump", "-R", "-p", str(inner.root), "-f", f"{image}-{turn}"], stdin=subprocess.DEVNULL,
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(chance.uniform(0.01, 0.3))
            dump.send_signal(signal.SIGKILL)
            dump.wait()
            wait_until(lambda: inner.inside() == inner.numbers, "what a killed dump leaves has gone", 20)
            inner.check()
        ckpt("dump", "-R", "-p", inner.root, "-f", f"{image}-clears").expect(0)
        inner.dump(image)
        for _ in range(10):
            done = kill_restore(image, pidfile, chance.uniform(0.005, 0.2))
            if done:
                for pid in [*descendants(done), done]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

            def gone():
                reap()
                return not descendants(os.getpid())
            wait_until(gone, "nothing stays behind")
        inner.restore(image)
        inner.verdict()
    finally:
        inner.end()


def busy(place):
    """A number that is taken is told, and nothing of what was built by then stays."""
    inner = Inner(place, "busy", "mem_anonymous", "deep")
    image = os.path.join(place.path, "busy-image")
    try:
        ckpt("dump", "-p", inner.root, "-f", image, "-R").expect(0)
        def there():  # without what a dump leaves to track the next one
            return sorted(pid for pid in descendants(os.getpid()) if not read_text(f"/proc/{pid}/comm").startswith("ckpt"))
        before = there()
        ckpt("restore", "-f", image, "-d").expect(7, "is taken by")
        reap()
        if there() != before:
            raise Failure("something stayed behind")
        inner.check()
    finally:
        inner.end()


# The first process of one makes that of a second within it, and then two more there: it alone can wait for those.
OUTER = """
import ctypes, os
libc = ctypes.CDLL(None)
first = libc.syscall(56, 0x20000011, 0, 0, 0, 0) or os.execvp("sleep", ["sleep", "1000"])  # clone
libc.setns(os.pidfd_open(first), 0x20000000)
for _ in range(2):
    os.fork() or os.execvp("sleep", ["sleep", "1000"])
libc.setns(os.pidfd_open(os.getpid()), 0x20000000)
os.execvp("sleep", ["sleep", "1000"])
"""


def interrupted(place):
    """A restore that gives up somewhere takes all back, and ends."""
    popen = subprocess.Popen(["sh", "-c", f"{SANDBOX} python3 -c '{OUTER}' & wait; :"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL, start_new_session=True)
    image, pidfile = os.path.join(place.path, "interrupted-image"), os.path.join(place.path, "interrupted-pid")

    def all_sleep():
        if popen.poll() is not None:
            raise Skip("no such namespaces can be made here")
        return [read_text(f"/proc/{pid}/comm").strip() for pid in descendants(popen.pid)].count("sleep") == 4
    try:
        wait_until(all_sleep, "all sleep")
        ckpt("dump", "-p", popen.pid, "-f", image).expect(0)
        popen.wait()
        for turn in range(12):
            wait_until(lambda: reap() or not descendants(os.getpid()), f"{turn}: nothing stays behind")
            restore = subprocess.Popen([CKPT, "restore", "-f", image, "-d", "--pidfile", pidfile], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL)
            time.sleep(0.01 + 0.004 * turn)
            restore.send_signal(signal.SIGTERM)
            try:
                restore.wait(20)
            except subprocess.TimeoutExpired as error:
                restore.kill()
                raise Failure(f"{turn}: the restore does not end") from error
            for pid in descendants(os.getpid()) if restore.returncode == 0 else []:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    finally:
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        popen.wait()
        reap_strays()


def peers(place):
    """Who would be told of a peer by a number that the peer's socket cannot have yet."""
    inner = Inner(place, "peers", "sock_peercred", "shell")
    try:
        ckpt("dump", "-p", inner.root, "-f", os.path.join(place.path, "peers-image"), "-R").expect(0, "SO_PEERCRED", "give others there the number 0")
        inner.check()
    finally:
        inner.end()


REFUSED = (
    ("time", "unshare --time --fork sleep 60", "another one than that of its tree's first process"),
    ("made", "exec 8< /dev/null; exec python3 -c 'import ctypes, os; ctypes.CDLL(None).unshare(0x20000000); os.execvp(\"sleep\", [\"sleep\", \"60\"])'",
     "time namespace for its children|pid_for_children"),
    ("strangers", "nsenter --pid=/proc/self/fd/7 sleep 60", "whose first process is not of the tree"),
    ("proc file", f"{SANDBOX} sh -c 'mount --bind /proc /mnt; exec 8< /mnt/1/status; exec sleep 60'", "of the /proc of a further pid namespace"),
    ("covered proc", f"{SANDBOX} sh -c 'exec 8< /proc/1/status; mount -t tmpfs mask /proc; exec sleep 60'", "of the /proc of a further pid namespace|another process"),
    ("net file", f"{SANDBOX} --net sh -c 'exec 8< /proc/self/net/dev; exec sleep 60'", "shows a further network namespace"),
    ("ipc file", f"{SANDBOX} --ipc sh -c 'exec 8< /proc/sysvipc/shm; exec sleep 60'", "shows a further IPC namespace"),
    ("uts file", f"{SANDBOX} --uts sh -c 'exec 8< /proc/sys/kernel/hostname; exec sleep 60'", "shows a further UTS namespace"),
    ("first of two", f"{SANDBOX} python3 -c 'import ctypes, os; ctypes.CDLL(None).syscall(56, 0x20000011, 0, 0, 0, 0) or os._exit(0); "  # clone
     "os.execvp(\"sleep\", [\"sleep\", \"60\"])'", "was the first process of a pid namespace within a further one"),
    *([("pressure", f"{SANDBOX} sh -c 'exec 8<> /proc/pressure/memory; exec sleep 60'", "PSI")] if os.path.exists("/proc/pressure/memory") else []),
    ("proc folder", f"{SANDBOX} sh -c 'cd /proc/sys; exec sleep 60'", "of the /proc of a further pid namespace"),
    ("user", "unshare --user --map-root-user --pid --fork sleep 60", "another one than that of its tree's first process"),
)


def first_process_sees_it(place):
    """unshare as the first process: its mounts, which are made before any process inside, have the /proc of those."""
    popen = subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sleep", "100"], stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        wait_until(lambda: any(read_text(f"/proc/{pid}/comm").strip() == "sleep" for pid in children_of(popen.pid)), "it sleeps")
        err = ckpt("dump", "-p", popen.pid, "-f", os.path.join(place.path, "image")).expect(6).err
        if "mount /proc: proc, of a further pid namespace" not in err or not exists_unreaped(popen.pid):
            raise Failure(err)
    finally:
        popen.kill()
        popen.wait()


def refused(place):
    """What is not carried is named before anything is touched."""
    stranger = subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", "sleep", "100"], stdin=subprocess.DEVNULL)
    wait_until(lambda: children_of(stranger.pid), "the stranger is there")
    handle = os.open(f"/proc/{children_of(stranger.pid)[0]}/ns/pid", os.O_RDONLY)
    try:
        for kind, command, words in REFUSED:
            popen = subprocess.Popen(["sh", "-c", f"exec 7<&{handle}; {command} & exec 7<&-; wait"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                     stderr=subprocess.DEVNULL, start_new_session=True, pass_fds=(handle,))
            try:
                wait_until(lambda: any(read_text(f"/proc/{pid}/comm").strip() == "sleep" for pid in descendants(popen.pid)), f"{kind}: it sleeps")
                time.sleep(0.05)
                said = ckpt("check", "-p", popen.pid)
                if not any(word in said.out + said.err for word in words.split("|")):
                    raise Failure(f"{kind}: {said.out}{said.err}")
                ckpt("dump", "-p", popen.pid, "-f", os.path.join(place.path, "refused-" + kind.replace(" ", "-"))).expect(6)
                if not exists_unreaped(popen.pid):
                    raise Failure(f"{kind}: it has ended")
            finally:
                for pid in [*descendants(popen.pid), popen.pid]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                popen.wait()
                reap()
    finally:
        os.close(handle)
        stranger.kill()
        stranger.wait()
        reap_strays()


if __name__ == "__main__":
    become_subreaper()
    WHAT = (("threads", "shell", False), ("tree_sessions", "shell", False), ("tree_zombies", "first", False), ("terminal_session", "shell", False),
            ("tree_daemon", "shell", False), ("timer_thread", "deep", False), ("mem_shared_anonymous", "without proc", False), ("signals_pending", "deep", False),
            ("files", "masked", False), ("epoll", "entered", False), ("tree_pid_namespaces", "shell", False), ("threads", "shell", True), ("pidfd", "deep", True),
            ("proc_files", "shell", False), ("proc_files", "deep", True))
    sys.exit(run_cases("inner", [(f"{target}, {shape}{', own' if own else ''}", lambda place, target=target, shape=shape, own=own: goes_on(place, target, shape, own))
                                 for target, shape, own in WHAT] + [("into", into), ("killed", killed), ("busy", busy), ("interrupted", interrupted), ("peers", peers), ("first process", first_process_sees_it), ("refused", refused)],
                       ("unshare", "nsenter", "mount", "setsid")))
