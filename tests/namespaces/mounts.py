#!/usr/bin/env python3
"""Mount namespaces that are made again: process 1 behind pivot_root with file systems of its own, and processes beside another process 1."""
import contextlib
import hashlib
import os
import signal
import stat
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from harness import CKPT, TARGETS, Failure, Skip, become_subreaper, ckpt, exists_unreaped, read_text, reap_strays, run_cases, wait_until
from outside import Namespaces, children_of, namespace

# What is seen of the host is its whole tree, and on it lies what a container has.
SETUP = """
set -e; place=$1; root=$place/root
mount --rbind / "$root"; cd "$root"
mount -t tmpfs -o mode=755,size=1m,nosuid,strictatime own-dev dev
mkdir dev/pts dev/shm dev/mqueue
mount -t devpts -o newinstance,ptmxmode=666,mode=620,noexec devpts dev/pts
mount -t tmpfs -o nodev,noatime shm dev/shm; mount -t mqueue mqueue dev/mqueue
mount -t proc -o nosuid,nodev,noexec proc proc; mount -t sysfs -o ro sysfs sys
mknod -m 666 dev/null c 1 3; mknod -m 666 dev/zero c 1 5; mknod -m 666 dev/urandom c 1 9; mkfifo -m 640 dev/fifo; ln -s pts/ptmx dev/ptmx
mount --bind "$place/given" "./$place/bound"; mount -o remount,bind,ro "./$place/bound"
mount --bind proc/sys proc/sys; mount -o remount,bind,ro proc/sys
mount --bind dev/null proc/version; mount -t tmpfs -o ro masked proc/fs
mount -t tmpfs -o size=8m,nr_inodes=500 work "./$place/work"; mkdir "./$place/work/files"; mount --make-shared "./$place/work"
cd "./$place/work/files"
mkdir -p a/b; echo one > a/b/c; ln a/b/c hard; ln -s nowhere/at/all link; head -c 700001 /dev/urandom > big; : > empty; truncate -s 100000 holes
chown 12:34 a big; chmod 2751 a; chmod 4711 big; touch -d '2001-02-03 04:05:06.789 UTC' big a a/b; touch -h -d '2002-02-03 UTC' link
mkfifo fifo; mknod device b 7 99; printf 'new\\nline' > "$(printf 'odd \\\\ name\\n')"
command -v setfattr > /dev/null && setfattr -n trusted.ckpt -v value big || true
eval "$2"
cd "$root"; pivot_root . "./$place/old"; cd /
umount -l "$place/old"
exec "$3" "$place/work" < /dev/null > "$place/work/log" 2>&1
"""
POINTS = ("/", "/dev", "/dev/pts", "/dev/shm", "/dev/mqueue", "/proc", "/sys", "/proc/sys", "/proc/version", "/proc/fs", "/mnt", "/media")


def check(folder, number):
    """The target ends once it has answered, and its file systems with it, but for what is held here."""
    held = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    work = f"/proc/self/fd/{held}"
    try:
        with open(f"{work}/.check", "w", encoding="ascii") as stream:
            stream.write("0")
        os.rename(f"{work}/.check", f"{work}/check")
        wait_until(lambda: os.path.exists(f"{work}/result"), "the target answers")
        verdict = read_text(f"{work}/result").strip()
        if verdict != f"pass {number}":
            raise Failure(f"{verdict}\n{read_text(work + '/log')}")
    finally:
        os.close(held)


