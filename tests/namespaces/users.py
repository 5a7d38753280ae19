#!/usr/bin/env python3
"""Processes in user and control group namespaces of their own, dumped from outside and restored into new ones, or into those of a
running process. The targets check themselves; ids, owners and capabilities are looked at from outside.
"""
import fcntl
import os
import signal
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from harness import CKPT, TARGETS, Failure, Skip, all_children, become_subreaper, ckpt, exists_unreaped, read_text, reap_strays, run_cases, wait_until

GET_USERNS, GET_OWNER_UID = 0xB701, 0xB704
FIRST_ID, COUNT = 700000, 5000
KINDS = ("pid", "mnt", "ipc", "uts", "net", "cgroup")


def namespace(pid, kind):
    return os.readlink(f"/proc/{pid}/ns/{kind}")


def children_of(pid):
    return read_text(f"/proc/{pid}/task/{pid}/children").split()


def owner_of(pid, kind):
    """The inode of the user namespace that a namespace belongs to."""
    with open(f"/proc/{pid}/ns/{kind}", "rb") as one:
        owner = fcntl.ioctl(one, GET_USERNS)
    try:
        return os.fstat(owner).st_ino
    finally:
        os.close(owner)


def owner_uid(pid):
    with open(f"/proc/{pid}/ns/user", "rb") as one:
        return struct.unpack("I", fcntl.ioctl(one, GET_OWNER_UID, struct.pack("I", 0)))[0]


def rights(pid):
    """All that is to be the same afterwards, of each thread."""
    out = {name: read_text(f"/proc/{pid}/{name}") for name in ("uid_map", "gid_map", "setgroups")}
    out["owner"] = owner_uid(pid)
    for kind in KINDS:
        if namespace(pid, kind) != namespace("self", kind):
            out[kind] = "its own" if owner_of(pid, kind) == os.stat(f"/proc/{pid}/ns/user").st_ino else "another's"
    for place, tid in enumerate(sorted(os.listdir(f"/proc/{pid}/task"), key=int)):
        for line in read_text(f"/proc/{pid}/task/{tid}/status").splitlines():
            if line.startswith(("Uid:", "Gid:", "Groups:", "Cap", "NoNewPrivs:")):
                out[f"{place} {line.split(':')[0]}"] = line.split(":")[1].split()
    return out


def same(before, after):
    differing = [key for key in {*before, *after} if before.get(key) != after.get(key)]
    if differing:
        raise Failure("; ".join(f"{key}: {before.get(key)} became {after.get(key)}" for key in sorted(differing)))


