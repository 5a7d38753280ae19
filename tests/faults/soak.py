#!/usr/bin/env python3
"""pre-dump, a step, dump --prev, restore, again and again on the same process: it has as many mappings, descriptors and threads at
the end as at the beginning, and passes its own check. Ten kinds of programs, CKPT_SOAK_COUNT cycles in all (20; 1000 with
CKPT_LONG=1)."""
import os
import re
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from harness import LONG, Failure, Target, ckpt, ckpt_restore, differences, fingerprint, run_tests

KINDS = ["mem_anonymous", "mem_shared_file", "threads", "pipes", "epoll", "sock_pair_stream", "signals_pending", "posix_timers",
         "tree_children", "terminal_pair"]
COUNT = int(os.environ.get("CKPT_SOAK_COUNT", "1000" if LONG else "20"))


def cycle(target, folder):
    first, last = os.path.join(folder, "first"), os.path.join(folder, "last")
    ckpt("pre-dump", "-p", target.pid, "-f", first).expect(0)
    target.step()
    tree = target.tree()
    ckpt("dump", "-p", target.pid, "-f", last, "--prev", first).expect(0)
    target.reap(tree)
    target.forget_answers()
    ckpt_restore("-f", last, "-d").expect(0)
    target.adopt()
    shutil.rmtree(first)
    shutil.rmtree(last)


def shape(pid):
    """What nothing may be added to, and nothing lost from: objects get new numbers with each restore."""
    found = fingerprint(pid)
    for key, value in found.items():
        if key.startswith("descriptors"):
            found[key] = {number: re.sub(r":\[\d+\]$", "", leads_to) for number, (leads_to, _) in value.items()}
        elif key.startswith("mappings"):
            found[key] = [len(value)]
    return found


def soak(place):
    for kind in KINDS:
        target = Target(kind, place.folder(kind))
        images = place.folder(kind + "-images")
        cycle(target, images)
        before = shape(target.pid)
        for number in range(1, COUNT // len(KINDS)):
            cycle(target, images)
            found = list(differences(before, shape(target.pid)))
            if found:
                raise Failure(f"{kind}, cycle {number}: {found}")
        target.check()
    return f"{COUNT} cycles over {', '.join(KINDS)}"


if __name__ == "__main__":
    sys.exit(run_tests(soak))
