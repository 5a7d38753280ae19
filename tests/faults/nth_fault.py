#!/usr/bin/env python3
"""The Nth call of a function fails, for pre-dump, dump, restore, restore --lazy, squash and convert: an exit code with a sentence,
the target as it was, an image or a checkpoint whole or absent, nothing left behind. And all of ckpt is killed in front of its Nth ptrace call.

A sample of the N for every function: CKPT_FAULT_SAMPLE (2) of them, all with CKPT_LONG=1. CKPT_KILL_SEED repeats a run.
CKPT_FAILING_CALLS is the library that is preloaded (failing_calls.c)."""
import errno
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from harness import CKPT, LONG, Failure, Target, check_released, ckpt, differences, exists_unreaped, fingerprint, read_text, reap_strays, run_tests, tidiers, wait_until

LIBRARY = os.environ["CKPT_FAILING_CALLS"]
EVERY = LONG
SAMPLE = int(os.environ.get("CKPT_FAULT_SAMPLE", "2"))
SEED = int(os.environ.get("CKPT_KILL_SEED", str(time.time_ns() % 1000000)))
MAKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support", "make_megatron_zarr.py")
FUNCTIONS = {
    "open": errno.ENFILE, "openat": errno.EMFILE, "read": errno.EIO, "pread": errno.EIO, "write": errno.ENOSPC, "writev": errno.ENOSPC,
    "pwrite": errno.ENOSPC, "copy_file_range": errno.EIO, "fsync": errno.EIO, "ftruncate": errno.ENOSPC, "fallocate": errno.ENOSPC,
    "rename": errno.EIO, "mkdir": errno.ENOSPC, "mmap": errno.ENOMEM, "fork": errno.EAGAIN, "pthread_create": errno.EAGAIN,
    "socket": errno.EMFILE, "pipe2": errno.EMFILE, "memfd_create": errno.ENOMEM, "process_vm_readv": errno.ENOMEM,
    "process_vm_writev": errno.ENOMEM, "ioctl": errno.ENOMEM, "ptrace": errno.EBUSY, "syscall": errno.EAGAIN}
# Said by a program about its surroundings; 0 where ckpt did without what failed. Never a bug (70), never a signal.
SAID = {0, 1, 4, 5, 6, 7, 8, 9}


class Faults:
    """Runs ckpt with one fault."""

    def __init__(self, place):
        self.file = os.path.join(place.path, "counter")

    def environment(self, function, nth, error):
        with open(self.file, "wb") as stream:
            stream.write(bytes(4096))
        os.chmod(self.file, 0o666)
        return {**os.environ, "LD_PRELOAD": LIBRARY, "FAULT_COUNTER": self.file, "FAULT_FUNCTION": function, "FAULT_NTH": str(nth), "FAULT_ERRNO": str(error)}

    def run(self, function, nth, *arguments):
        done = ckpt(*arguments, env=self.environment(function, nth, FUNCTIONS[function]))
        with open(self.file, "rb") as stream:
            self.calls, self.failed = struct.unpack("qq", stream.read(16))
        return done

    def numbers(self, source):
        """Which of the calls that were counted are made to fail."""
        if EVERY or self.calls <= SAMPLE:
            return range(1, self.calls + 1)
        return sorted(source.sample(range(1, self.calls + 1), SAMPLE))


def remove(path):
    shutil.rmtree(path, ignore_errors=True)


class Scene:
    """What a verb is run on, and what must hold after each run."""

    def __init__(self, place):
        self.place = place
        self.folder = place.folder("images")
        self.image = os.path.join(self.folder, "image")

    def again(self):
        """As it was before."""
        remove(self.image)

    def renew(self):
        """After a failure: the next runs are judged by what it left."""
        for name in set(os.listdir(self.folder)) - self.known:
            remove(os.path.join(self.folder, name))

    def check(self, done):
        left = sorted(set(os.listdir(self.folder)) - self.known - {"image"})
        if left:
            raise Failure(f"left behind: {left}")
        if done.code != 0 and os.path.exists(self.image):
            raise Failure(f"exit {done.code}, and the result is there")
        if done.code == 0:
            ckpt("verify", self.image).expect(0)


class LiveScene(Scene):
    def __init__(self, place, *verb):
        super().__init__(place)
        self.target = Target("mem_anonymous", place.folder("target"))
        self.arguments = [*verb, "-p", self.target.pid, "-f", self.image]
        if "--prev" in verb:
            ckpt("pre-dump", "-p", self.target.pid, "-f", verb[-1].format(folder=self.folder)).expect(0)
            self.arguments = [word.format(folder=self.folder) if isinstance(word, str) else word for word in self.arguments]
        self.known = set(os.listdir(self.folder))
        self.before = fingerprint(self.target.pid)

    def renew(self):
        super().renew()
        if not self.target.running():
            self.target = Target("mem_anonymous", self.place.folder(f"target-{time.monotonic_ns()}"))
            self.arguments[self.arguments.index("-p") + 1] = self.target.pid
        self.before = fingerprint(self.target.pid)

    def check(self, done):
        super().check(done)
        if not self.target.running():
            raise Failure(f"the target has ended: {self.target.ending}")
        check_released(self.target.pid, self.before)
        found = list(differences(self.before, fingerprint(self.target.pid)))
        if found:
            raise Failure(f"the target was altered: {found}")

    def finish(self):
        self.target.step()
        self.target.check()


