#!/usr/bin/env python3
"""torchrun on two or three nodes, network namespaces each, over gloo: dumped together in the middle, all of it ended, restored together. The
losses of every step must be those of an uninterrupted run, to the bit. Variants "loss": of the packets between the nodes 1 % are lost, and
each takes 20 ms. Variant "2-kills": at a random moment of each dump, or of the restore after it, one of the ckpts or mpirun is killed; all go on, or
all are in a whole image. CKPT_ROUNDS: so many dumps (50 with CKPT_LONG=1). CKPT_SEED: of the moments."""
import collections
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time

from app import SCRIPT, expect, main
from harness import CKPT, become_subreaper, exists_unreaped, tree_of
from nodes import Nodes, check_launcher, finish, one_of, start_together, wait_until
from torch_training import interop_python
from torchrun import drive

ROUNDS = int(os.environ.get("CKPT_ROUNDS", "50" if os.environ.get("CKPT_LONG") == "1" else "3"))
STEPS = 1500 + 400 * max(0, ROUNDS - 3)  # a busy machine makes some hundred of them while mpirun ends
VARIANTS = {"2": (2, STEPS, None), "2-loss": (2, 300, (0.01, 0.02)), "3": (3, STEPS, None), "3-loss": (3, 300, (0.01, 0.02)),
            "2-kills": (2, 500 + 400 * ROUNDS, None)}
SEED = int(os.environ.get("CKPT_SEED", str(int(time.time()))))


class Training:
    def __init__(self, nodes, python, folder, steps):
        os.makedirs(folder)
        self.folder, self.processes = folder, []
        self.size, device = len(nodes.names), "tun0" if nodes.relay else "eth0"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": device, "TP_SOCKET_IFNAME": device, "CKPT_STEPS": str(steps)}
        for rank, name in enumerate(nodes.names):
            words = [python, "-m", "torch.distributed.run", "--nnodes", self.size, "--nproc-per-node", 1, "--node-rank", rank, "--master-addr", nodes.address(0),
                     "--master-port", 29511, SCRIPT, "--drive", folder]
            with open(os.path.join(folder, f"log.{rank}"), "wb") as log:
                self.processes.append(subprocess.Popen(["setsid", "nsenter", f"--net=/run/netns/{name}", *map(str, words)], cwd=folder,
                                                       stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment))
        self.pids = [process.pid for process in self.processes]

    def losses(self):
        found = []
        for rank in range(self.size):
            path = os.path.join(self.folder, f"losses.{rank}")
            with open(path, encoding="ascii") if os.path.exists(path) else open(os.devnull, encoding="ascii") as stream:
                found.append(stream.read().split())
        return found

    def steps(self):
        return min(map(len, self.losses()))

    def logs(self):
        return "".join(open(os.path.join(self.folder, f"log.{rank}"), errors="replace").read()[-2000:] for rank in range(self.size))

    def wait_steps(self, steps):
        def there():
            if not all(map(exists_unreaped, self.pids)):
                raise AssertionError(f"it has ended: {self.logs()}")
            return self.steps() >= steps
        wait_until(there, f"step {steps}", 120)

    def wait_ended(self, trees):
        wait_until(lambda: not any([exists_unreaped(pid) for pid in trees]), "all of it has ended", 300)

    def checkpoint(self, nodes, image, *arguments):
        trees = [pid for root in self.pids for pid in tree_of(root)]
        begin = time.monotonic()
        finish(start_together(CKPT, self.size, "dump", "-f", image, *arguments, member="-p " + one_of(self.pids)))
        middle = time.monotonic()
        self.wait_ended(trees)
        finish(start_together(CKPT, self.size, "restore", "-f", image, "-d", "--join-ns", member="net:/run/netns/" + one_of(nodes.names)))
        print(f"step {self.steps()}: dump {middle - begin:.2f} s, restore {time.monotonic() - middle:.2f} s")
        shutil.rmtree(image)


