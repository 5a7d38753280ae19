#!/usr/bin/env python3
"""The image does not fit: exit 9, the target unharmed, nothing left."""
import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from harness import Failure, Skip, Target, check_released, ckpt, differences, fingerprint, run_tests


def with_room(place, size):
    """Every way to write an image where `size` is all there is: 9 and nothing, or 0 and a sound image."""
    small = place.folder(f"small-{size}")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "ckpt-small", small], capture_output=True, check=False)
    if mounted.returncode != 0:
        raise Skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        target = Target("mem_anonymous", place.folder(f"target-{size}"))
        full = 0
        before = fingerprint(target.pid)
        for verb in (["dump"], ["pre-dump"], ["dump", "-R"]):
            # Below the mount point, and the mount point itself, which no rename can replace.
            for image in (os.path.join(small, "image"), small):
                more = verb if verb != ["dump"] else ["dump", "-s"]
                done = ckpt(*more, "-p", target.pid, "-f", image)
                if done.code == 0:
                    os.kill(target.pid, signal.SIGCONT)
                    ckpt("verify", image).expect(0)
                    for name in os.listdir(small):
                        subprocess.run(["rm", "-rf", os.path.join(small, name)], check=True)
                    continue
                done.expect(9)
                full += 1
                if not target.running():
                    raise Failure(f"{verb}: the target has ended: {target.ending}")
                check_released(target.pid)
                found = list(differences(before, fingerprint(target.pid)))
                if found:
                    raise Failure(f"{verb}: the target was altered: {found}")
                if os.listdir(small):
                    raise Failure(f"{verb}: left behind: {os.listdir(small)}")
        target.step()
        target.check()
        return full
    finally:
        subprocess.run(["umount", small], check=False)


def full_disk(place):
    found = {size: with_room(place, size) for size in (64, 256, 1024, 4096, 12288, 65536)}
    if found[64] != 6:
        raise Failure(f"an image of 64 KiB: {found}")
    return f"did not fit, of 6 ways each: {found}"


if __name__ == "__main__":
    sys.exit(run_tests(full_disk))
