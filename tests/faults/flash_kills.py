#!/usr/bin/env python3
"""kill -9 of trainers, of their agent, of both, at random moments: after each, memory or storage holds on every rank, bit for
bit, the newest step that a save returned for on all of them, or one that a save was under way for.

usage: flash_kills.py [--long]      (CKPT_BIN names ckpt; CKPT_FLASH_SEED repeats a run)
"""
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

LONG = "--long" in sys.argv
if LONG and os.environ.get("CKPT_LONG") != "1":
    print("skipped: flash_kills --long: needs CKPT_LONG=1")
    sys.exit(77)
CKPT = os.path.abspath(os.environ["CKPT_BIN"])
os.environ.setdefault("CKPT_FLASH_LIBRARY", os.path.join(os.path.dirname(CKPT), "libckpt-flash.so"))
if not os.path.exists(os.environ["CKPT_FLASH_LIBRARY"]):
    print("skipped: flash_kills: libckpt-flash.so is not built here")
    sys.exit(77)
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "plugins" / "torch"))
from ckpt_flash import Engine  # noqa: E402

RANKS, ELEMENTS = 2, 300_000


def state_of(step, rank):
    """Every byte says which step and rank it is of."""
    import array
    return {"w": {str(rank): array.array("q", [step * 1000 + rank]) * ELEMENTS},
            "both": array.array("q", [step]) * 1000, "rng": f"{step}/{rank}"}


def check(loaded, rank):
    step = loaded.step
    assert set(loaded["w"][str(rank)].tolist()) == {step * 1000 + rank}, f"rank {rank}: a torn step {step}"
    assert len(loaded["w"][str(rank)]) == ELEMENTS and set(loaded["both"].tolist()) == {step}
    assert loaded["rng"] == f"{step}/{rank}", loaded["rng"]
    return step


def trainer(folder, rank):
    """Goes on from what there is, in step with the other rank; says which steps were saved."""
    folder = pathlib.Path(folder)
    engine = Engine(folder / "c", rank=rank, world=RANKS, save_storage_interval=7, max_to_keep=2, if_busy="wait", linger=30)
    loaded = engine.load(kind="buffer")
    step = 0 if loaded is None else check(loaded, rank)
    (folder / f"loaded{rank}.new").write_text(f"{step} {loaded.level if loaded else 'none'}")
    os.rename(folder / f"loaded{rank}.new", folder / f"loaded{rank}")
    with open(folder / f"saved{rank}", "a", encoding="ascii", buffering=1) as log:
        while True:
            step += 1
            log.write(f"{step} begun\n")
            if engine.save(step, state_of(step, rank)):
                log.write(f"{step} saved\n")
            other = folder / f"saved{1 - rank}"
            while f"{step} saved\n" not in (other.read_text() if other.exists() else ""):
                time.sleep(0.0005)


class Job:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        for name in self.folder.glob("saved*"):
            name.unlink()
        for name in self.folder.glob("loaded*"):
            name.unlink()
        self.processes = [subprocess.Popen([sys.executable, __file__, "trainer", folder, str(rank)]) for rank in range(RANKS)]

    def wait_for(self, condition, what):
        end = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end, f"{what}: not in 60 s"
            for rank, process in enumerate(self.processes):
                assert process.poll() is None, f"rank {rank} failed by itself: {process.returncode}"
            time.sleep(0.001)

    def lines(self, rank, word):
        path = self.folder / f"saved{rank}"
        if not path.exists():
            return []
        return [int(line.split()[0]) for line in path.read_text().splitlines() if line.endswith(" " + word)]

    def loaded(self):
        paths = [self.folder / f"loaded{rank}" for rank in range(RANKS)]
        self.wait_for(lambda: all(path.exists() for path in paths), "trainers begin")
        told = [path.read_text().split() for path in paths]
        assert told[0][0] == told[1][0], f"the ranks begin with different steps: {told}"
        return int(told[0][0]), told[0][1]

    def saves_more(self, count):
        at = [len(self.lines(rank, "saved")) for rank in range(RANKS)]
        self.wait_for(lambda: all(len(self.lines(rank, "saved")) >= at[rank] + count for rank in range(RANKS)), "saves go on")

    def kill(self):
        order = list(range(RANKS))
        random.shuffle(order)
        for rank in order:
            self.processes[rank].kill()
            time.sleep(random.choice((0, 0, 0.002)))
        for process in self.processes:
            process.wait()

    def bounds(self):
        """(the newest step that a save returned for on all ranks, the newest that one was begun for)."""
        saved = [max(self.lines(rank, "saved"), default=0) for rank in range(RANKS)]
        begun = [max(self.lines(rank, "begun"), default=0) for rank in range(RANKS)]
        return min(saved), min(begun)


def agent_of(folder):
    done = subprocess.run([CKPT, "agent", f"{folder}/c", "--status"], capture_output=True, text=True)
    if done.returncode != 0:
        return None
    import json
    return json.loads(done.stdout)


def on_disk(folder):
    try:
        return int((pathlib.Path(folder) / "c" / "LATEST").read_text().strip()[5:])
    except FileNotFoundError:
        return 0


def kill_agent(folder):
    told = agent_of(folder)
    if told is not None:
        os.kill(told["pid"], signal.SIGKILL)


def sound(folder):
    """What LATEST names: Megatron's file is replaced after it."""
    newest = (pathlib.Path(folder) / "c" / "LATEST").read_text().strip()
    done = subprocess.run([CKPT, "verify", f"{folder}/c/{newest}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def one_round(folder, how, before):
    job = Job(folder)
    begin, level = job.loaded()
    low, high, allowed = before
    assert low <= begin <= high, f"after {how}: began with step {begin} of {level}, not in {low}..{high}"
    assert level in allowed or begin == 0, f"step {begin} came from {level}"
    job.saves_more(random.randint(1, 4))
    time.sleep(random.random() * 0.02)
    kind = random.choice(("trainers", "trainers", "agent", "node"))
    if kind == "agent":  # its trainers start another, which takes over what they hold
        kill_agent(folder)
        job.saves_more(2)
    if kind == "node":
        kill_agent(folder)
        job.kill()
        disk = on_disk(folder)
        if disk > 0:
            sound(folder)
        return kind, (disk, disk, ("storage",))
    job.kill()
    low, high = job.bounds()
    low, high = max(low, begin), max(high, begin)
    return kind, (low, high, ("memory",))


def main():
    seed = int(os.environ.get("CKPT_FLASH_SEED", random.randrange(10**6)))
    random.seed(seed)
    rounds = 300 if LONG else 12
    folder = tempfile.mkdtemp(prefix="ckpt-flash-kills-")
    try:
        how, before = "nothing", (0, 0, ("none",))
        counts = {}
        for number in range(rounds):
            try:
                how, before = one_round(folder, how, before)
            except AssertionError as error:
                log = pathlib.Path(folder) / "c" / "ckpt-agent.log"
                print(log.read_text()[-3000:] if log.exists() else "no log")
                raise AssertionError(f"round {number} of seed {seed}: {error}") from error
            counts[how] = counts.get(how, 0) + 1
        kill_agent(folder)
        print(f"{rounds} kills held (seed {seed}): {counts}")
    finally:
        kill_agent(folder)
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if folder.encode() in path.read_bytes() and b"trainer" in path.read_bytes():
                    os.kill(int(path.parent.name), signal.SIGKILL)
            except OSError:
                pass
        shutil.rmtree(folder, ignore_errors=True)


if len(sys.argv) > 1 and sys.argv[1] == "trainer":
    trainer(sys.argv[2], int(sys.argv[3]))
else:
    main()