class Pivoted:
    """A target as process 1 of namespaces of its own."""

    def __init__(self, place, name, target="files", extra="", pass_fds=(), prepare=lambda folder: None):
        self.place = place.folder(name)
        for folder in ("root", "given", "bound", "work", "old"):
            os.mkdir(os.path.join(self.place, folder))
        with open(os.path.join(self.place, "given", "file"), "w", encoding="ascii") as stream:
            stream.write("of the host\n")
        prepare(os.path.join(self.place, "given"))
        flags = ["--fork", "--pid", "--mount", "--ipc", "--uts", "--net"]
        self.popen = subprocess.Popen(["unshare", *flags, "sh", "-c", SETUP, "sh", self.place, extra, os.path.join(TARGETS, f"target_{target}")],
                                      stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
                                      pass_fds=pass_fds)
        self.work, self.pid = os.path.join(self.place, "work"), 0
        wait_until(self.started, "process 1 is ready")
        self.number = read_text(self.path("ready")).split()[1]

    def started(self):
        if self.popen.poll() is not None:
            raise Skip(f"no such mounts can be made here: {self.popen.stderr.read().decode().strip()}")
        self.pid = int((children_of(self.popen.pid) or [0])[0])
        return self.pid != 0 and os.path.exists(self.path("ready"))

    def path(self, *names):
        return os.path.join(f"/proc/{self.pid}/root{self.work}", *names)

    def dump(self, image, *flags):
        return ckpt("dump", "-p", self.pid, "-f", image, *flags)

    def restore(self, image, *flags):
        """What `dump` has ended, from its image."""
        pidfile = os.path.join(self.place, "pid")
        ckpt("restore", "-f", image, "-d", "--pidfile", pidfile, *flags).expect(0)
        self.pid = int(read_text(pidfile))

    def check(self):
        check(self.path(), self.number)

    def mounts(self):
        """By place, of those that this test has made: the last is the one that is seen."""
        out = {}
        for line in read_text(f"/proc/{self.pid}/mountinfo").splitlines():
            left, right = line.split(" - ")
            _, _, _, root, point, options, *fields = left.split()
            if point in POINTS or point.startswith(self.place):
                out[point] = (root, options, [field.split(":")[0] for field in fields], *right.split())
        return out

    def files(self):
        """All that can be known of the files of its own file systems."""
        out = {}
        for top in (self.path("files"), f"/proc/{self.pid}/root/dev"):
            for where, folders, names in os.walk(top):
                folders[:] = [name for name in folders if name not in ("pts", "mqueue")]
                for name in (*folders, *names, "."):
                    path = os.path.join(where, name)
                    seen = os.lstat(path)
                    content = ""
                    if stat.S_ISREG(seen.st_mode):
                        with open(path, "rb") as stream:
                            content = hashlib.sha256(stream.read()).hexdigest()
                    if stat.S_ISLNK(seen.st_mode):
                        content = os.readlink(path)
                    attributes = {} if stat.S_ISLNK(seen.st_mode) else {key: os.getxattr(path, key) for key in os.listxattr(path)}
                    links = seen.st_nlink if not stat.S_ISDIR(seen.st_mode) else 0
                    out[os.path.relpath(path, f"/proc/{self.pid}/root")] = (seen.st_mode, seen.st_uid, seen.st_gid, seen.st_rdev, links,
                                                                           seen.st_size, seen.st_mtime_ns, content, attributes)
        return out

    def end(self):
        for pid in {self.pid, int((children_of(self.popen.pid) or [0])[0])} - {0}:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.popen.wait(20)
        wait_until(lambda: not exists_unreaped(self.pid), "it has ended")


def same(what, before, after):
    if before != after:
        differing = [key for key in {*before, *after} if before.get(key) != after.get(key)]
        raise Failure(f"{what}: " + "; ".join(f"{key}: {before.get(key)} became {after.get(key)}" for key in sorted(differing)))


def first_process(place):
    """Twice: what was made is dumped like what was there before. 7, 8 and 9 were opened outside; there is no /dev/full inside, and another
    /dev/random."""
    one = Pivoted(place, "first", extra='exec 7< /dev/null 8> /dev/full 9< /dev/random; : > "$root/dev/random"')
    try:
        mounts, files = one.mounts(), one.files()
        devices = [os.stat(f"/proc/{one.pid}/fd/{number}").st_rdev for number in (7, 8, 9)]
        if len(mounts) < len(POINTS):
            raise Failure(f"the test has made {sorted(mounts)} only")
        outside = read_text("/proc/self/mountinfo")
        for name in ("one", "two"):
            image = os.path.join(place.path, name)
            one.dump(image).expect(0, "ended")
            wait_until(lambda: not exists_unreaped(one.pid), "it has ended")
            ckpt("restore", "-f", image, "--dry-run").expect(0)
            ckpt("verify", image).expect(0)
            one.restore(image)
            same("mounts", mounts, one.mounts())
            same("files", files, one.files())
            if devices != [os.stat(f"/proc/{one.pid}/fd/{number}").st_rdev for number in (7, 8, 9)]:
                raise Failure("/dev/null, /dev/full or /dev/random is another device")
            if namespace(one.pid, "mnt") == namespace("self", "mnt") or read_text("/proc/self/mountinfo") != outside:
                raise Failure("the mounts are not its own")
            if read_text(f"/proc/{one.pid}/root/proc/self/comm") or "1" not in os.listdir(f"/proc/{one.pid}/root/proc"):
                raise Failure("/proc is not that of its pid namespace")
        one.check()
    finally:
        one.end()


