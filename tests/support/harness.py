"""Starts self-checking targets, runs ckpt on them, and compares what /proc shows before and after.

Used by tests/kernel and tests/faults; needs python3 alone. A target talks through files of its work folder
(tests/kernel/target.h). Whoever uses this reaps: call become_subreaper() first, so that restored processes, whose
parent ckpt is gone, come to us and not to init.
"""
import ctypes
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PR_SET_CHILD_SUBREAPER = 36
SKIPPED = 77
CKPT = os.environ.get("CKPT_BIN", "ckpt")
if os.sep in CKPT:
    CKPT = os.path.abspath(CKPT)
TARGETS = os.environ.get("CKPT_TARGETS", ".")
STARTED_BY = os.environ.get("CKPT_STARTED_BY", "").split()  # what a target's command line begins with: "ckpt run --"
LONG = os.environ.get("CKPT_LONG") == "1"  # many more runs, by hand
TIMEOUT = float(os.environ.get("CKPT_TEST_TIMEOUT", "60"))


class Failure(Exception):
    """What is not as it should be."""


class Skip(Exception):
    """What this machine lacks."""


def become_subreaper():
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")

    def end(number, _):
        for pid in tree_of(os.getpid())[1:]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        os._exit(128 + number)
    # Also a test that is broken off leaves no process.
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)


def wait_until(condition, what, timeout=None, pause=0.002):
    """`what`: words, or a function that says them when time has run out."""
    deadline = time.monotonic() + (timeout or TIMEOUT)
    while not condition():
        if time.monotonic() > deadline:
            raise Failure(f"timed out: {what() if callable(what) else what}")
        time.sleep(pause)


def read_text(path):
    try:
        with open(path, errors="replace") as stream:
            return stream.read()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def status_field(pid, name):
    match = re.search(rf"^{name}:\s*(.*)$", read_text(f"/proc/{pid}/status"), re.M)
    return match.group(1) if match else ""


def entries_of(folder):
    """Of a folder in /proc; none where its process ended, be it between the opening and the reading."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, ProcessLookupError):
        return []


def tids_of(pid):
    # The kernel makes and ends threads of its own for io_uring (PF_IO_WORKER).
    stats = {int(tid): read_text(f"/proc/{pid}/task/{tid}/stat").rpartition(")")[2].split()
             for tid in entries_of(f"/proc/{pid}/task")}
    return sorted(tid for tid, stat in stats.items() if stat and not int(stat[6]) & 0x10)


def children_of(pid):
    found = []
    for tid in tids_of(pid):
        found += [int(word) for word in read_text(f"/proc/{pid}/task/{tid}/children").split()]
    return found


def all_children():
    return children_of(os.getpid())


def tree_of(pid):
    """The process and all its descendants, parents first."""
    found = [pid]
    for member in found:
        found += [child for child in children_of(member) if child not in found]
    return found


def state_of(pid, tid=None):
    stat = read_text(f"/proc/{pid}/task/{tid or pid}/stat").rpartition(")")[2].split()
    return stat[0] if stat else ""


def stat_field(pid, number):
    """Of /proc/PID/stat, counted as proc(5) does; 0 where there is no such process."""
    stat = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(stat[number - 3]) if stat else 0


def session_of(pid):
    return stat_field(pid, 6)


def birth_of(pid):
    return stat_field(pid, 22)


def stopped_threads(pid):
    """Those in group-stop."""
    return [tid for tid in tids_of(pid) if state_of(pid, tid) == "T"]


def descriptors(pid):
    """Number, what it leads to, and flags of each descriptor; offsets may move while a target runs."""
    folder, found = f"/proc/{pid}/fd", {}
    for number in entries_of(folder):
        try:
            info = read_text(f"/proc/{pid}/fdinfo/{number}")
            flags = re.search(r"^flags:\s*(\S+)", info, re.M)
            found[int(number)] = (os.readlink(f"{folder}/{number}"), flags.group(1) if flags else "")
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def mappings(pid):
    """The listing, with neighbours joined that differ in nothing: whether the kernel does that is its own affair."""
    found = []
    for line in read_text(f"/proc/{pid}/maps").splitlines():
        span, permissions, offset, device, inode, *name = line.split(None, 5)
        if name and name[0].startswith(("/memfd:standin-gpu", "/memfd:standin-export", "/dev/nvidia")):
            continue  # device memory comes back as another object
        start, end = (int(part, 16) for part in span.split("-"))
        rest = (permissions, int(offset, 16), device, inode, *name)
        if found and inode == "0" and found[-1][1] == start and found[-1][2:] == rest:
            start = found.pop()[0]
        found.append((start, end, *rest))
    return [f"{start:x}-{end:x} {' '.join(map(str, rest))}" for start, end, *rest in found]


def being_filled(pid):
    """Whether a lazy restore has not yet let go of the process, or of a descendant."""
    return any(" um" in read_text(f"/proc/{member}/smaps") for member in tree_of(pid))


def fingerprint(pid):
    """What must be the same after ckpt has looked at a process and its descendants."""
    found = {}
    for member in tree_of(pid):
        found |= {f"descriptors of {member}": descriptors(member), f"mappings of {member}": mappings(member),
                  f"children of {member}": sorted(children_of(member)), f"threads of {member}": tids_of(member),
                  f"stopped threads of {member}": stopped_threads(member)}
    return found


def differences(before, after):
    for key in before:
        if key not in after:
            yield f"{key}: not there"
        elif before[key] != after[key]:
            if isinstance(before[key], dict):
                old, new = set(before[key].items()), set(after[key].items())
            else:
                old, new = set(before[key]), set(after[key])
            yield f"{key}: gone {sorted(old - new)}, new {sorted(new - old)}"


def tidiers(image):
    """The ckpt-tidiers that runs have left which were to write the image. Until they have gone, a thread may have a call of a killed run
    before it yet."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if read_text(f"/proc/{pid}/comm") == "ckpt-tidier\n" and image in read_text(f"/proc/{pid}/cmdline"):
                found.append(pid)
        except OSError:
            pass
    return found


