#!/usr/bin/env python3
"""Processes of one tree in several namespaces: a service with mounts, names, queues and a network of its own within a container, and beside us.

The target checks itself. Its folder is a file system in memory that only the inner mount namespace has, on top of one that both have.
"""
import contextlib
import os
import random
import shlex
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from harness import CKPT, TARGETS, Failure, Skip, become_subreaper, ckpt, exists_unreaped, read_text, reap_strays, run_cases, wait_until
from outside import children_of, kill_restore, namespace

KINDS = ("mnt", "uts", "ipc", "net")
OUTER = """
set -e; place=$1
if [ "$3" = own ]; then
  mount -t tmpfs both "$place"; mkdir "$place/inner" "$place/common"; echo both > "$place/common/file"; hostname outer; mount -t proc proc /proc
else
  mkdir -p "$place/inner"
fi
unshare --mount --uts --ipc --net sh -c "$4" sh "$place" "$2" &
exec 9< "$place" 2> /dev/null; wait
"""
INNER = """
set -e; place=$1
mount -t tmpfs inner "$place/inner"; mkdir "$place/inner/bound"; mount --bind "$place/inner/bound" "$place/inner/bound"; mount -o remount,bind,ro "$place/inner/bound"
hostname inner; ip link set lo up; echo 42 > /proc/sys/net/ipv4/ip_default_ttl; ip link add d0 type dummy 2> /dev/null || ip link add d0 type bridge || ip link add d0 type veth peer name d1; ip addr add 192.0.2.7/24 dev d0
echo 33 > /proc/sys/fs/mqueue/msg_max; exec 2> /dev/null
"$2" "$place/inner" < /dev/null > "$place/inner/log" 2>&1 &
wait
"""


class Nested:
    """An outer shell, an inner one in further namespaces, and its target; `own`: the outer one is process 1 of a container."""

    def __init__(self, place, name, target, own, inner=INNER):
        self.place, self.own = place.folder(name), own
        os.makedirs(self.place, exist_ok=True)
        apart = ["unshare", "--fork", "--pid", "--mount", "--uts", "--ipc", "--net"] if own else []
        self.popen = subprocess.Popen([*apart, "sh", "-c", OUTER, "sh", self.place, os.path.join(TARGETS, f"target_{target}"), "own" if own else "ours", inner],
                                      stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
        self.root = 0
        wait_until(self.started, "the target is ready")

    def started(self):
        if self.popen.poll() is not None:
            raise Skip(f"no such namespaces can be made here: {self.popen.stderr.read().decode().strip()}")
        self.root = int((children_of(self.popen.pid) or [0])[0]) if self.own else self.popen.pid
        if self.root == 0 or not children_of(self.root):
            return False
        inner = children_of(self.root)[0]
        return os.path.exists(f"/proc/{inner}/root{self.place}/inner/ready")

    def inner(self):
        shell = int(children_of(self.root)[0])
        return shell, int(children_of(shell)[0])

    def path(self, *names):
        return os.path.join(f"/proc/{self.inner()[0]}/root{self.place}", *names)

    def said(self, kind, *command):
        return subprocess.run(["nsenter", "--target", str(self.inner()[1]), "--" + kind, *command], capture_output=True, text=True, check=True).stdout.strip()

    def check(self):
        """Once it runs again: what is shared with whom, what each has, and the target's own verdict."""
        shell, target = self.inner()
        for kind in KINDS:
            if namespace(shell, kind) != namespace(target, kind) or namespace(shell, kind) == namespace(self.root, kind):
                raise Failure(f"{kind}: the inner ones are not in one of their own")
        for kind in ("pid", "user", "cgroup"):
            if namespace(target, kind) != namespace(self.root, kind):
                raise Failure(f"{kind}: the inner ones are in another one")
        if self.said("uts", "hostname") != "inner" or self.said("net", "cat", "/proc/sys/net/ipv4/ip_default_ttl") != "42":
            raise Failure("another hostname, or another network")
        if "192.0.2.7/24" not in self.said("net", "ip", "-o", "addr", "show", "d0") or self.said("ipc", "cat", "/proc/sys/fs/mqueue/msg_max") != "33":
            raise Failure("the interface has another address, or the queues other limits")
        mounts = [line.split() for line in read_text(f"/proc/{target}/mountinfo").splitlines() if line.split()[4].startswith(self.place)]
        wanted = ([self.place] if self.own else []) + [f"{self.place}/inner", f"{self.place}/inner/bound"]
        if [line[4] for line in mounts] != wanted or not mounts[-1][5].startswith("ro"):
            raise Failure(f"the mounts are {mounts}")
        if self.own:
            with open(f"/proc/{self.root}/root{self.place}/common/new", "w", encoding="ascii") as stream:
                stream.write("seen")
            if read_text(self.path("common", "new")) != "seen" or read_text(self.path("common", "file")) != "both\n":
                raise Failure("what both had is another file system in each")
            os.unlink(self.path("common", "new"))
        if os.path.exists(f"/proc/{self.root}/root{self.place}/inner/log"):
            raise Failure("what is mounted inside is seen outside")

    def verdict(self):
        work = self.path("inner")
        number = read_text(os.path.join(work, "ready")).split()[1]
        held = os.open(work, os.O_PATH | os.O_DIRECTORY)
        try:
            work = f"/proc/self/fd/{held}"
            with open(f"{work}/.check", "w", encoding="ascii") as stream:
                stream.write("0")
            os.rename(f"{work}/.check", f"{work}/check")
            wait_until(lambda: os.path.exists(f"{work}/result"), "the target answers")
            if read_text(f"{work}/result").strip() != f"pass {number}":
                raise Failure(f"{read_text(work + '/result')}\n{read_text(work + '/log')}")
        finally:
            os.close(held)

    def dump(self, image):
        before = [self.root, *descendants(self.root)]
        dump = subprocess.Popen([CKPT, "dump", "-p", str(self.root), "-f", image], stdin=subprocess.DEVNULL)

        def gone():
            # What ckpt leaves in a pid namespace is our child, and the namespace ends once nothing is left in it.
            reap(dump)
            return dump.returncode is not None and not any(exists_unreaped(int(pid)) for pid in before)
        wait_until(gone, "all have ended", 40)
        if dump.returncode != 0:
            raise Failure(f"the dump: exit {dump.returncode}")

    def restore(self, image, *flags):
        pidfile = os.path.join(os.path.dirname(image), "pid")
        said = ckpt("restore", "-f", image, "-d", "--pidfile", pidfile, *flags)
        said.expect(0)
        self.root = int(read_text(pidfile))

    def end(self):
        for pid in [self.popen.pid, self.root]:
            for one in [*descendants(pid), pid] if pid and exists_unreaped(pid) else []:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(one), signal.SIGKILL)
        self.popen.wait()
        reap_strays()