class RestoreScene(Scene):
    def __init__(self, place, *more):
        super().__init__(place)
        self.source = os.path.join(self.folder, "source")
        self.target = Target("mem_anonymous", place.folder("target"))
        tree = self.target.tree()
        ckpt("dump", "-p", self.target.pid, "-f", self.source).expect(0)
        self.target.reap(tree)
        self.known = set(os.listdir(self.folder))
        self.arguments = ["restore", "-d", "-f", self.source, *more]

    def again(self):
        wait_until(lambda: not exists_unreaped(self.target.pid), f"pid {self.target.pid} is still taken", 5)

    def check(self, done):
        left = sorted(set(os.listdir(self.folder)) - self.known)
        if left:
            raise Failure(f"left behind: {left}")
        if done.code == 0:
            self.target.forget_answers()
            try:
                self.target.adopt()
                self.target.kill()
            except Failure as failure:  # a page that could not be read later, which --lazy cannot tell beforehand
                if "--lazy" not in self.arguments or f"signal {signal.SIGBUS.value}" not in str(failure):
                    raise
        elif os.path.exists(f"/proc/{self.target.pid}") and read_text(f"/proc/{self.target.pid}/cmdline").startswith("/"):
            wait_until(lambda: not os.path.exists(f"/proc/{self.target.pid}/exe"), f"exit {done.code}, and the process is there", 2)
        reap_strays()

    def finish(self):
        ckpt("restore", "-d", "-f", self.source).expect(0)
        self.target.forget_answers()
        self.target.adopt()
        self.target.check(0)


class SquashScene(Scene):
    def __init__(self, place):
        super().__init__(place)
        target = Target("mem_anonymous", place.folder("target"))
        ckpt("pre-dump", "-p", target.pid, "-f", os.path.join(self.folder, "first")).expect(0)
        target.step()
        ckpt("dump", "-R", "-p", target.pid, "-f", os.path.join(self.folder, "last"), "--prev", os.path.join(self.folder, "first")).expect(0)
        target.kill()
        self.known = set(os.listdir(self.folder))
        self.arguments = ["squash", os.path.join(self.folder, "last"), self.image]

    def finish(self):
        ckpt("verify", os.path.join(self.folder, "last")).expect(0)


class ConvertScene(Scene):
    def __init__(self, place):
        super().__init__(place)
        source = os.path.join(self.folder, "source")
        os.spawnl(os.P_WAIT, sys.executable, sys.executable, MAKER, source, "--mib", "1")
        self.known = set(os.listdir(self.folder))
        self.arguments = ["convert", source, self.image, "--to", "torch_dist"]

    def finish(self):
        pass


def sweep(place, scene):
    faults, source = Faults(place), random.Random(SEED)
    failures, hits, runs, ends = [], 0, 0, {}
    for function in FUNCTIONS:
        scene.again()
        plain = faults.run(function, 0, *scene.arguments)
        plain.expect(0)
        scene.check(plain)
        for nth in faults.numbers(source):
            scene.again()
            done = faults.run(function, nth, *scene.arguments)
            runs, hits = runs + 1, hits + faults.failed
            ends[done.code] = ends.get(done.code, 0) + 1
            where = f"seed {SEED}, call {nth} of {function}"
            try:
                if done.code not in SAID:
                    raise Failure(f"exit {done.code}: {done.err.strip()}")
                scene.check(done)
            except Failure as failure:
                failures.append(f"{where}: {failure}")
                scene.renew()
                if len(failures) == 20:
                    break
    if failures:
        raise Failure("\n  ".join([f"{len(failures)} of {runs} runs", *failures]))
    scene.again()
    scene.finish()
    if hits == 0:
        raise Failure("no call failed")
    return f"{hits} of {runs} faults hit; exit codes {dict(sorted(ends.items()))}; seed {SEED}"


def killed_in_front_of_ptrace_calls(place):
    """Front and worker at once: the thread that works for them finishes by itself, and the tidier takes away what they had made."""
    faults, source, runs = Faults(place), random.Random(SEED), 0
    target = Target("mem_writer", place.folder("target"))
    image = os.path.join(place.folder("images"), "image")
    arguments = ["dump", "-R", "-p", target.pid, "-f", image]
    faults.run("ptrace", 0, *arguments).expect(0)
    numbers = range(1, faults.calls + 1) if EVERY else sorted(source.sample(range(1, faults.calls + 1), min(16, faults.calls)))
    for nth in numbers:
        remove(image)
        before = fingerprint(target.pid)
        with subprocess.Popen([CKPT, *map(str, arguments)], env=faults.environment("ptrace", nth, 0), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL) as process:
            process.wait(60)
        runs += process.returncode == -signal.SIGKILL
        wait_until(lambda: not tidiers(image), f"seed {SEED}, call {nth}: the tidier goes on and on", 20, 0.02)
        wait_until(lambda: not list(differences(before, fingerprint(target.pid))), f"seed {SEED}, call {nth}: the target is as it was: "
                   f"{list(differences(before, fingerprint(target.pid)))}", 20)
        check_released(target.pid, before)
        target.step()
    if runs == 0:
        raise Failure("no run was killed")
    target.check()
    return f"{runs} of {len(numbers)} runs killed, of {faults.calls} calls; seed {SEED}"


def pre_dump(place):
    return sweep(place, LiveScene(place, "pre-dump"))


def dump(place):
    return sweep(place, LiveScene(place, "dump", "-R"))


def restore(place):
    return sweep(place, RestoreScene(place))


def restore_lazy(place):
    return sweep(place, RestoreScene(place, "--lazy"))


def squash(place):
    return sweep(place, SquashScene(place))


def convert(place):
    return sweep(place, ConvertScene(place))


if __name__ == "__main__":
    sys.exit(run_tests(pre_dump, dump, restore, restore_lazy, squash, convert, killed_in_front_of_ptrace_calls))
