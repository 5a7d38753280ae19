#!/usr/bin/env python3
"""One bit of an image, or of its parent, is flipped: verify finds it; restore refuses, or the process runs as it should; restore
--lazy does so too, or ends the process by SIGBUS, and never hangs. CKPT_FLIP_COUNT (40; 2000 with CKPT_LONG=1) flips,
CKPT_KILL_SEED repeats a run."""
import os
import random
import shutil
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from harness import LONG, Failure, Target, ckpt, ckpt_restore, exists_unreaped, reap_strays, run_tests, wait_until

COUNT = int(os.environ.get("CKPT_FLIP_COUNT", "2000" if LONG else "40"))
SEED = int(os.environ.get("CKPT_KILL_SEED", str(time.time_ns() % 1000000)))


class Chain:
    """An image and its parent, and the target that they are of, ended."""

    def __init__(self, place):
        folder = place.folder("images")
        self.images = [os.path.join(folder, name) for name in ("first", "last")]
        self.target = Target("mem_anonymous", place.folder("target"))
        ckpt("pre-dump", "-p", self.target.pid, "-f", self.images[0]).expect(0)
        self.target.step()
        tree = self.target.tree()
        ckpt("dump", "-p", self.target.pid, "-f", self.images[1], "--prev", self.images[0]).expect(0)
        self.target.reap(tree)
        self.files = [os.path.join(image, name) for image in self.images for name in sorted(os.listdir(image))
                      if os.path.isfile(os.path.join(image, name))]
        self.files = [path for path in self.files if os.path.getsize(path) > 0]

    def pick(self, source):
        """Small files are as likely as large ones: they hold what everything hangs on."""
        path = source.choice(self.files)
        return path, source.randrange(os.path.getsize(path)), source.randrange(8)

    def restore(self, *more):
        """None: refused. Else how the process ended: 'pass', or the signal."""
        self.target.forget_answers()
        done = ckpt_restore("-d", "-f", self.images[1], *more, timeout=30)
        if done.code != 0:
            if done.code not in (1, 4, 6):
                raise Failure(f"exit {done.code}: {done.err.strip()}")
            wait_until(lambda: not exists_unreaped(self.target.pid), f"refused ({done.code}), and the process is there", 10)
            return None
        self.target.alive, self.target.ending = True, ""
        try:
            self.target.check(1)
            return "pass"
        except Failure as failure:
            if self.target.running():
                self.target.kill()
                raise
            if f"signal {int(signal.SIGBUS)}" in str(failure) or f"signal {int(signal.SIGBUS)}" == self.target.ending:
                return "SIGBUS"
            raise


def flip(path, offset, bit):
    with open(path, "r+b") as stream:
        stream.seek(offset)
        byte = stream.read(1)[0]
        stream.seek(offset)
        stream.write(bytes([byte ^ (1 << bit)]))


def bit_flips(place):
    source, chain = random.Random(SEED), Chain(place)
    ends = {}
    for number in range(COUNT):
        path, offset, bit = chain.pick(source)
        where = f"seed {SEED}, flip {number}: bit {bit} of byte {offset} of {os.path.relpath(path, place.path)}"
        flip(path, offset, bit)
        try:
            verdict = ckpt("verify", chain.images[1])
            if verdict.code not in (1, 4, 6):
                raise Failure(f"verify: exit {verdict.code}\n{verdict.out}{verdict.err}")
            for more in ([], ["--lazy"]):
                end = chain.restore(*more)
                if end == "SIGBUS" and not more:
                    raise Failure("an eager restore ran into damage")
                key = f"{'lazy' if more else 'eager'}: {end or 'refused'}"
                ends[key] = ends.get(key, 0) + 1
                reap_strays()
        except Failure as failure:
            raise Failure(f"{where}: {failure}") from None
        finally:
            flip(path, offset, bit)
    ckpt("verify", chain.images[1]).expect(0)
    if chain.restore() != "pass":
        raise Failure("the image is not what it was")
    shutil.rmtree(chain.images[0])
    return f"{COUNT} flips, verify found all; {', '.join(f'{key} {n}' for key, n in sorted(ends.items()))}; seed {SEED}"


if __name__ == "__main__":
    sys.exit(run_tests(bit_flips))