def goes_on(place, target, own):
    """Checked, dumped while it runs on, dumped and restored twice, the second time on top of a pre-dump."""
    name = f"{target}-{'own' if own else 'ours'}"
    nested = Nested(place, name, target, own)
    try:
        nested.check()
        ckpt("check", "-p", nested.root).expect(0)
        ckpt("dump", "-p", nested.root, "-f", os.path.join(place.path, name + "-running"), "-R").expect(0)
        for turn in ("one", "two"):
            image = os.path.join(place.path, f"{name}-{turn}")
            if turn == "two":
                ckpt("pre-dump", "-p", nested.root, "-f", image + "-before").expect(0)
            nested.dump(image)
            ckpt("verify", image).expect(0)
            ckpt("verify", "--rehearse", image).expect(6, "namespaces of their own")
            ckpt("inspect", image).expect(0, "further mnt", "further uts (hostname inner)")
            ckpt("restore", "-f", image, "--dry-run").expect(0)
            ckpt("restore", "-f", image, "-d", "--new-pidns", "--copies", "2").expect(6, "namespaces of their own")
            nested.restore(image)
            nested.check()
        nested.verdict()
    finally:
        nested.end()


def holding(apart, setup):
    """In a further namespace, a sleep that has open what lines of Python leave in `fd`."""
    program = f'import ctypes, os, socket; {setup}; os.set_inheritable(fd, True); os.execvp("sleep", ["sleep", "60"])'
    return f"{apart} sh -c " + shlex.quote(f"mount -t tmpfs x /mnt; exec {sys.executable} -c {shlex.quote(program)}")


