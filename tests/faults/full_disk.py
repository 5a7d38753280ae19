#!/usr/bin/env python3
"""The image does not fit: exit 9, the target unharmed, nothing left."""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from harness import Failure, Skip, Target, check_released, ckpt, differences, fingerprint, run_tests


def full_disk(place):
    small = place.folder("small")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "ckpt-small", small], capture_output=True, check=False)
    if mounted.returncode != 0:
        raise Skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        target = Target("mem_anonymous", place.folder("target"))
        before = fingerprint(target.pid)
        for verb in (["dump"], ["pre-dump"], ["dump", "-R"]):
            # Below the mount point, and the mount point itself, which no rename can replace.
            for image in (os.path.join(small, "image"), small):
                ckpt(*verb, "-p", target.pid, "-f", image).expect(9)
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
    finally:
        subprocess.run(["umount", small], check=False)


if __name__ == "__main__":
    sys.exit(run_tests(full_disk))