def check_released(pid, before=None):
    """No tracer, and no thread in a stop that it was not in before. A thread may be on its way out of a stop for a moment."""
    def free():
        for member in tree_of(pid):
            if status_field(member, "TracerPid") not in ("0", ""):
                return False
            stopped = (before or {}).get(f"stopped threads of {member}", [])
            for tid in tids_of(member):
                state = state_of(member, tid)
                if state == "t" or (state == "T" and tid not in stopped):
                    return False
        return True
    wait_until(free, f"process {pid} or a descendant is still traced or stopped", 5)


class Result:
    def __init__(self, code, out, err, arguments):
        self.code, self.out, self.err, self.arguments = code, out, err, arguments

    def document(self):
        """All of stdout, or the last line of it that is one. A line within a document may look like one, too."""
        for line in [self.out, *reversed(self.out.strip().splitlines())]:
            try:
                return json.loads(line)
            except ValueError:
                continue
        return json.loads(self.out)

    def expect(self, code, *words):
        said = self.err + self.out
        if self.code != code:
            raise Failure(f"ckpt {' '.join(self.arguments)}: exit {self.code}, not {code}\n{said.strip()}")
        for word in words:
            if word.lower() not in said.lower():
                raise Failure(f"ckpt {' '.join(self.arguments)}: does not say '{word}'\n{said.strip()}")
        return self