REFUSED = (
    ("socket", holding("unshare --net", "one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); fd = one.fileno()"), "a socket of another network namespace"),
    ("bound", holding("unshare --mount", 'one = socket.socket(socket.AF_UNIX); one.bind("/mnt/bound"); fd = one.fileno()'),
     "a bound unix socket in another mount namespace"),
    ("watch", holding("unshare --mount", 'libc = ctypes.CDLL(None); fd = libc.inotify_init(); libc.inotify_add_watch(fd, b"/mnt", 2)'),
     "inotify in another mount namespace"),
    ("time", "unshare --time --fork sleep 60", "another one than that of its tree's first process"),
    ("terminal", holding("unshare --mount", 'os.system("mount -t devpts -o newinstance,ptmxmode=666 own /dev/pts && mount --bind /dev/pts/ptmx /dev/ptmx"); '
                         'fd, other = os.openpty(); os.set_inheritable(other, True)'), "a terminal of a further mount namespace's own devpts"),
    ("console", "unshare --mount sh -c 'mount -t devpts -o newinstance own /dev/pts; exec 9<> /dev/pts/ptmx; mount --bind /dev/pts/0 /dev/full; exec sleep 60'",
     "mount /dev/full: devpts /0 of own, of a further mount namespace's own terminals"),
    ("queues", "unshare --ipc --mount sh -c 'mount -t mqueue own /mnt; exec sleep 60'", "mount /mnt: mqueue / of own, of a further network or IPC namespace"),
    ("devices", "unshare --net --mount sh -c 'mount -t sysfs own /mnt; exec sleep 60'", "mount /mnt: sysfs / of own, of a further network or IPC namespace"),
    ("callers", "nsenter --ipc=/proc/self/fd/OURS sleep 60", "that of whoever runs ckpt"),
    ("ipc", "unshare --ipc sh -c 'ipcmk -S 3 > /dev/null; exec sleep 60'", "System V objects"),
    ("net", "unshare --net sh -c 'ip link add v0 type veth peer name v1 && ip link set v1 netns 1; exec sleep 60'", "a veth with its other end outside it"),
)


def refused(place):
    """What is not carried is named before anything is touched."""
    ours = os.open("/proc/self/ns/ipc", os.O_RDONLY)
    for kind, command, words in REFUSED:
        command = command.replace("OURS", str(ours))
        popen = subprocess.Popen(["unshare", "--fork", "--kill-child", "--pid", "--ipc", "--mount", "sh", "-c", f"mount -t proc proc /proc; {command} & wait"],
                                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                                 pass_fds=(ours,) if kind == "callers" else ())
        try:
            wait_until(lambda: any("sleep" == read_text(f"/proc/{p}/comm").strip() for p in descendants(popen.pid)), "it sleeps")
            init = int(children_of(popen.pid)[0])
            ckpt("check", "-p", init).expect(1, words)
            ckpt("dump", "-p", init, "-f", os.path.join(place.path, "refused-" + kind)).expect(6, words)
            if not exists_unreaped(init):
                raise Failure(f"{kind}: it has ended")
            if kind == "net":
                image = os.path.join(place.path, "running-" + kind)
                ckpt("dump", "-p", init, "-f", image, "-R").expect(0)
                ckpt("restore", "-f", image, "-d").expect(6, "a veth with its other end outside")
        finally:
            popen.kill()
            popen.wait()


def descendants(pid):
    out = []
    for child in children_of(pid):
        out += [child, *descendants(child)]
    return out


def reap(known=None):
    """All that have ended; of `known` its exit code is kept."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0] != 0:
            if known is not None and ended[0] == known.pid:
                known.returncode = os.waitstatus_to_exitcode(ended[1])


def own_namespaces():
    """Of this process and of what has come of it: who loses its parent becomes its child."""
    out = set()
    for pid in [os.getpid(), *descendants(os.getpid())]:
        for kind in KINDS:
            try:
                out.add(namespace(pid, kind))
            except OSError:
                pass
    return out


def killed(place):
    """ckpt is killed in the middle: of a dump everything goes on in the namespaces that it had, of a restore nothing is left."""
    nested = Nested(place, "killed", "mem_anonymous", True)
    image = os.path.join(place.path, "killed-image")
    chance = random.Random(7)
    try:
        for turn in range(6):
            dump = subprocess.Popen([CKPT, "dump", "-R", "-p", str(nested.root), "-f", f"{image}-{turn}"], stdin=subprocess.DEVNULL,
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(chance.uniform(0.01, 0.4))
            dump.send_signal(signal.SIGKILL)
            dump.wait()
            time.sleep(0.2)
            nested.check()
        nested.dump(image)
        before = own_namespaces()
        pidfile = os.path.join(place.path, "killed-pid")
        for _ in range(6):
            done = kill_restore(image, pidfile, chance.uniform(0.01, 0.3))
            if done:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(done, signal.SIGKILL)

            def gone():
                reap()
                return own_namespaces() <= before
            wait_until(gone, "no namespace stays behind")
        nested.restore(image)
        nested.check()
        nested.verdict()
    finally:
        nested.end()


if __name__ == "__main__":
    become_subreaper()
    sys.exit(run_cases("further", [(f"{target}{'' if own else ', ours'}", lambda place, target=target, own=own: goes_on(place, target, own))
                                              for target, own in (("files", True), ("mem_private_file", True), ("deleted_file", True), ("files", False))] +
                       [("refused", refused), ("killed", killed)],
                       ("unshare", "nsenter", "mount", "ip")))