def ckpts_at(image):
    """Members, their couriers and what they have forked."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{entry}/cmdline", "rb") as stream:
            words = stream.read().split(b"\0")
            if words[0] == CKPT.encode() and image.encode() in words:
                found.append(int(entry))
    return found


def strike(process, image, rng):
    """Who was killed under way."""
    wait_until(lambda: ckpts_at(image) or process.poll() is not None, "a member has begun")
    time.sleep(rng.random())
    who = rng.choice(["launcher", "ckpt"])
    found = ckpts_at(image)
    victims = [process.pid] if who == "launcher" else rng.sample(found, min(1, len(found)))
    for pid in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=120)
    wait_until(lambda: not ckpts_at(image), "all ckpts have ended", 60)
    return who if victims else "nobody"


class Struck:
    """A training, of whose dumps and restores something is killed."""

    def __init__(self, training, nodes, rng):
        self.training, self.nodes, self.rng = training, nodes, rng

    def start(self, verb, image):
        member = "-p " + one_of(self.training.pids) if verb == "dump" else "-d --join-ns net:/run/netns/" + one_of(self.nodes.names)
        return start_together(CKPT, self.training.size, verb, "-f", image, member=member, start_new_session=True)

    def end(self, trees):
        for pid in trees:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.training.wait_ended(trees)

    def dump(self, image):
        trees = [pid for root in self.training.pids for pid in tree_of(root)]
        who = strike(self.start("dump", image), image, self.rng)
        if not os.path.exists(os.path.join(image, "job.json")):
            return f"dump, {who}: no image"
        self.end(trees)
        finish(self.start("restore", image))
        return f"dump, {who}: a whole image"

    def restore(self, image):
        trees = [pid for root in self.training.pids for pid in tree_of(root)]
        finish(self.start("dump", image))
        self.training.wait_ended(trees)
        who = strike(self.start("restore", image), image, self.rng)
        alive = [pid for pid in self.training.pids if exists_unreaped(pid)]
        if len(alive) == len(self.training.pids):
            return f"restore, {who}: all went on"
        wait_until(lambda: not any([exists_unreaped(pid) for pid in trees]), f"none goes on: {alive} do")
        finish(self.start("restore", image))
        return f"restore, {who}: none went on"


def survive(training, nodes, folder, steps):
    """Rounds until they are over, or the training nearly is."""
    struck, rng, seen = Struck(training, nodes, random.Random(SEED)), random.Random(SEED + 1), collections.Counter()
    for turn in range(ROUNDS):
        training.wait_steps(training.steps() + 5)
        if training.steps() > steps - 500:
            break
        image = os.path.join(folder, f"image{turn}")
        what = rng.choice([struck.dump, struck.restore])(image)
        print(f"round {turn}, seed {SEED}, step {training.steps()}: {what}", flush=True)
        seen[what] += 1
        shutil.rmtree(image, ignore_errors=True)
    print(f"seed {SEED}, {sum(seen.values())} rounds: {dict(sorted(seen.items()))}")
    expect(any("nobody" not in what for what in seen), True, "something was killed")


@contextlib.contextmanager
def made(size, worse=None):
    nodes = Nodes(size, worse)
    try:
        yield nodes
    finally:
        nodes.remove()


def test(run):
    check_launcher(CKPT)
    python = interop_python()
    size, steps, worse = VARIANTS[run.variant]
    with made(size) as nodes:
        straight = Training(nodes, python, os.path.join(run.folder, "straight"), steps)
        straight.wait_ended(straight.pids)
        wanted = straight.losses()
        expect([len(one) for one in wanted], [steps] * size, "the number of steps")
    with made(size, worse) as nodes:
        interrupted = Training(nodes, python, os.path.join(run.folder, "interrupted"), steps)
        if run.variant == "2-kills":
            survive(interrupted, nodes, run.folder, steps)
        else:
            for turn in range(ROUNDS):
                interrupted.wait_steps((turn + 1) * (steps - steps // 4) // ROUNDS - 5)
                interrupted.checkpoint(nodes, os.path.join(run.folder, f"image{turn}"))
            expect(interrupted.steps() < steps, True, "it was dumped in the middle of its work")
        interrupted.wait_ended(interrupted.pids)
        expect(interrupted.losses(), wanted, "the losses")


if __name__ == "__main__":
    become_subreaper()
    main(test, drive, tuple(VARIANTS))
