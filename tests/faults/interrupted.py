#!/usr/bin/env python3
"""SIGINT and SIGTERM at random moments: exit 130, the target released first, nothing left. And targets that die."""
import os
import random
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from harness import CKPT, Failure, Target, ckpt, check_released, differences, fingerprint, run_tests, wait_until

COUNT = int(os.environ.get("CKPT_INTERRUPT_COUNT", "40"))
SEED = int(os.environ.get("CKPT_KILL_SEED", str(time.time_ns() % 1000000)))


def start(*arguments):
    return subprocess.Popen([CKPT, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, text=True)


def wait_for_handlers(process):
    """Until ckpt holds its signals back itself (it reads them from a signalfd), SIGTERM ends it as any program."""
    def ready():
        for line in open(f"/proc/{process.pid}/status", encoding="ascii", errors="replace"):
            if line.startswith(("SigBlk", "SigCgt")) and int(line.split()[1], 16) & (1 << (signal.SIGTERM - 1)):
                return True
        return process.poll() is not None
    wait_until(ready, "ckpt never took its signals over", 5, 0.0002)


def typical(target, image, verb):
    begin = time.monotonic()
    ckpt(*verb, "-p", target.pid, "-f", image).expect(0)
    took = time.monotonic() - begin
    subprocess.run(["rm", "-rf", image], check=True)
    return took


def interrupted(place):
    source = random.Random(SEED)
    target = Target("mem_anonymous", place.folder("one"))
    folder = os.path.dirname(target.folder)
    image = os.path.join(folder, "image")
    known = sorted(os.listdir(folder))
    took = {name: typical(target, image, name.split()) for name in ("pre-dump", "dump -R")}
    stopped = 0
    for number in range(COUNT):
        name = ("pre-dump", "dump -R")[number % 2]
        before = fingerprint(target.pid)
        process = start(*name.split(), "-p", target.pid, "-f", image)
        wait_for_handlers(process)
        time.sleep(source.uniform(0, took[name]))
        process.send_signal((signal.SIGINT, signal.SIGTERM)[number // 2 % 2])
        _, said = process.communicate(timeout=30)
        where = f"seed {SEED}, run {number} ({name})"
        if process.returncode not in (0, 130):
            raise Failure(f"{where}: exit {process.returncode}\n{said}")
        check_released(target.pid)
        found = list(differences(before, fingerprint(target.pid)))
        if found:
            raise Failure(f"{where}: the target was altered: {found}")
        target.step()
        if process.returncode == 0:
            ckpt("verify", image).expect(0)
            subprocess.run(["rm", "-rf", image], check=True)
        else:
            stopped += 1
        if sorted(os.listdir(folder)) != known:
            raise Failure(f"{where}: left behind: {set(os.listdir(folder)) - set(known)}")
    target.check()
    if stopped == 0:
        raise Failure("not one run was interrupted in time")
    return f"{stopped} of {COUNT} interrupted"


def target_dies(place):
    """The target is killed while ckpt is at work: a clean error and no image, or a whole image if it was done with it."""
    source = random.Random(SEED)
    ended, took = 0, {}
    for number in range(COUNT):
        name = ("pre-dump", "dump -R", "dump")[number % 3]
        program = ("mem_anonymous", "threads")[number % 2]
        folder = place.folder(str(number))
        target, image = Target(program, folder), os.path.join(folder, "image")
        if (name, program) not in took:
            took[name, program] = typical(target, image, ["dump", "-R"])
        process = start(*name.split(), "-p", target.pid, "-f", image)
        time.sleep(source.uniform(0, took[name, program]))
        target.kill()
        _, said = process.communicate(timeout=30)
        where = f"seed {SEED}, run {number} ({name})"
        if process.returncode == 4:
            ended += 1
            if os.path.exists(image):
                raise Failure(f"{where}: an image of a process that died\n{said}")
        elif process.returncode == 0:
            ckpt("verify", image).expect(0)
        else:
            raise Failure(f"{where}: exit {process.returncode}\n{said}")
        left = set(os.listdir(folder)) - {"work", "log", "image"}
        if left:
            raise Failure(f"{where}: left behind: {left}")
    return f"{ended} of {COUNT} ended with 'no such process'"


if __name__ == "__main__":
    sys.exit(run_tests(interrupted, target_dies))