def ckpt(*arguments, timeout=None, **popen):
    arguments = [str(a) for a in arguments]
    try:
        done = subprocess.run([CKPT, *arguments], stdin=popen.pop("stdin", subprocess.DEVNULL), capture_output=True,
                              timeout=timeout or TIMEOUT, **popen)
    except subprocess.TimeoutExpired as late:
        raise Failure(f"ckpt {' '.join(arguments)}: still running after {late.timeout} s\n"
                      f"{(late.stderr or b'').decode(errors='replace')}") from late
    return Result(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"), arguments)


def ckpt_restore(*arguments, **popen):
    """`ckpt restore`, again where another process of the machine has just taken a number that is needed (tests run side by side)."""
    for _ in range(10):
        done = ckpt("restore", *arguments, **popen)
        if done.code != 7 or "is taken by" not in done.err:
            return done
        time.sleep(1)
    return done


class Workplace:
    """A folder of one test, removed at its end; one folder per target below it."""

    def __init__(self, name):
        self.path = tempfile.mkdtemp(prefix=f"ckpt-{name}-")
        os.chmod(self.path, 0o755)  # a target may give up root
        self.name = name

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if os.environ.get("CKPT_TEST_KEEP"):
            print(f"kept: {self.path}", file=sys.stderr)
        else:
            shutil.rmtree(self.path, ignore_errors=True)
        for left in glob.glob(f"/dev/shm/*{glob.escape(self.path[1:].replace('/', '-'))}-*"):
            os.unlink(left)  # target_shm_name

    def folder(self, name):
        path = os.path.join(self.path, name)
        os.makedirs(path)
        return path


class Target:
    """One target process, and after a restore its successor with the same pid."""

    def __init__(self, program, folder, *arguments, **popen):
        self.program = program
        self.folder = os.path.join(folder, "work")
        os.makedirs(self.folder)
        os.chmod(self.folder, 0o777)
        self.steps = 0
        self.popen = None
        with open(os.path.join(folder, "log"), "ab") as log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            streams.update(popen)
            self.popen = subprocess.Popen([*STARTED_BY, os.path.join(TARGETS, f"target_{program}"), self.folder, *arguments],
                                          start_new_session=True, **streams)
        self.log = os.path.join(folder, "log")
        self.pid = self.popen.pid
        self.alive = True
        self._wait_for("ready")
        if self._exists("result"):
            verdict = self._read("result").strip()
            self.reap()
            if verdict.startswith("skip: "):
                raise Skip(verdict[6:])
            raise Failure(f"before it was ready: {verdict}")
        pid, self.number = self._read("ready").split()
        if int(pid) != self.pid:
            raise Failure(f"says it is {pid}, and is {self.pid}")

    def _path(self, name):
        return os.path.join(self.folder, name)

    def _exists(self, name):
        return os.path.exists(self._path(name))

    def _read(self, name):
        return read_text(self._path(name))

    def _wait_for(self, name):
        def there():
            return self._exists(name) or self._exists("result") or not self.running()
        wait_until(there, lambda: f"target {self.pid} never made '{name}' (threads: {self.where()})")
        if not self._exists(name) and not self._exists("result"):
            raise Failure(f"target {self.pid} ended without a word: {self.ending}\n{self.log_tail()}")

    def where(self):
        """State and system call of each thread, for messages."""
        seen = []
        for tid in tids_of(self.pid)[:8]:
            stat = read_text(f"/proc/{self.pid}/task/{tid}/stat").rpartition(")")[2].split()
            seen.append(f"{tid} {stat[0] if stat else '?'} {read_text(f'/proc/{self.pid}/task/{tid}/wchan')}")
        return "; ".join(seen) or "none"

    def log_tail(self):
        return "\n".join(read_text(self.log).splitlines()[-5:])

    def running(self):
        """Reaps if it has ended."""
        if not self.alive:
            return False
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            self.alive, self.ending = False, "reaped by somebody else"
            return False
        if pid == 0:
            return True
        self.alive = False
        self.ending = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"
        if self.popen is not None:
            self.popen.returncode = 0  # reaped here: Popen must not wait for this pid again
        return False

    def reap(self, tree=()):
        """`tree`: from `tree()`, while the root was there. Those whose parents are gone are our children."""
        wait_until(lambda: not self.running(), lambda: f"process {self.pid} does not end ({self.where()})", 20)
        # Those that are younger than `tree` are known by their session.
        young = {pid: birth_of(pid) for pid in all_children() if session_of(pid) == self.pid}
        all_of_it = dict(tree) | young | {self.pid: None}

        def left():
            """All are reaped each time: the first process of a pid namespace is there until those in it are. A number may be another's by now."""
            return [pid for pid, birth in all_of_it.items() if exists_unreaped(pid) and birth in (None, birth_of(pid))]
        wait_until(lambda: not left(), lambda: f"pids {left()} are still taken", 5)

    def tree(self):
        """What `reap` takes: itself and its descendants, with the times of their births."""
        return {pid: birth_of(pid) for pid in tree_of(self.pid)}

    def adopt(self):
        """A restore has put the process back: it is our child again, being a subreaper's."""
        self.alive = True
        self.ending = ""
        if not self.running():
            raise Failure(f"the restored process {self.pid} has ended: {self.ending}\n{self.log_tail()}")

    def kill(self):
        tree = self.tree()
        for pid in tree if self.running() else []:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.reap(tree)

    def step(self):
        """The next change, done when this returns."""
        with open(self._path("step"), "w"):
            pass
        def done():
            return not self._exists("step") or self._exists("result") or not self.running()
        wait_until(done, lambda: f"target {self.pid} took no step ({self.where()})")
        if self._exists("step"):
            raise Failure(f"in a step: {self._read('result').strip() or self.ending}\n{self.log_tail()}")
        self.steps += 1

    def forget_answers(self):
        """Before a restore: whoever starts from scratch will make `ready` anew."""
        for name in os.listdir(self.folder):
            if name in ("ready", "check", "result", "step") or re.fullmatch(r"(go|child)\.\d+", name):
                os.unlink(self._path(name))

    def begin_check(self, steps=None):
        """The target verifies itself from now on. It looks for the file all the time, and must not find it empty."""
        with open(self._path(".check"), "w") as stream:
            stream.write(str(self.steps if steps is None else steps))
        os.rename(self._path(".check"), self._path("check"))

    def check(self, steps=None):
        """The target verifies itself and ends."""
        tree = self.tree()
        self.begin_check(steps)
        self._wait_for("result")
        verdict = self._read("result").strip()
        self.reap(tree)
        if verdict != f"pass {self.number}":
            raise Failure(verdict if verdict.startswith("fail") else f"another process answers: {verdict}")

    def check_apart(self, outside, steps=0):
        """As check, of a target that lives in a pid namespace of its own; `outside` is its number here. Its namespace ends with
        it, and the namespace's first process is our child."""
        first = parent_outside(outside)
        self.begin_check(steps)
        wait_until(lambda: self._exists("result"), f"the target {outside} (in a pid namespace) makes 'result'", TIMEOUT)
        wait_until(lambda: not exists_unreaped(first), "its pid namespace ends", TIMEOUT)
        verdict = self._read("result").strip()
        if verdict != f"pass {self.number}":
            raise Failure(verdict if verdict.startswith("fail") else f"another process answers: {verdict}")


def parent_outside(pid):
    with open(f"/proc/{pid}/stat") as stream:
        return int(stream.read().rpartition(")")[2].split()[1])


def exists_unreaped(pid):
    """Whether the pid is taken; reaps it where it is a child of ours that has ended."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass
    return os.path.exists(f"/proc/{pid}")


def reap_strays(timeout=5):
    """Nothing of ckpt's, and no descendant of a target, may outlive the targets: they are our children by now."""
    def gone():
        for pid in all_children():
            exists_unreaped(pid)
        return not all_children()

    def killed():
        for pid in all_children():
            os.kill(pid, signal.SIGKILL)
        return gone()
    try:
        wait_until(gone, "", timeout)
    except Failure:
        left = [f"{pid} ({read_text(f'/proc/{pid}/cmdline').replace(chr(0), ' ').strip()})" for pid in all_children()]
        wait_until(killed, "ending what is left", 5)
        raise Failure(f"processes are left behind: {', '.join(left)}") from None


def run_tests(*tests):
    """Each test gets a workplace; the exit status is for ctest. A test that raises Skip is named and does not fail."""
    become_subreaper()
    wanted, failures, skipped = sys.argv[1:], 0, 0
    if "--long" in wanted:
        if not LONG:
            print("skip  the long form: CKPT_LONG=1 runs it, as make check-long does")
            return SKIPPED
        wanted.remove("--long")
    for test in tests:
        if wanted and test.__name__ not in wanted:
            continue
        start = time.monotonic()
        with Workplace(test.__name__) as place:
            try:
                said = test(place)
                reap_strays()
                print(f"ok    {test.__name__} ({time.monotonic() - start:.1f} s){': ' + said if said else ''}", flush=True)
            except Skip as lacking:
                skipped += 1
                print(f"skip  {test.__name__}: {lacking}", flush=True)
            except Failure as failure:
                failures += 1
                print(f"FAIL  {test.__name__}: {failure}", flush=True)
                try:
                    reap_strays(0.1)
                except Failure:
                    pass
    return 1 if failures else SKIPPED if skipped == len(wanted or tests) else 0


def run_cases(name, cases, tools=()):
    """Each case, (its name, a function that is given the workplace), in one workplace for all; the exit status is for ctest. As root
    only, and where the tools are; a case that raises Skip is named and does not fail."""
    if os.geteuid() != 0 or not CKPT:
        print(f"skipped: {name}: wants root")
        return SKIPPED
    lacking = [tool for tool in tools if shutil.which(tool) is None]
    if lacking:
        print(f"skipped: {name}: wants {', '.join(lacking)}")
        return SKIPPED
    cases = [case for case in cases if not sys.argv[1:] or case[0] in sys.argv[1:]]
    failures = 0
    with Workplace(name) as place:
        for title, case in cases:
            try:
                case(place)
            except Skip as lacks:
                print(f"skipped: {title}: {lacks}")
            except (Failure, OSError) as failure:
                print(f"FAIL {title}: {failure}", file=sys.stderr)
                failures += 1
    print(f"{name}: {len(cases)} cases, {failures} failures")
    return 1 if failures else 0
