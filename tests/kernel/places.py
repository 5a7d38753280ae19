#!/usr/bin/env python3
"""Where processes run: as a service, below cron, nohup and sshd, in a chroot; and where ckpt itself runs without root.

places.py [NAME...]   CKPT_BIN and CKPT_TARGETS as for run.py
"""
import os
import pty
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
from harness import CKPT, Failure, Skip, TARGETS, Target, ckpt, run_tests, wait_until

USER = "61234"  # nobody has heard of it
AS_USER = ["setpriv", "--reuid", USER, "--regid", USER, "--clear-groups", "--no-new-privs"]
WITHOUT_RIGHTS = [*AS_USER, "--bounding-set", "-all"]
WITH_ONE_RIGHT = [*AS_USER, "--inh-caps", "+checkpoint_restore", "--ambient-caps", "+checkpoint_restore", "--bounding-set", "-all,+checkpoint_restore"]


def need_user(words):
    if os.getuid() != 0:
        raise Skip("needs root, to be somebody else")
    if shutil.which("setpriv") is None:
        raise Skip("there is no setpriv (util-linux)")
    tried = subprocess.run([*words, CKPT, "version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        raise Skip(f"nobody else can run {CKPT} so: {tried.stderr.strip()}")


def flavours_as(words, names, flavours):
    """run.py itself, and with it targets and ckpt, as somebody else."""
    for name in names:
        done = subprocess.run([*words, sys.executable, "-B", os.path.join(HERE, "run.py"), name, "--flavours", flavours],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=100)
        if done.returncode != 0:
            raise Failure(f"{name}: exit {done.returncode}: {done.stdout}{done.stderr}")


def have_checked(folder):
    """A target that no Target stands for. It looks for the file all the time, and must not find it empty."""
    with open(os.path.join(folder, ".check"), "w", encoding="ascii") as stream:
        stream.write("0")
    os.rename(os.path.join(folder, ".check"), os.path.join(folder, "check"))
    wait_until(lambda: os.path.exists(os.path.join(folder, "result")), "it has checked itself")
    with open(os.path.join(folder, "result"), encoding="ascii") as stream:
        verdict = stream.read()
    if not verdict.startswith("pass"):
        raise Failure(verdict)


def cycle(target, place, *more, restoring=(), **popen):
    """pre-dump, dump, restore, and its own check."""
    before, image = os.path.join(place.path, "before"), os.path.join(place.path, "image")
    ckpt("check", "-p", target.pid, *more).expect(0)
    ckpt("pre-dump", "-p", target.pid, "-f", before, *more).expect(0)
    target.step()
    ckpt("dump", "-p", target.pid, "-f", image, "--prev", before, *more).expect(0)
    target.reap()
    target.forget_answers()
    ckpt("restore", "-f", image, "-d", *restoring, **popen).expect(0)
    target.adopt()
    target.check(1)


def one_right(place):
    """A user with CAP_CHECKPOINT_RESTORE and nothing else, while others have semaphores that he may not read."""
    need_user(WITH_ONE_RIGHT)
    made = subprocess.run(["ipcmk", "-S", "2", "-p", "0600"], capture_output=True, text=True, check=False)
    number = made.stdout.split()[-1] if made.returncode == 0 else None
    try:
        flavours_as(WITH_ONE_RIGHT, ["mem_anonymous", "files", "cow_fork", "threads", "tree_sessions", "sem_undo" if number is None else "epoll"],
                    "dump,incremental,leave_running")
    finally:
        if number is not None:
            subprocess.run(["ipcrm", "-s", number], check=False)
    del place


def user_namespace(place):
    """unshare -Ur: numbers belong to somebody outside. A dump that ends is refused, by name; --new-pidns restores."""
    words = [*WITHOUT_RIGHTS, "unshare", "-Ur"]
    need_user(words)
    folder = place.folder("theirs")
    os.chown(folder, int(USER), int(USER))
    script = """cd "$1"; mkdir t; setsid "$2/target_mem_anonymous" "$1/t" </dev/null >/dev/null 2>&1 & pid=$!
while [ ! -e "$1/t/ready" ]; do sleep 0.01; done
"$3" pre-dump -q -p $pid -f pre || exit 11
"$3" check -p $pid >check; [ $? = 1 ] || exit 12
"$3" dump -p $pid -f now --prev pre 2>refused; [ $? = 5 ] || exit 13
"$3" dump -q --force -p $pid -f now --prev pre || exit 14
"$3" restore -q -f now -d 2>not-here; [ $? = 5 ] || exit 15
"$3" restore -q -f now -d --new-pidns --pidfile pid || exit 16
kill $(cat pid)"""
    done = subprocess.run([*words, "sh", "-c", script, "sh", folder, TARGETS, CKPT], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False, timeout=60)
    said = {name: open(os.path.join(folder, name), encoding="utf-8").read() for name in ("check", "refused", "not-here")
            if os.path.exists(os.path.join(folder, name))}
    if done.returncode != 0:
        raise Failure(f"exit {done.returncode}: {done.stderr} {said}")
    for name, text in said.items():
        if "--new-pidns" not in text:
            raise Failure(f"{name} does not say what to do: {text}")


def user_and_pid_namespace(place):
    """unshare -Urpf: the numbers are its own."""
    words = [*WITHOUT_RIGHTS, "unshare", "-Urpf", "--mount-proc"]
    need_user(words)
    flavours_as(words, ["mem_anonymous", "threads", "pipes"], "dump,incremental")
    done = subprocess.run([*words, sys.executable, "-B", os.path.join(HERE, "run.py"), "mem_shared_anonymous", "--flavours", "dump"],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=100)
    if done.returncode == 0 or "CAP_CHECKPOINT_RESTORE in the first user namespace" not in done.stdout + done.stderr:
        raise Failure(f"shared memory, which could not be restored: {done.stdout}{done.stderr}")
    del place


def without_rights_nothing_is_harmed(place):
    """What only root could dump is refused by name, and goes on: filters that would end a process, terminals, connections."""
    need_user(WITH_ONE_RIGHT)
    for name, text, more in (("seccomp_tree", "seccomp filters", []), ("terminal_pair", "CAP_SYS_ADMIN", []),
                             ("sock_tcp_pair", "CAP_NET_ADMIN", ["--tcp-established"])):
        folder = place.folder(name)
        os.chmod(folder, 0o777)
        STARTED = [*WITH_ONE_RIGHT, os.path.join(TARGETS, f"target_{name}"), os.path.join(folder, "work")]
        os.makedirs(os.path.join(folder, "work"))
        os.chmod(os.path.join(folder, "work"), 0o777)
        with open(os.path.join(folder, "log"), "wb") as log:
            process = subprocess.Popen(STARTED, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        try:
            wait_until(lambda: os.path.exists(os.path.join(folder, "work", "ready")), "it is ready")
            for verb in (["check"], ["pre-dump", "-f", os.path.join(folder, "pre")], ["dump", "-R", "-f", os.path.join(folder, "image")]):
                done = subprocess.run([*WITH_ONE_RIGHT, CKPT, *verb, "-p", str(process.pid), *more], stdin=subprocess.DEVNULL, capture_output=True,
                                      text=True, check=False)
                if done.returncode not in (1, 6) or text not in done.stdout + done.stderr:
                    raise Failure(f"{name}: {verb[0]}: exit {done.returncode}: {done.stdout}{done.stderr}")
            have_checked(os.path.join(folder, "work"))
        finally:
            process.kill()
            process.wait()


def not_dumpable(place):
    """Its own user may not look into it; he is told why."""
    need_user(WITHOUT_RIGHTS)
    code = "import ctypes, time; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); print('ready', flush=True); time.sleep(100)"
    with subprocess.Popen([*WITHOUT_RIGHTS, sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        done = subprocess.run([*WITHOUT_RIGHTS, CKPT, "check", "-p", str(process.pid)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              check=False)
        process.kill()
    if done.returncode != 5 or "PR_SET_DUMPABLE" not in done.stderr or "CAP_SYS_PTRACE" not in done.stderr:
        raise Failure(f"exit {done.returncode}: {done.stdout}{done.stderr}")
    del place


def service(place):
    """As systemd has it: a user without a name, no new privileges, a mount namespace with a /tmp of its own, a control group."""
    need_user(WITHOUT_RIGHTS)
    folder, private = place.folder("target"), place.folder("private")
    os.chmod(private, 0o1777)
    group = next((g for g in ("/sys/fs/cgroup/pids", "/sys/fs/cgroup") if os.path.exists(os.path.join(g, "cgroup.procs"))), None)
    mine = None if group is None else os.path.join(group, f"ckpt-places-{os.getpid()}.service")
    try:
        if mine is not None:
            try:
                os.mkdir(mine)
            except OSError:
                mine = None
        prefix = ["unshare", "-m", "--propagation", "slave", "sh", "-c",
                  f'mount --bind {private} /var/tmp || exit 1; {f"echo $$ >{mine}/cgroup.procs;" if mine else ""} exec "$@"', "sh", *WITHOUT_RIGHTS]
        cycle(started(prefix, "mem_anonymous", folder), place)
    finally:
        if mine is not None:
            wait_until(lambda: not open(os.path.join(mine, "cgroup.procs"), encoding="ascii").read(), "its group is empty")
            os.rmdir(mine)


def started(prefix, program, folder, **popen):
    """A Target that other programs have started, which have become it."""
    class Started(Target):
        def __init__(self):  # pylint: disable=super-init-not-called
            work = os.path.join(folder, "work")
            self.program, self.folder, self.log, self.steps, self.alive = program, work, os.path.join(folder, "log"), 0, True
            os.makedirs(work)
            os.chmod(work, 0o777)
            streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True, "cwd": "/",
                       **popen}
            self.popen = subprocess.Popen([*prefix, os.path.join(TARGETS, f"target_{program}"), work], **streams)
            self.pid = self.popen.pid
            self._wait_for("ready")
            pid, self.number = self._read("ready").split()
            if int(pid) != self.pid:
                raise Failure(f"says it is {pid}, and is {self.pid}")
    return Started()


def nohup(place):
    """SIGHUP ignored, no input."""
    cycle(started(["nohup"], "mem_anonymous", place.folder("target")), place)


def cron(place):
    """Output to a pipe of the mailer's, which /dev/null takes the place of."""
    reader, writer = os.pipe()
    try:
        target = started([], "files", place.folder("target"), stdout=writer, stderr=writer)
        os.close(writer)
        refused = ckpt("check", "-p", target.pid)
        if refused.code != 1 or "--external-pipes null" not in refused.out:
            raise Failure(f"check: {refused.out}{refused.err}")
        cycle(target, place, "--external-pipes", "null")
    finally:
        os.close(reader)


def ssh_terminal(place):
    """Its terminal's master is sshd's: restored on the terminal of whoever restores it."""
    master, slave = pty.openpty()
    other, mine = pty.openpty()
    try:
        target = started([], "mem_anonymous", place.folder("target"), stdin=slave, stdout=slave, stderr=slave)
        refused = ckpt("check", "-p", target.pid)
        if refused.code != 1 or "--shell-job" not in refused.out:
            raise Failure(f"check: {refused.out}{refused.err}")
        before, image = os.path.join(place.path, "before"), os.path.join(place.path, "image")
        ckpt("pre-dump", "-p", target.pid, "-f", before, "-j").expect(0)
        target.step()
        ckpt("dump", "-p", target.pid, "-f", image, "-j", "--prev", before).expect(0)
        target.reap()
        target.forget_answers()
        done = subprocess.run([CKPT, "restore", "-f", image, "-d", "-j"], stdin=mine, stdout=mine, stderr=mine, check=False, timeout=60)
        if done.returncode != 0:
            raise Failure(f"restore: exit {done.returncode}: {os.read(other, 4096)}")
        target.adopt()
        if os.readlink(f"/proc/{target.pid}/fd/0") != os.ttyname(mine):
            raise Failure(f"its terminal is {os.readlink(f'/proc/{target.pid}/fd/0')}")
        target.check(1)
    finally:
        for fd in (master, slave, other, mine):
            os.close(fd)


def chroot(place):
    """Its root is a folder of the host's."""
    if os.getuid() != 0:
        raise Skip("needs root, for a root folder")
    root = place.folder("root")
    program = os.path.join(TARGETS, "target_mem_anonymous")
    libraries = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout.split()
    for path in [program, *(word for word in libraries if word.startswith("/"))]:
        there = root + (path if path != program else "/target")
        os.makedirs(os.path.dirname(there), exist_ok=True)
        shutil.copy2(path, there)
    os.makedirs(root + "/place", mode=0o777)
    process = subprocess.Popen(["chroot", root, "/target", "/place"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               start_new_session=True)
    wait_until(lambda: os.path.exists(root + "/place/ready"), "it is ready")
    image = os.path.join(place.path, "image")
    ckpt("dump", "-p", process.pid, "-f", image).expect(0)
    process.wait()
    ckpt("restore", "-f", image, "-d").expect(0)
    have_checked(root + "/place")


sys.exit(run_tests(service, nohup, cron, ssh_terminal, chroot, one_right, user_namespace, user_and_pid_namespace, without_rights_nothing_is_harmed,
                   not_dumpable))
