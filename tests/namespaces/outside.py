#!/usr/bin/env python3
"""Processes in namespaces of their own, looked at and dumped from outside, restored into a running process's namespaces or into new ones.

The targets check themselves. Their folder is a file system in memory that only their mount namespace has: what is looked up
elsewhere is not found.
"""
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from harness import CKPT, TARGETS, Failure, Skip, ckpt, exists_unreaped, read_text, run_cases, wait_until

ALL = ["--pid", "--mount", "--ipc", "--uts", "--net", "--cgroup"]
HOLDER = 'mount -t proc proc /proc; mount -t tmpfs tmpfs "$0"; hostname inside; while :; do sleep 1; done'


# What an own network namespace is given beside what a new one has.
NETWORK = "ip link set lo up; echo 42 > /proc/sys/net/ipv4/ip_default_ttl; "


def kill_restore(image, pidfile, seconds):
    """kill -9 of a restore after so long. The first process where it was done already, else 0."""
    if os.path.exists(pidfile):
        os.unlink(pidfile)
    restore = subprocess.Popen([CKPT, "restore", "-f", image, "-d", "--pidfile", pidfile], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    time.sleep(seconds)
    restore.kill()
    restore.wait()
    time.sleep(0.05)
    return int(read_text(pidfile)) if os.path.exists(pidfile) else 0


def namespace(pid, kind):
    return os.readlink(f"/proc/{pid}/ns/{kind}")


def children_of(pid):
    return read_text(f"/proc/{pid}/task/{pid}/children").split()


class Namespaces:
    """New ones, held by a shell that is their process 1, as by a pause container."""

    def __init__(self, folder):
        self.folder = folder
        os.makedirs(folder, exist_ok=True)
        self.popen = subprocess.Popen(["unshare", "--fork", "--kill-child", *ALL, "sh", "-c", HOLDER, folder],
                                      stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: self.popen.poll() is not None or children_of(self.popen.pid), "number 1 is there")
        if self.popen.poll() is not None:
            raise Skip("no namespaces can be made here")
        self.init = int(children_of(self.popen.pid)[0])
        wait_until(lambda: any(read_text(f"/proc/{child}/comm").strip() == "sleep" for child in children_of(self.init)), "the namespaces are as they are to be")

    def path(self, *names):
        return os.path.join(f"/proc/{self.init}/root" + self.folder, *names)

    def start(self, program, *arguments):
        """Runs a target there; its number here."""
        work = os.path.join(self.folder, "work")
        os.makedirs(self.path("work"))
        os.chmod(self.path("work"), 0o777)
        enter = subprocess.Popen(["nsenter", "--target", str(self.init), "--all", "setsid", "sh", "-c", '"$@" < /dev/null > "$0/log" 2>&1 &', work,
                                  os.path.join(TARGETS, f"target_{program}"), work, *arguments], stdin=subprocess.DEVNULL)
        if enter.wait() != 0:
            raise Failure(f"{program} does not start")
        wait_until(lambda: os.path.exists(self.path("work", "ready")) or os.path.exists(self.path("work", "result")), f"{program} is ready")
        if os.path.exists(self.path("work", "result")):
            raise Skip(read_text(self.path("work", "result")).strip())
        inside, self.number = read_text(self.path("work", "ready")).split()
        self.inside = int(inside)
        return self.outside(self.inside)

    def outside(self, inside):
        for pid in filter(str.isdigit, os.listdir("/proc")):
            for line in read_text(f"/proc/{pid}/status").splitlines():
                if line.startswith("NSpid:") and line.split()[-1] == str(inside) and len(line.split()) > 2 and namespace(pid, "pid") == namespace(self.init, "pid"):
                    return int(pid)
        raise Failure(f"process {inside} is not there")

    def forget_answers(self):
        for name in ("ready", "result"):
            if os.path.exists(self.path("work", name)):
                os.unlink(self.path("work", name))

    def check(self):
        with open(self.path("work", ".check"), "w") as stream:
            stream.write("0")
        os.rename(self.path("work", ".check"), self.path("work", "check"))
        wait_until(lambda: os.path.exists(self.path("work", "result")), "the target answers")
        verdict = read_text(self.path("work", "result")).strip()
        if verdict != f"pass {self.number}":
            raise Failure(f"{verdict}\n{read_text(self.path('work', 'log'))}")

    def end(self):
        self.popen.kill()
        self.popen.wait()


def into(place, program, *arguments, flags=()):
    """A process beside the namespaces' first one, from outside: check, pre-dump, dump, and back where it was."""
    there = Namespaces(place.folder(program))
    try:
        pid = there.start(program, *arguments)
        image = os.path.join(place.path, f"{program}-image")
        ckpt("check", "-p", pid, *flags).expect(0)
        ckpt("pre-dump", "-p", pid, "-f", image + "-first", *flags).expect(0)
        report = ckpt("dump", "-p", pid, "-f", image, "--json", *flags)
        report.expect(0)
        if report.document()["pid"] != there.inside or not report.document()["parent"]:
            raise Failure(f"{program}: {report.document()}")
        wait_until(lambda: not exists_unreaped(pid), f"{program} has ended")
        there.forget_answers()
        pidfile = os.path.join(place.path, "pid")
        ckpt("restore", "-f", image, "-d", "--into", there.init, "--pidfile", pidfile).expect(0)
        back = int(read_text(pidfile))
        for kind in ("pid", "mnt", "net", "ipc", "uts"):
            if namespace(back, kind) != namespace(there.init, kind):
                raise Failure(f"{program}: restored into another {kind} namespace")
        there.check()
    finally:
        there.end()


def first_process(place):
    """Process 1 of a namespace: ended from outside, and process 1 of a new one afterwards, twice."""
    folder = os.path.join(place.path, "first")
    os.makedirs(folder)
    popen = subprocess.Popen(["unshare", "--fork", "--kill-child", "--pid", "--ipc", "--uts", "--net", "sh", "-c", NETWORK + 'hostname first; exec "$0" "$1"', os.path.join(TARGETS, "target_sysv_ipc"), folder],
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        wait_until(lambda: os.path.exists(os.path.join(folder, "ready")), "it is ready")
        number = read_text(os.path.join(folder, "ready")).split()[1]
        pid = int(children_of(popen.pid)[0])
        ckpt("dump", "-p", pid, "-f", os.path.join(place.path, "running"), "-R").expect(0)
        ckpt("dump", "-p", pid, "-f", os.path.join(place.path, "stopped"), "-s").expect(6, "cannot be left stopped")
        for name in ("one", "two"):
            said = ckpt("dump", "-p", pid, "-f", os.path.join(place.path, name))
            said.expect(0, "ended")
            wait_until(lambda: not exists_unreaped(pid), "it has ended")
            pidfile = os.path.join(place.path, "pid")
            # Of --kill-child, once: a signal at the end of the parent, which is ckpt now.
            ckpt("restore", "-f", os.path.join(place.path, name), "-d", "--pidfile", pidfile).expect(0, *(["PR_SET_PDEATHSIG"] if name == "one" else []))
            pid = int(read_text(pidfile))
            status = read_text(f"/proc/{pid}/status")
            if not any(line.startswith("NSpid:") and line.split()[-1] == "1" for line in status.splitlines()):
                raise Failure(f"not number 1: {status}")
            if namespace(pid, "mnt") != namespace("self", "mnt") or namespace(pid, "uts") == namespace("self", "uts"):
                raise Failure("not in the namespaces that it was in")
            hostname = subprocess.run(["nsenter", "--target", str(pid), "--uts", "hostname"], capture_output=True, text=True, check=True).stdout.strip()
            if hostname != "first":
                raise Failure(f"the hostname is {hostname}")
            network = subprocess.run(["nsenter", "--target", str(pid), "--net", "sh", "-c", "cat /proc/sys/net/ipv4/ip_default_ttl; ip -o link show lo"],
                                     capture_output=True, text=True, check=True).stdout
            if not network.startswith("42\n") or ",UP" not in network:
                raise Failure(f"the network namespace is another one: {network}")
        with open(os.path.join(folder, ".check"), "w") as stream:
            stream.write("0")
        os.rename(os.path.join(folder, ".check"), os.path.join(folder, "check"))
        wait_until(lambda: os.path.exists(os.path.join(folder, "result")), "it answers")
        verdict = read_text(os.path.join(folder, "result")).strip()
        if verdict != f"pass {number}":
            raise Failure(verdict)
    finally:
        popen.kill()
        popen.wait()


def second_process(place):
    """Number 2 of a namespace whose number 1 is restored with it."""
    popen = subprocess.Popen(["unshare", "--fork", "--kill-child", "--pid", "sh", "-c", "sleep 1000 & wait"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL, start_new_session=True)
    image, pidfile = os.path.join(place.path, "second"), os.path.join(place.path, "pid")
    back = 0
    try:
        wait_until(lambda: children_of(popen.pid) and children_of(children_of(popen.pid)[0]), "number 2 is there")
        ckpt("dump", "-p", children_of(popen.pid)[0], "-f", image).expect(0)
        popen.wait(20)
        ckpt("restore", "-f", image, "--dry-run").expect(0)
        ckpt("restore", "-f", image, "-d", "--pidfile", pidfile).expect(0)
        back = int(read_text(pidfile))
        numbers = [line.split()[-1] for line in read_text(f"/proc/{children_of(back)[0]}/status").splitlines() if line.startswith("NSpid:")]
        if numbers != ["2"]:
            raise Failure(f"its number is {numbers}")
    finally:
        popen.kill()
        popen.wait()
        if back and exists_unreaped(back):
            os.kill(back, 9)


def first_process_goes_along(place):
    """What is dumped is a child of process 1, which ends when that does: the image is there, and ckpt says so."""
    folder = os.path.join(place.path, "along")
    os.makedirs(folder)
    overlay = "mkdir /mnt/a /mnt/b; mount -t overlay -o lowerdir=/mnt/a:/mnt/b none /mnt"
    popen = subprocess.Popen(["unshare", "--fork", "--pid", "--mount", "sh", "-c", f'mount -t tmpfs x /mnt; {overlay}; setsid "$0" "$1" & wait', os.path.join(TARGETS, "target_mem_anonymous"), folder],
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    back = 0
    try:
        wait_until(lambda: os.path.exists(os.path.join(folder, "ready")), "it is ready")
        number = read_text(os.path.join(folder, "ready")).split()[1]
        init = int(children_of(popen.pid)[0])
        image, pidfile = os.path.join(place.path, "along-image"), os.path.join(place.path, "pid")
        ckpt("check", "-p", children_of(init)[0]).expect(0, "/mnt: overlay", "--into")
        said = ckpt("dump", "-p", children_of(init)[0], "-f", image, "--json").expect(0)
        if said.document()["target_state"] != "ended":
            raise Failure(said.out)
        popen.wait(20)
        if "/mnt: overlay" not in said.err or "--into" not in said.err:
            raise Failure(f"no warning that its mounts cannot be made again: {said.err}")
        ckpt("restore", "-f", image, "-d", "--pidfile", pidfile, "--external", "mnt[/mnt]:/usr").expect(0)
        back = int(read_text(pidfile))
        with open(os.path.join(folder, ".check"), "w") as stream:
            stream.write("0")
        os.rename(os.path.join(folder, ".check"), os.path.join(folder, "check"))
        wait_until(lambda: os.path.exists(os.path.join(folder, "result")), "it answers")
        if read_text(os.path.join(folder, "result")).strip() != f"pass {number}":
            raise Failure(read_text(os.path.join(folder, "result")))
    finally:
        popen.kill()
        popen.wait()
        if back and exists_unreaped(back):
            os.kill(back, 9)


def one_alone(place):
    """A process with one namespace of its own, which has the others, that of pids too, from us."""
    for kind in ("net", "uts", "ipc", "mnt"):
        image = os.path.join(place.path, "alone-" + kind)
        popen = subprocess.Popen(["unshare", "--mount" if kind == "mnt" else "--" + kind, "sleep", "1000"], stdin=subprocess.DEVNULL,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        back = popen.pid
        try:
            wait_until(lambda: read_text(f"/proc/{popen.pid}/comm").strip() == "sleep", "it sleeps")
            ckpt("dump", "-p", popen.pid, "-f", image + "-running", "-R").expect(0)
            ckpt("dump", "-p", popen.pid, "-f", image).expect(0, "ended")
            popen.wait()
            ckpt("restore", "-f", image, "-d").expect(0)
            if namespace(back, kind) == namespace("self", kind) or namespace(back, "pid") != namespace("self", "pid"):
                raise Failure(f"{kind}: not in the namespaces that it was in")
        finally:
            subprocess.run(["kill", "-9", str(back)], stderr=subprocess.DEVNULL)
            popen.wait()


CLOCKS = """
import sys, time
while True:
    with open(sys.argv[1] + ".new", "w") as out:
        print(time.clock_gettime(time.CLOCK_MONOTONIC), time.clock_gettime(time.CLOCK_BOOTTIME), file=out)
    __import__("os").rename(sys.argv[1] + ".new", sys.argv[1])
    time.sleep(0.02)
"""


def clocks(place):
    """A time namespace: what the process reads goes on where it was, dumped from outside twice."""
    said = os.path.join(place.path, "clocks")
    popen = subprocess.Popen(["unshare", "--fork", "--time", "--monotonic", "1000000", "--boottime", "2000000", sys.executable, "-c", CLOCKS, said],
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    back = 0

    def told():
        wait_until(lambda: len(read_text(said).split()) == 2, "it tells")
        return [float(word) for word in read_text(said).split()]
    try:
        wait_until(lambda: popen.poll() is not None or os.path.exists(said), "it runs")
        if popen.poll() is not None:
            raise Skip("no time namespaces here")
        back = int(children_of(popen.pid)[0])
        if min(told()) < 1000000:
            raise Failure(f"the clocks are {told()}")
        for name in ("clocks-one", "clocks-two"):
            image, pidfile = os.path.join(place.path, name), os.path.join(place.path, "pid")
            ckpt("check", "-p", back).expect(0)
            ckpt("dump", "-p", back, "-f", image).expect(0)
            wait_until(lambda: not exists_unreaped(back), "it has ended")
            before = told()
            time.sleep(1.5)
            os.unlink(said)
            begin = time.monotonic()
            ckpt("restore", "-f", image, "-d", "--pidfile", pidfile).expect(0)
            back = int(read_text(pidfile))
            after = told()
            took = time.monotonic() - begin
            if not all(0 < now - then < took + 1 for then, now in zip(before, after)):
                raise Failure(f"the clocks were {before}, and are {after} after {took} s")
            if namespace(back, "time") == namespace("self", "time") or namespace(back, "time") != namespace(back, "time_for_children"):
                raise Failure("not in a time namespace of its own")
            ckpt("restore", "-f", image, "-d", "--into", back).expect(6, "time namespace")
    finally:
        popen.kill()
        popen.wait()
        if back and exists_unreaped(back):
            os.kill(back, 9)


# Attached to a System V segment, which with shm_rmid_forced is gone as soon as nobody is.
SEGMENT = """
import ctypes, time
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
ctypes.memset(libc.shmat(libc.shmget(0, 4096, 0o1600), None, 0), 65, 4096)
time.sleep(1000)
"""


def ipc_limits(place):
    """Limits of a new IPC namespace are those that the old one had, and a segment survives that."""
    limits = {"kernel/msgmax": "12345", "kernel/sem": "250 32000 32 128", "kernel/shmmax": "1000000", "fs/mqueue/msg_max": "33", "kernel/shm_rmid_forced": "1"}
    setup = "".join(f"echo '{value}' > /proc/sys/{path}; " for path, value in limits.items())
    popen = subprocess.Popen(["unshare", "--fork", "--pid", "--ipc", "sh", "-c", setup + f"exec {sys.executable} -c '{SEGMENT}'"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL, start_new_session=True)
    pid = 0
    try:
        wait_until(lambda: any("/SYSV" in read_text(f"/proc/{child}/maps") for child in children_of(popen.pid)), "it has a segment")
        pid = int(children_of(popen.pid)[0])
        image, pidfile = os.path.join(place.path, "limits"), os.path.join(place.path, "pid")
        ckpt("dump", "-p", pid, "-f", image).expect(0)
        wait_until(lambda: not exists_unreaped(pid), "it has ended")
        ckpt("restore", "-f", image, "-d", "--pidfile", pidfile).expect(0)
        pid = int(read_text(pidfile))
        with open(f"/proc/{pid}/maps", encoding="ascii") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
            memory.seek(next(int(line.split("-")[0], 16) for line in maps if "/SYSV" in line))
            if memory.read(4096) != b"A" * 4096:
                raise Failure("the segment has other bytes")
        for path, value in limits.items():
            now = subprocess.run(["nsenter", "--target", str(pid), "--ipc", "cat", "/proc/sys/" + path], capture_output=True, text=True, check=True).stdout
            if now.split() != value.split():
                raise Failure(f"{path} is {now.strip()}, and was {value}")
    finally:
        popen.kill()
        popen.wait()
        if pid and exists_unreaped(pid):
            os.kill(pid, 9)


def refused(place):
    """What cannot be done is told before anything is touched."""
    there = Namespaces(place.folder("refused"))
    try:
        pid = there.start("mem_anonymous")
        image = os.path.join(place.path, "refused-image")
        ckpt("dump", "-p", pid, "-f", image, "-R").expect(0)
        ckpt("restore", "-f", image, "-d", "--into", 1 << 22).expect(4)
        ckpt("restore", "-f", image, "-d", "--into", there.init).expect(7, "is taken by")
        ckpt("restore", "-f", image, "-d", "--join-ns", "nonsense:/proc/1/ns/net").expect(2)
        ckpt("restore", "-f", image, "-d", "--join-ns", "time:/proc/1/ns/time").expect(2)
        ckpt("restore", "-f", image, "-d", "--into", there.init, "--new-pidns").expect(2, "exclude each other")
        there.check()
        wired = ckpt("inspect", image, "--json")
        wired.expect(0)
        if set(wired.document()["namespaces"]) < {"pid", "mnt", "net", "ipc", "uts"}:
            raise Failure(f"inspect says {wired.document()['namespaces']}")
    finally:
        there.end()
    for setup, words in (("ipcmk -S 3", "1 System V objects that no process of the tree"),):
        holder = subprocess.Popen(["unshare", "--fork", "--kill-child", "--pid", "--net", "--ipc", "sh", "-c", setup + " > /dev/null && exec sleep 60"],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            wait_until(lambda: holder.poll() is not None or any(read_text(f"/proc/{c}/comm").strip() == "sleep" for c in children_of(holder.pid)), setup)
            if holder.poll() is not None:
                print(f"skipped: {setup}: this host cannot do it")
                continue
            ckpt("dump", "-p", int(children_of(holder.pid)[0]), "-f", os.path.join(place.path, "routed")).expect(6, words)
        finally:
            holder.kill()
            holder.wait()
    apart = subprocess.Popen(["unshare", "--user", "--map-root-user", "unshare", "--user", "--map-root-user", "sleep", "60"], stdin=subprocess.DEVNULL)
    try:
        wait_until(lambda: apart.poll() is not None or read_text(f"/proc/{apart.pid}/comm").strip() == "sleep", "it sleeps")
        if apart.poll() is None:
            ckpt("check", "-p", apart.pid).expect(1, "within another user namespace")
            ckpt("dump", "-p", apart.pid, "-f", os.path.join(place.path, "user")).expect(6, "within another user namespace")
    finally:
        apart.kill()
        apart.wait()


if __name__ == "__main__":
    PROGRAMS = ("files", "deleted_file", "fifo_named", "inotify", "sock_unix_listen", "posix_queue", "sysv_ipc", "threads", "tree_children", "proc_files")
    sys.exit(run_cases("namespaces", [(program, lambda place, program=program: into(place, program)) for program in PROGRAMS] +
                       [("first process", first_process), ("second process", second_process), ("first process goes along", first_process_goes_along), ("one alone", one_alone), ("clocks", clocks), ("ipc limits", ipc_limits),
                        ("refused", refused)],
                       ("unshare", "nsenter", "mount", "ip")))