class Holder:
    """A user namespace, with maps as a container's: root inside is nobody outside."""

    def __init__(self, owner=0, deny=False):
        as_owner = ["setpriv", "--reuid", str(owner), "--regid", str(owner), "--clear-groups"] if owner else []
        self.popen = subprocess.Popen([*as_owner, "unshare", "--user", "sleep", "1000"], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.pid = self.popen.pid
        wait_until(lambda: self.popen.poll() is not None or read_text(f"/proc/{self.pid}/comm").strip() == "sleep", "it sleeps")
        if self.popen.poll() is not None or namespace(self.pid, "user") == namespace("self", "user"):
            raise Skip("no user namespaces can be made here")
        if deny:
            with open(f"/proc/{self.pid}/setgroups", "w", encoding="ascii") as stream:
                stream.write("deny")
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{self.pid}/{name}", "w", encoding="ascii") as stream:
                stream.write(f"0 {FIRST_ID} {COUNT - 1000}\n{COUNT - 1000} {FIRST_ID + 100000} 1000\n")

    def start(self, command, *flags):
        return subprocess.Popen(["nsenter", "--user", "--target", str(self.pid), "--setuid", "0", "--setgid", "0", "unshare", *flags, *command],
                                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)

    def end(self):
        self.popen.kill()
        self.popen.wait()


def answer(folder, number, inside=0, hold=-1):
    """`inside`: a process in whose namespaces the folder is, and whose file system takes no file of ours."""
    if inside:
        subprocess.run(["nsenter", "--target", str(inside), "--all", "sh", "-c", 'echo -n 0 > "$0/.check"; mv "$0/.check" "$0/check"', folder], check=False)  # which may end with it
        folder = f"/proc/self/fd/{hold}"  # the file system may end with the target
    else:
        with open(os.path.join(folder, ".check"), "w", encoding="ascii") as stream:
            stream.write("0")
        os.rename(os.path.join(folder, ".check"), os.path.join(folder, "check"))
    wait_until(lambda: os.path.exists(os.path.join(folder, "result")), "the target answers")
    verdict = read_text(os.path.join(folder, "result")).strip()
    if verdict != f"pass {number}":
        raise Failure(verdict)


def end_all(*pids):
    for pid in filter(None, pids):
        if exists_unreaped(pid):
            os.kill(pid, signal.SIGKILL)

    def ended():
        # Process 1 of a pid namespace waits for all that is in it, and what a killed ckpt leaves there is a child of ours.
        for pid in all_children():
            exists_unreaped(pid)
        return not any(exists_unreaped(pid) for pid in pids if pid)
    wait_until(ended, "they have ended")


def ready(popen, folder):
    wait_until(lambda: popen.poll() is not None or os.path.exists(os.path.join(folder, "ready")) or os.path.exists(os.path.join(folder, "result")),
               "the target is ready")
    if popen.poll() is not None:
        raise Skip("such namespaces cannot be made here")
    if os.path.exists(os.path.join(folder, "result")):
        raise Skip(read_text(os.path.join(folder, "result")).strip())
    return read_text(os.path.join(folder, "ready")).split()[1]


def restored(place, image, *flags):
    pidfile = os.path.join(place.path, "pid")
    ckpt("restore", "-f", image, "-d", "--pidfile", pidfile, *flags).expect(0)
    return int(read_text(pidfile))


def user_alone(place, program, *unshare):
    """In all other namespaces of ours, that of pids too: ids, threads and capabilities, twice."""
    folder = place.folder(f"alone-{program}")
    os.chmod(folder, 0o777)
    popen = subprocess.Popen(["unshare", "--user", *unshare, os.path.join(TARGETS, f"target_{program}"), folder], stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    pid = popen.pid
    try:
        number = ready(popen, folder)
        before = rights(pid)
        ckpt("check", "-p", pid).expect(0)
        for name in ("one", "two"):
            image = os.path.join(place.path, f"{program}-{name}")
            ckpt("pre-dump", "-p", pid, "-f", image + "-first").expect(0)
            ckpt("dump", "-p", pid, "-f", image, "--prev", image + "-first").expect(0, "ended")
            popen.wait()
            wait_until(lambda: not exists_unreaped(pid), "it has ended")
            reap_strays(10)
            ckpt("restore", "-f", image, "--dry-run").expect(0)
            pid = restored(place, image)
            if namespace(pid, "user") == namespace("self", "user"):
                raise Failure("not in a user namespace of its own")
            same(before, rights(pid))
        answer(folder, number)
    finally:
        popen.kill()
        popen.wait()
        end_all(pid)


SETUP = """
set -e
mount -t proc proc /proc; hostname inside; ip link set lo up; echo 4321 > /proc/sys/kernel/msgmax
mount -t tmpfs -o uid=12,gid=34,mode=1777 tmpfs "$1"; mkdir "$1/work"; echo given > "$1/file"; chown 4500:77 "$1/file"
exec "$0" "$1/work"
"""


def first_process(place, program, owner=0, deny=False):
    """As in a rootless container: process 1, with all other namespaces owned by the user namespace, twice."""
    folder = place.folder(f"first-{program}")
    holder = Holder(owner, deny)
    popen = holder.start(["sh", "-c", SETUP, os.path.join(TARGETS, f"target_{program}"), folder], "--fork", "--kill-child", *(f"--{kind}" for kind in ("pid", "mount", "ipc", "uts", "net", "cgroup")))
    pid = 0
    try:
        wait_until(lambda: popen.poll() is not None or children_of(popen.pid), "process 1 is there")
        pid = int((children_of(popen.pid) or [0])[0])
        def inside():
            return f"/proc/{pid}/root{folder}"
        number = ready(popen, f"{inside()}/work")
        before, outside = rights(pid), read_text("/proc/self/mountinfo")
        if before["owner"] != owner or before["mnt"] != "its own":
            raise Failure(f"the test has made something else: {before}")
        for name in ("one", "two"):
            image = os.path.join(place.path, f"{program}-{owner}-{name}")
            ckpt("check", "-p", pid).expect(0)
            ckpt("dump", "-p", pid, "-f", image).expect(0, "ended")
            wait_until(lambda: not exists_unreaped(pid), "it has ended")
            ckpt("restore", "-f", image, "--dry-run").expect(0)
            pid = restored(place, image)
            same(before, rights(pid))
            seen = os.stat(f"{inside()}/file")
            if (seen.st_uid, seen.st_gid) != (FIRST_ID + 100500, FIRST_ID + 77) or read_text(f"{inside()}/file") != "given\n":
                raise Failure(f"the file belongs to {seen.st_uid}:{seen.st_gid}")
            if (os.stat(inside()).st_uid, os.stat(inside()).st_gid) != (FIRST_ID + 12, FIRST_ID + 34):
                raise Failure("the file system's root belongs to somebody else")
            said = subprocess.run(["nsenter", "--target", str(pid), "--all", "sh", "-c", "hostname; cat /proc/sys/kernel/msgmax; id -u; ip -o link show lo"],
                                  capture_output=True, text=True, check=True).stdout
            if not said.startswith("inside\n4321\n0\n") or ",UP" not in said:
                raise Failure(said)
            if read_text("/proc/self/mountinfo") != outside:
                raise Failure("something is mounted outside")
        hold = os.open(f"{inside()}/work", os.O_PATH | os.O_DIRECTORY)
        try:
            answer(f"{folder}/work", number, pid, hold)
        finally:
            os.close(hold)
    finally:
        popen.kill()
        popen.wait()
        holder.end()
        end_all(pid)


def no_rights_outside(place):
    """Root inside is nobody outside after a restore: what only root may do there is refused."""
    folder = place.folder("rights")
    os.chmod(folder, 0o755)
    secret, other = os.path.join(folder, "secret"), os.path.join(folder, "other")
    for path in (secret, other):
        with open(path, "w", encoding="ascii") as stream:
            stream.write("of root\n")
        os.chmod(path, 0o644)
    os.chmod(secret, 0o600)
    holder = Holder()
    popen = holder.start(["sh", "-c", 'exec 5< "$0"; exec sleep 1000', other], "--fork", "--pid", "--kill-child")
    pid = 0
    try:
        wait_until(lambda: popen.poll() is not None or (children_of(popen.pid) and read_text(f"/proc/{children_of(popen.pid)[0]}/comm").strip() == "sleep"), "it sleeps")
        pid = int(children_of(popen.pid)[0])
        image = os.path.join(place.path, "rights-image")
        ckpt("dump", "-p", pid, "-f", image).expect(0)
        wait_until(lambda: not exists_unreaped(pid), "it has ended")
        # With CAP_DAC_OVERRIDE inside it could not open this either.
        os.chmod(other, 0o600)
        said = ckpt("restore", "-f", image, "-d")
        if said.code == 0 or other not in said.err:
            raise Failure(f"of a file that only root outside may open: exit {said.code}: {said.err}")
        os.chmod(other, 0o644)
        pid = restored(place, image)
        status = read_text(f"/proc/{pid}/status")
        if f"Uid:\t{FIRST_ID}\t{FIRST_ID}\t{FIRST_ID}\t{FIRST_ID}" not in status:
            raise Failure(status)
        inside = ["nsenter", "--user", "--target", str(pid), "--setuid", "0", "--setgid", "0"]
        if subprocess.run([*inside, "cat", other], capture_output=True, check=False).returncode != 0:
            raise Failure("nsenter does not work: nothing is proven by it")
        for command in (["cat", secret], ["hostname", "changed"], ["chroot", "--userspec=9999999", "/", "true"]):
            if subprocess.run([*inside, *command], capture_output=True, check=False).returncode == 0:
                raise Failure(f"{command} works")
    finally:
        popen.kill()
        popen.wait()
        holder.end()
        end_all(pid)


def into(place):
    """A process beside process 1, which stays: back into the namespaces that are there."""
    folder = place.folder("into")
    os.chmod(folder, 0o777)
    holder = Holder()
    popen = holder.start(["sh", "-c", "mount -t proc proc /proc; hostname inside; while :; do sleep 1; done"], "--fork", "--kill-child", *(f"--{kind}" for kind in ("pid", "mount", "ipc", "uts", "net", "cgroup")))
    pid = 0
    try:
        wait_until(lambda: popen.poll() is not None or children_of(popen.pid), "process 1 is there")
        init = int(children_of(popen.pid)[0])
        wait_until(lambda: any(read_text(f"/proc/{child}/comm").strip() == "sleep" for child in children_of(init)), "the namespaces are as they are to be")
        enter = subprocess.Popen(["nsenter", "--target", str(init), "--all", "setsid", "sh", "-c", '"$@" < /dev/null > /dev/null 2>&1 &', "sh",
                                  os.path.join(TARGETS, "target_threads"), folder], stdin=subprocess.DEVNULL)
        enter.wait()
        wait_until(lambda: os.path.exists(os.path.join(folder, "ready")), "it is ready")
        inside, number = read_text(os.path.join(folder, "ready")).split()
        def outside():
            for one in filter(str.isdigit, os.listdir("/proc")):
                words = [line.split() for line in read_text(f"/proc/{one}/status").splitlines() if line.startswith("NSpid:")]
                if words and words[0][-1] == inside and len(words[0]) > 2 and namespace(one, "pid") == namespace(init, "pid"):
                    return int(one)
            raise Failure("it is not there")
        pid = outside()
        before = rights(pid)
        image = os.path.join(place.path, "into-image")
        ckpt("dump", "-p", pid, "-f", image).expect(0, "--into")
        wait_until(lambda: not exists_unreaped(pid), "it has ended")
        ckpt("restore", "-f", image, "-d").expect(6, "beside process 1")
        pid = restored(place, image, "--into", init)
        same(before, rights(pid))
        for kind in (*KINDS, "user"):
            if namespace(pid, kind) != namespace(init, kind):
                raise Failure(f"restored into another {kind} namespace")
        answer(folder, number)
    finally:
        popen.kill()
        popen.wait()
        holder.end()
        end_all(pid)


def workers(image):
    """Processes of a restore of this image."""
    out = []
    for one in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{one}/cmdline", "rb") as stream:
                words = stream.read().split(b"\0")
        except OSError:
            continue
        if b"restore" in words and image.encode() in words:
            out.append(one)
    return out


def killed(place):
    """kill -9 of a restore, anywhere: nothing runs, no namespace stays."""
    holder = Holder()
    popen = holder.start(["sleep", "1000"], "--fork", "--kill-child", "--pid", "--mount", "--uts")
    pid = 0
    try:
        wait_until(lambda: popen.poll() is not None or (children_of(popen.pid) and read_text(f"/proc/{children_of(popen.pid)[0]}/comm").strip() == "sleep"), "it sleeps")
        pid = int(children_of(popen.pid)[0])
        image, pidfile = os.path.join(place.path, "killed-image"), os.path.join(place.path, "pid")
        ckpt("dump", "-p", pid, "-f", image).expect(0)
        wait_until(lambda: not exists_unreaped(pid), "it has ended")
        before = user_namespaces()
        begin = time.monotonic()
        pid = restored(place, image)
        took = time.monotonic() - begin
        end_all(pid)
        for part in range(5):
            os.unlink(pidfile)
            restore = subprocess.Popen([CKPT, "restore", "-f", image, "-d", "--pidfile", pidfile], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(took * part / 5)
            restore.kill()
            restore.wait()
            wait_until(lambda: not workers(image), "what it has started has ended")
            if os.path.exists(pidfile):  # it was done
                end_all(int(read_text(pidfile)))
            else:
                open(pidfile, "w", encoding="ascii").close()

            def gone():
                reap_ended()
                return not user_namespaces() - before
            wait_until(gone, "no user namespace has stayed")
    finally:
        popen.kill()
        popen.wait()
        holder.end()
        end_all(pid)


def user_namespaces():
    """Those that a process of ckpt's is in, or has open, or one that it makes here; other tests make some, too."""
    out = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if not read_text(f"/proc/{pid}/comm").startswith(("sleep", "ckpt")):
                continue
            links = [f"/proc/{pid}/ns/user", *(f"/proc/{pid}/fd/{fd}" for fd in os.listdir(f"/proc/{pid}/fd"))]
            out |= {name for name in map(os.readlink, links) if name.startswith("user:")}
        except OSError:
            pass
    return out


def reap_ended():
    for pid in all_children():
        exists_unreaped(pid)


class Group:
    """A control group of version 2, where one can be made."""

    def __init__(self, name):
        for line in read_text("/proc/self/mountinfo").splitlines():
            left, right = line.split(" - ")
            if right.startswith("cgroup2 ") and left.split()[3] == "/":
                self.path, self.name = os.path.join(left.split()[4], name), "/" + name
                break
        else:
            raise Skip("control groups of version 2 are not mounted")
        try:
            os.makedirs(self.path, exist_ok=True)
        except OSError as lacking:
            raise Skip(f"no control group can be made: {lacking}") from lacking

    def put(self, pid):
        with open(os.path.join(self.path, "cgroup.procs"), "w", encoding="ascii") as stream:
            stream.write(str(pid))

    def remove(self):
        def gone():
            try:
                os.rmdir(self.path)
            except FileNotFoundError:
                return True
            except OSError:
                return False
            return True
        wait_until(gone, "the control group can be removed")


def group_seen(by, of):
    said = subprocess.run(["nsenter", "--target", str(by), "--cgroup", "cat", f"/proc/{of}/cgroup"], capture_output=True, text=True, check=True).stdout
    return [line for line in said.splitlines() if line.startswith("0::")][0]


def cgroup_namespace(place):
    """Its root is the group that it was; the tree goes on in a group below. The groups are gone when it is restored."""
    group = Group(f"ckpt-test-{os.getpid()}")
    below = Group(f"ckpt-test-{os.getpid()}/below")
    popen = subprocess.Popen(["sh", "-c", 'read go; exec unshare --cgroup --mount sh -c \'mount -t cgroup2 none /mnt; exec sleep 1000\''], stdin=subprocess.PIPE,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    pid = popen.pid
    try:
        group.put(pid)
        popen.stdin.write(b"go\n")
        popen.stdin.close()
        wait_until(lambda: read_text(f"/proc/{pid}/comm").strip() == "sleep", "it sleeps")
        below.put(pid)
        if group_seen(pid, pid) != "0::/below":
            raise Failure(f"the test has made something else: {group_seen(pid, pid)}")
        for name in ("one", "two"):
            image = os.path.join(place.path, "group-" + name)
            ckpt("dump", "-p", pid, "-f", image).expect(0)
            popen.wait()
            wait_until(lambda: not exists_unreaped(pid), "it has ended")
            below.remove()
            group.remove()
            pid = restored(place, image)
            if namespace(pid, "cgroup") == namespace("self", "cgroup") or group_seen(pid, pid) != "0::/below" or group_seen(os.getpid(), pid) != f"0::{below.name}":
                raise Failure(f"{group_seen(pid, pid)} inside, {group_seen(os.getpid(), pid)} outside")
            if not os.path.isdir(f"/proc/{pid}/root/mnt/below"):
                raise Failure("the groups that are mounted do not begin where the namespace does")
        ckpt("dump", "-p", pid, "-f", os.path.join(place.path, "group-three"), "-R").expect(0)
        init = pid
        wait_until(lambda: read_text(f"/proc/{init}/comm").strip() == "sleep", "it sleeps")
    finally:
        popen.kill()
        popen.wait()
        end_all(pid)
        below.remove()
        group.remove()


if __name__ == "__main__":
    become_subreaper()
    sys.exit(run_cases("users", [("control group namespace", cgroup_namespace),
                                 ("root alone", lambda place: user_alone(place, "threads", "--map-root-user")),
                                 ("nobody", lambda place: user_alone(place, "mem_anonymous")),
                                 ("children", lambda place: user_alone(place, "tree_children", "--map-root-user")),
                                 ("first process", lambda place: first_process(place, "threads")),
                                 ("of another owner", lambda place: first_process(place, "files", 4711, True)),
                                 ("with children", lambda place: first_process(place, "tree_children")),
                                 ("no rights outside", no_rights_outside), ("into", into), ("killed", killed)],
                       ("unshare", "nsenter", "mount", "setpriv")))
