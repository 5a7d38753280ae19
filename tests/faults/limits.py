#!/usr/bin/env python3
"""Only so many processes and threads are allowed: every verb goes on with fewer, or ends with 9 and nothing left; never by an
abort, and never with a success that does not hold."""
import os
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from harness import Failure, Skip, Target, check_released, ckpt, differences, fingerprint, run_tests, wait_until

GROUPS = ("/sys/fs/cgroup/pids", "/sys/fs/cgroup")


class Limit:
    """A cgroup of its own with pids.max; `enter` puts a child into it."""

    def __enter__(self):
        for base in GROUPS:
            try:
                self.path = tempfile.mkdtemp(prefix="ckpt-limits-", dir=base)
                self.set("max")
                return self
            except OSError:
                continue
        raise Skip("no cgroup with a limit on processes can be made here")

    def __exit__(self, *_):
        for pid in self.members():
            os.kill(pid, signal.SIGKILL)
        wait_until(self.gone, "the cgroup goes", 10)

    def gone(self):
        try:
            os.rmdir(self.path)
        except OSError:
            return False
        return True

    def members(self):
        with open(os.path.join(self.path, "cgroup.procs"), encoding="ascii") as stream:
            return [int(line) for line in stream]

    def set(self, most):
        with open(os.path.join(self.path, "pids.max"), "w", encoding="ascii") as stream:
            stream.write(str(most))

    def enter(self):
        with open(os.path.join(self.path, "cgroup.procs"), "w", encoding="ascii") as stream:
            stream.write(str(os.getpid()))


def captures(place):
    with Limit() as limit:
        target = Target("mem_large", place.folder("target"))
        folder = place.folder("images")
        image = os.path.join(folder, "image")
        before, refused = fingerprint(target.pid), 0
        for most in (1, 2, 3, 4, 5, 7, 10):
            for verb in (["pre-dump"], ["dump", "-R"]):
                limit.set(most)
                done = ckpt(*verb, "-p", target.pid, "-f", image, preexec_fn=limit.enter)
                limit.set("max")
                if done.code not in (0, 9):
                    raise Failure(f"{verb} with {most}: exit {done.code}: {done.err}")
                refused += done.code == 9
                check_released(target.pid)
                wait_until(lambda: not list(differences(before, fingerprint(target.pid))), f"{verb} with {most}: the target is as it was", 5)
                left = [name for name in os.listdir(folder) if name != "image"]
                if left or (done.code != 0 and os.path.exists(image)):
                    raise Failure(f"{verb} with {most}: left behind: {os.listdir(folder)}")
                subprocess.run(["rm", "-rf", image], check=True)
        target.step()
        target.check()
        return f"{refused} refused"


def restores(place):
    with Limit() as limit:
        target, image = Target("mem_large", place.folder("target")), os.path.join(place.path, "image")
        ckpt("dump", "-p", target.pid, "-f", image).expect(0)
        target.reap()
        seen = []
        for how in ([], ["--lazy"]):
            for most in (1, 2, 3, 4, 5, 8):
                target.forget_answers()
                limit.set(most)
                done = ckpt("restore", "-f", image, "-d", *how, preexec_fn=limit.enter)
                limit.set("max")
                seen.append(done.code)
                if done.code == 0:
                    target.adopt()
                    target.step()
                    if not target.running():
                        raise Failure(f"restore {how} with {most}: 0, and the process has ended: {target.ending}")
                    target.kill()
                elif done.code != 9:
                    raise Failure(f"restore {how} with {most}: exit {done.code}: {done.err}")
                elif os.path.exists(f"/proc/{target.pid}"):
                    raise Failure(f"restore {how} with {most}: 9, and a process is there")
        if 9 not in seen or 0 not in seen:
            raise Failure(f"exit codes {seen}")
        return f"exit codes {seen}"


def squashes(place):
    with Limit() as limit:
        target = Target("mem_large", place.folder("target"))
        image, squashed = os.path.join(place.path, "image"), os.path.join(place.path, "squashed")
        ckpt("pre-dump", "-p", target.pid, "-f", image).expect(0)
        target.kill()
        limit.set(1)
        ckpt("squash", image, squashed, preexec_fn=limit.enter).expect(0)
        ckpt("verify", squashed, preexec_fn=limit.enter).expect(0)


if __name__ == "__main__":
    sys.exit(run_tests(captures, restores, squashes))
