#!/usr/bin/env python3
"""Dump, frozen time and restore against what the machine allows, as ratios within one run.

  bench.py [--mib 256,1024] [--repeat 3] [--folder /dev/shm]

Floors, each with as many threads as there are processors: a memory copy, process_vm_readv, filling fresh pages.
The figures are the best of the repeats; nothing here fails for being slow.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "support"))
from harness import become_subreaper, ckpt, wait_until

FLOOR = os.environ.get("CKPT_MEMORY_FLOOR", "memory_floor")


def floor(kind, mib, threads, *more):
    return float(subprocess.run([FLOOR, kind, str(mib), str(threads), *map(str, more)], capture_output=True, check=True,
                                text=True).stdout)


def stats(image):
    with open(os.path.join(image, "manifest.json"), encoding="utf-8") as stream:
        return json.load(stream)["stats"]


class Held:
    """A process that holds so much memory."""

    def __init__(self, mib, folder):
        self.file = os.path.join(folder, "held")
        self.process = subprocess.Popen([FLOOR, "hold", str(mib), self.file], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        wait_until(lambda: os.path.exists(self.file) and open(self.file, encoding="ascii").read().endswith("\n"), "memory")
        pid, self.address = open(self.file, encoding="ascii").read().split()
        self.pid = int(pid)

    def touch(self):
        with open(self.file + ".touch", "w", encoding="ascii"):
            pass
        wait_until(lambda: not os.path.exists(self.file + ".touch"), "touching pages")

    def reap(self):
        os.waitpid(self.pid, 0)
        self.process.returncode = 0


def timed(*arguments):
    begin = time.monotonic()
    ckpt(*arguments, timeout=600).expect(0)
    return time.monotonic() - begin


def measure(mib, folder, threads):
    held = Held(mib, folder)
    found = {"copy": floor("copy", mib, threads), "fill": floor("fill", mib, threads),
             "readv": floor("readv", mib, threads, held.pid, held.address)}
    image = {name: os.path.join(folder, name) for name in ("full", "before", "delta")}
    found["dump"] = timed("dump", "-R", "-p", held.pid, "-f", image["full"])
    found["dump frozen"] = stats(image["full"])["frozen_us"] / 1e6
    found["pre-dump"] = timed("pre-dump", "-p", held.pid, "-f", image["before"])
    found["pre-dump frozen"] = stats(image["before"])["frozen_us"] / 1e6
    held.touch()
    found["dump --prev"] = timed("dump", "-p", held.pid, "-f", image["delta"], "--prev", image["before"])
    found["dump --prev frozen"] = stats(image["delta"])["frozen_us"] / 1e6
    held.reap()
    found["restore"] = timed("restore", "-d", "-f", image["delta"])
    os.kill(held.pid, 9)
    os.waitpid(held.pid, 0)
    return found


AGAINST = {"dump": "readv", "dump frozen": "readv", "pre-dump": "readv", "pre-dump frozen": "readv",
           "dump --prev": "readv", "dump --prev frozen": "readv", "restore": "fill"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", default="256,1024")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--folder", help="where the images go; default: the temporary folder")
    options = parser.parse_args()
    become_subreaper()
    threads = len(os.sched_getaffinity(0))
    for mib in map(int, options.mib.split(",")):
        best = {}
        for _ in range(options.repeat):
            folder = tempfile.mkdtemp(prefix="ckpt-bench-", dir=options.folder)
            try:
                for name, seconds in measure(mib, folder, threads).items():
                    best[name] = min(best.get(name, seconds), seconds)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        print(f"{mib} MiB, {threads} threads, half of it random; 1/16 of the pages changed before dump --prev")
        for name in ("copy", "readv", "fill"):
            print(f"  floor {name:20s} {best[name] * 1000:9.1f} ms  {mib / 1024 / best[name]:6.1f} GiB/s")
        for name, base in AGAINST.items():
            print(f"  {name:26s} {best[name] * 1000:9.1f} ms  {best[name] / best[base]:6.2f} x {base}")


if __name__ == "__main__":
    sys.exit(main())