def killed(place):
    """kill -9 of a restore, anywhere: nothing is mounted, nothing runs."""
    one = Pivoted(place, "killed", "mem_anonymous")
    try:
        image = os.path.join(place.path, "killed-image")
        one.dump(image).expect(0)
        outside = read_text("/proc/self/mountinfo")
        begin = time.monotonic()
        one.restore(image)
        took = time.monotonic() - begin
        os.kill(one.pid, signal.SIGKILL)
        wait_until(lambda: not exists_unreaped(one.pid), "it has ended")
        pidfile = os.path.join(one.place, "pid")
        for part in range(8):
            os.unlink(pidfile)
            restore = subprocess.Popen([CKPT, "restore", "-f", image, "-d", "--pidfile", pidfile], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(took * part / 8)
            restore.kill()
            restore.wait()
            time.sleep(0.05)
            if os.path.exists(pidfile):  # it was done
                os.kill(int(read_text(pidfile)), signal.SIGKILL)
            else:
                open(pidfile, "w", encoding="ascii").close()
            reap_strays(10)
            if read_text("/proc/self/mountinfo") != outside:
                raise Failure("something is mounted")
    finally:
        one.end()


def refused(place):
    """What cannot be made is named by the dump, before it ends anything; what is given takes its place."""
    one = Pivoted(place, "refused", extra='''mount -t tmpfs hidden "$root/mnt"; mkdir "$root/mnt/a" "$root/mnt/b"
        mount -t overlay -o "lowerdir=$root/mnt/a:$root/mnt/b" nobody "$root/mnt"''')
    try:
        image = os.path.join(place.path, "refused-image")
        one.dump(image).expect(6, "mount /mnt: overlay", "--external")
        ckpt("check", "-p", one.pid).expect(1, "mount /mnt: overlay", "/mnt/a cannot be reached there")
        one.dump(image, "--external", "nonsense").expect(2)
        one.dump(image, "--external", "mnt[/mnt]:data", "--external", "mnt[/nowhere]:x").expect(2, "/nowhere")
        one.dump(image, "--external", "mnt[/mnt]:data", "--external", "mnt[/mnt]:other").expect(2, "another --external")
        one.dump(image, "--external", "mnt[/mnt]:data", "--external", f"mnt[{one.place}/bound]:bound").expect(0)
        wait_until(lambda: not exists_unreaped(one.pid), "it has ended")
        given = place.folder("given")
        ckpt("restore", "-f", image, "-d").expect(6, "mount /mnt", "mnt[data]:PATH")
        ckpt("restore", "-f", image, "-d", "--external", f"mnt[data]:{given}/none").expect(4, "none")
        ckpt("restore", "-f", image, "-d", "--external", f"mnt[data]:{given}", "--external", f"mnt[date]:{given}").expect(2, "mnt[date]")
        moved = one.place + "/given"
        os.rename(moved, moved + "-before")
        os.mkdir(moved)
        ckpt("restore", "-f", image, "-d", "--external", f"mnt[data]:{given}").expect(1, "is not what was mounted at")
        os.rmdir(moved)
        os.symlink(moved + "-before", moved)
        ckpt("restore", "-f", image, "-d", "--external", f"mnt[data]:{given}").expect(8, "mounted at")
        one.restore(image, "--external", f"mnt[data]:{given}", "--external", f"mnt[bound]:{moved}-before")
        if os.stat(f"/proc/{one.pid}/root/mnt").st_ino != os.stat(given).st_ino:
            raise Failure("another folder is mounted at /mnt than was given")
        if read_text(f"/proc/{one.pid}/root{one.place}/bound/file") != "of the host\n":
            raise Failure("what was given is not mounted")
        ckpt("restore", "-f", image, "-d", "--join-ns", f"mnt:{one.pid}", "--root", "/").expect(2)
        one.check()
    finally:
        one.end()


LAYERS = '''
    long=$(printf '%0200d' 0); mkdir lower upper around "$long"; echo lower > lower/one; echo lower > lower/two; mkdir lower/folder lower/hidden; echo lower > lower/folder/three
    below=/${place#/}/work/files; cd "$root"; chroot "$root" mount -t overlay -o "lowerdir=$below/lower:$below/$long:/var,upperdir=$below/upper,workdir=$below/around" layers /mnt
    echo upper > mnt/one; rm mnt/two; echo new > mnt/new; mkdir mnt/folder/inner; exec 7<> mnt/new; rm -r mnt/hidden; mount --bind mnt/folder media
'''


def overlay(place):
    """Made again of its folders, twice: what is hidden stays so, what was written is in the upper one, and open files go on."""
    one = Pivoted(place, "overlay", extra=LAYERS)
    try:
        def seen():
            root = f"/proc/{one.pid}/root"
            found = {name: read_text(f"{root}/mnt/{name}") for name in ("one", "new") if os.path.exists(f"{root}/mnt/{name}")}
            found |= {"": sorted(os.listdir(f"{root}/mnt")), "media": sorted(os.listdir(f"{root}/media"))}
            return found | {"upper": sorted(os.listdir(one.path("files", "upper")))}
        before, mounts = seen(), {point: line[2:] for point, line in one.mounts().items()}
        if before["one"] != "upper\n" or {"two", "hidden"} & set(before[""]) or before["media"] != ["inner", "three"] or "cache" not in before[""]:
            raise Failure(f"the overlay is not as this test wants it: {before}")
        for name in ("overlay-one", "overlay-two"):
            image = os.path.join(place.path, name)
            ckpt("check", "-p", one.pid).expect(0)
            one.dump(image).expect(0, "ended")
            wait_until(lambda: not exists_unreaped(one.pid), "it has ended")
            one.restore(image)
            same("the overlay", before, seen())
            same("mounts", mounts, {point: line[2:] for point, line in one.mounts().items()})
            with open(f"/proc/{one.pid}/fd/7", "w", encoding="ascii") as stream:
                stream.write(name)
            if read_text(one.path("files", "upper", "new")) != name or not os.readlink(f"/proc/{one.pid}/fd/7").endswith("/mnt/new"):
                raise Failure("what was open in it is another file")
            before["new"] = name
        one.check()
    finally:
        one.end()


LIVE = """
    below=/${place#/}/given; cd "$root"; chroot "$root" mount -t overlay -o "lowerdir=$below/lower,upperdir=$below/upper,workdir=$below/around" layers /mnt
    echo new > mnt/new; exec 7<> mnt/new 8<> mnt/lower
"""


def overlay_in_use(place):
    """An overlay of folders outside: while it is mounted nobody mounts it a second time, and a dry run writes nothing to its folders."""
    def prepare(folder):
        for name in ("lower", "upper", "around"):
            os.mkdir(os.path.join(folder, name))
        for name in ("lower", "other"):
            with open(os.path.join(folder, "lower", name), "w", encoding="ascii") as stream:
                stream.write("lower")
    one = Pivoted(place, "used", "mem_anonymous", extra=LIVE, prepare=prepare)
    try:
        def folders():
            return sorted(os.path.join(where, name) for where, names, files in os.walk(os.path.join(one.place, "given")) for name in names + files)
        image = os.path.join(place.path, "used-image")
        one.dump(image + "-running", "-R").expect(0)
        before = folders()
        for flags in (["--dry-run"], ["-d"]):
            ckpt("restore", "-f", image + "-running", *flags).expect(7, "mount /mnt", "another mount is using still")
            same("the folders", {"": before}, {"": folders()})
        with open(f"/proc/{one.pid}/root/mnt/other", "a", encoding="ascii") as stream:
            stream.write(" and more")
        before = folders()
        dump = subprocess.Popen([CKPT, "dump", "-p", str(one.pid), "-f", image], stdin=subprocess.DEVNULL)

        def ended():
            # What the first dump has left in the pid namespace is our child, and holds up its end until it is reaped.
            for pid in {*map(int, children_of(os.getpid()))} - {dump.pid, one.popen.pid}:
                exists_unreaped(pid)
            return dump.poll() is not None
        wait_until(ended, "the dump has ended", 40)
        if dump.returncode != 0:
            raise Failure(f"the dump: exit {dump.returncode}")
        wait_until(lambda: not exists_unreaped(one.pid), "it has ended")
        inodes = {path: os.lstat(path).st_ino for path in before}
        ckpt("restore", "-f", image, "--dry-run").expect(0)
        same("the folders after a dry run", inodes, {path: os.lstat(path).st_ino for path in folders()})
        one.restore(image)
        if read_text(f"/proc/{one.pid}/root/mnt/other") != "lower and more":
            raise Failure("the overlay shows something else")
        one.check()
    finally:
        one.end()


def overlay_of_others(place):
    """An overlay that was mounted under another root, where its paths led to other folders with the same names in them."""
    def prepare(folder):
        for name in ("a", "b"):
            os.makedirs(os.path.join(folder, "..", "work", name))
            with open(os.path.join(folder, "..", "work", name, name), "w", encoding="ascii") as stream:
                stream.write("outside")
    one = Pivoted(place, "others", "mem_anonymous", prepare=prepare, extra="""
        mount -t overlay -o "lowerdir=$place/work/a:$place/work/b" layers "$root/mnt"
        for name in a b; do mkdir "$root/$place/work/$name"; echo inside > "$root/$place/work/$name/$name"; done""")
    try:
        ckpt("check", "-p", one.pid).expect(1, "mount /mnt: overlay", "whose folders are others there")
    finally:
        one.end()


def server_is_gone(place):
    """A file system whose server does not answer (FUSE): nobody waits for it."""
    try:
        server = os.open("/dev/fuse", os.O_RDWR)
    except OSError as lacking:
        raise Skip(f"no /dev/fuse: {lacking}") from lacking
    one = Pivoted(place, "gone", "mem_anonymous", pass_fds=(server,), extra=f"""
        mount -i -t fuse -o fd={server},rootmode=40000,user_id=0,group_id=0 nobody "$root/mnt"; exec {server}<&-""")
    try:
        image = os.path.join(place.path, "gone-image")
        ckpt("dump", "-p", one.pid, "-f", image, timeout=20).expect(6, "mount /mnt: fuse", "--external")
        one.dump(image, "--external", "mnt[/mnt]:data").expect(0)
        wait_until(lambda: not exists_unreaped(one.pid), "it has ended")
        one.restore(image, "--external", f"mnt[data]:{place.folder('instead')}")
        one.check()
    finally:
        os.close(server)
        one.end()


def beside(place, program):
    """Not process 1: in new namespaces, with a copy of the file system in memory that it works in."""
    there = Namespaces(place.folder(program))
    back = 0
    try:
        pid = there.start(program)
        image = os.path.join(place.path, f"{program}-image")
        ckpt("dump", "-p", pid, "-f", image).expect(0)
        wait_until(lambda: not exists_unreaped(pid), f"{program} has ended")
        pidfile = os.path.join(place.path, "pid")
        ckpt("restore", "-f", image, "-d", "--pidfile", pidfile).expect(0)
        back = int(read_text(pidfile))
        if namespace(back, "mnt") in (namespace(there.init, "mnt"), namespace("self", "mnt")):
            raise Failure("not in a mount namespace of its own")
        there.init = back
        check(there.path("work"), there.number)
    finally:
        there.end()
        if back and exists_unreaped(back):
            with contextlib.suppress(ProcessLookupError):  # it may be ending by itself
                os.kill(back, signal.SIGKILL)
            wait_until(lambda: not exists_unreaped(back), "it has ended")


if __name__ == "__main__":
    become_subreaper()
    PROGRAMS = ("files", "deleted_file", "fifo_named", "inotify", "sock_unix_listen", "posix_queue", "threads", "tree_children")
    sys.exit(run_cases("mounts", [("first process", first_process), ("killed", killed), ("refused", refused), ("overlay", overlay),
                                  ("overlay in use", overlay_in_use), ("overlay of others", overlay_of_others),
                                  ("server is gone", server_is_gone)] +
                       [(program, lambda place, program=program: beside(place, program)) for program in PROGRAMS],
                       ("unshare", "nsenter", "mount", "pivot_root")))
