#!/usr/bin/env python3
"""ckpt is killed with SIGKILL at random moments of pre-dump and dump: the target runs on as it was, and an image that is
there is whole. What is killed is the process that the user started. CKPT_KILL_COUNT (200; 1000 with CKPT_LONG=1) says how often in all,
CKPT_KILL_SEED repeats a run, CKPT_KILL_EVERYTHING (0.3) is the share of runs that kill ckpt's worker at the same instant."""
import itertools
import os
import random
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from harness import CKPT, LONG, Failure, Target, check_released, children_of, ckpt, ckpt_restore, differences, fingerprint, run_tests, tidiers, wait_until

COUNT = int(os.environ.get("CKPT_KILL_COUNT", "1000" if LONG else "200"))
SEED = int(os.environ.get("CKPT_KILL_SEED", str(time.time_ns() % 1000000)))
EVERYTHING = float(os.environ.get("CKPT_KILL_EVERYTHING", "0.3"))
VERBS = [["pre-dump"], ["dump", "-R"], ["dump"], ["pre-dump", "--prev"], ["dump", "-R", "--prev"]]


class Attack:
    """One target, replaced by its restored self where an image turned out to be complete."""

    def __init__(self, program, place, random_source):
        self.place, self.random, self.program = place, random_source, program
        self.number = 0
        self.renew()
        images = place.folder("images")
        self.base, self.image = os.path.join(images, "base"), os.path.join(images, "image")
        self.complete = self.unfinished = 0
        self.typical = {}
        self.manner = ""

    def renew(self):
        self.number += 1
        self.target = Target(self.program, self.place.folder(f"{self.program}-{self.number}"))

    def arguments(self, verb):
        line = [verb[0], "-p", str(self.target.pid), "-f", self.image]
        for word in verb[1:]:
            line += [word, self.base] if word == "--prev" else [word]
        return line

    def prepare(self, verb):
        """The parent image, made in peace, and how long the verb takes when nobody disturbs it."""
        if "--prev" in verb:
            subprocess.run(["rm", "-rf", self.base], check=True)
            ckpt("pre-dump", "-p", self.target.pid, "-f", self.base).expect(0)
        key = tuple(verb)
        if key not in self.typical:
            quiet = verb if verb != ["dump"] else ["dump", "-R"]
            start = time.monotonic()
            ckpt(*self.arguments(quiet)).expect(0)
            self.typical[key] = time.monotonic() - start
            subprocess.run(["rm", "-rf", self.image], check=True)

    def once(self, verb):
        self.prepare(verb)
        before = fingerprint(self.target.pid)
        steps = self.target.steps
        process = subprocess.Popen([CKPT, *self.arguments(verb)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        time.sleep(self.random.uniform(0, 1.3 * self.typical[tuple(verb)]))
        tidied = self.kill(process)
        if verb == ["dump"] and self.is_complete():
            try:  # its end may be under way, and must be if ckpt was left to finish
                wait_until(lambda: not self.target.running(), "the target does not end after its dump", 20 if tidied else 0.3)
            except Failure:
                if tidied:
                    raise
        survived = self.target.running()
        if survived:
            check_released(self.target.pid)
            found = list(differences(before, fingerprint(self.target.pid)))
            if found and tidied:
                raise Failure("the target was altered: " + "; ".join(found))
            # With front and worker gone at once it is the tidier that takes scratch pages and snapshots out of the target,
            # and it is nobody's child.
            wait_until(lambda: not list(differences(before, fingerprint(self.target.pid))), f"the target is as it was: {found}", 20)
            wait_until(lambda: tidied or not tidiers(self.image), "the tidier ends", 20, 0.02)
            self.target.step()
        elif verb != ["dump"]:
            raise Failure(f"the target has ended: {self.target.ending}")
        self.judge_image(survived, steps)

    def kill(self, process):
        """True: one of ckpt's own was left to tidy up."""
        if process.poll() is not None:
            return True
        process.send_signal(signal.SIGSTOP)  # it starts nothing more while we look
        helpers = children_of(process.pid)
        everything = self.random.random() < EVERYTHING
        self.manner = f"killed {'all at once' if everything else 'in front'}, helpers {len(helpers)}"
        for pid in [process.pid] + (helpers if everything else []):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        process.wait(30)
        for pid in helpers:
            def gone(pid=pid):
                try:
                    return os.waitpid(pid, os.WNOHANG)[0] == pid
                except ChildProcessError:
                    return True
            wait_until(gone, f"helper {pid} does not end after ckpt was killed", 20)
        return not everything

    def is_complete(self):
        return os.path.exists(os.path.join(self.image, "manifest.json"))

    def judge_image(self, survived, steps):
        if not self.is_complete():
            if not survived:
                raise Failure(f"the target is gone ({self.target.ending}) and there is no image\n{self.target.log_tail()}")
            if os.path.isdir(self.image) and os.listdir(self.image):
                raise Failure(f"half an image under the final name: {os.listdir(self.image)}")
            self.unfinished += 1
            return
        self.complete += 1
        ckpt("verify", self.image).expect(0)
        self.target.kill()
        self.target.forget_answers()
        ckpt_restore("-f", self.image, "-d").expect(0)
        self.target.adopt()
        self.target.steps = steps
        self.target.step()
        subprocess.run(["rm", "-rf", self.image], check=True)

    def finish(self):
        """The target still passes; a run in peace clears what the killed ones left beside the image."""
        ckpt("dump", "-p", self.target.pid, "-f", self.image, "-R").expect(0)
        folder = os.path.dirname(self.image)
        left = [name for name in os.listdir(folder) if name not in ("image", "base")]
        if left:
            raise Failure(f"left behind beside the image: {left}")
        self.target.check()


def attack(program, place, share):
    source = random.Random(f"{SEED}/{program}")
    victim = Attack(program, place, source)
    for number, verb in zip(range(share), itertools.cycle(VERBS)):
        try:
            victim.once(verb)
        except Failure as failure:
            raise Failure(f"seed {SEED}, run {number} ({' '.join(verb)}, {victim.manner}): {failure}") from failure
    victim.finish()
    return f"{victim.complete} complete images, {victim.unfinished} times none"


def memory(place):
    return attack("mem_anonymous", place, COUNT * 2 // 5)


def many_threads(place):
    return attack("threads", place, COUNT // 5)


def busy_writers(place):
    return attack("mem_writer", place, COUNT // 5)


def timers(place):
    return attack("posix_timers", place, COUNT // 5)


def trees(place):
    return attack("tree_children", place, COUNT // 10)


def sockets(place):
    return attack("sock_pair_stream", place, COUNT // 10)


def terminals(place):
    return attack("terminal_pair", place, COUNT // 10)


def rings(place):
    return attack("fd_io_uring_busy", place, COUNT // 10)


if __name__ == "__main__":
    sys.exit(run_tests(memory, many_threads, busy_writers, timers, trees, sockets, terminals, rings))
