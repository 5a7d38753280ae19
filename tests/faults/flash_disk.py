#!/usr/bin/env python3
"""An agent's disk is slow, or full: training goes on from memory, no step is lost that was in it, and storage has whole checkpoints alone.

usage: flash_disk.py    (CKPT_BIN names ckpt, CKPT_KILL_POINTS kill_points.so, which makes a disk slow)
"""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

CKPT = os.path.abspath(os.environ["CKPT_BIN"])
os.environ.setdefault("CKPT_FLASH_LIBRARY", os.path.join(os.path.dirname(CKPT), "libckpt-flash.so"))
if not os.path.exists(os.environ["CKPT_FLASH_LIBRARY"]):
    print("skipped: flash_disk: libckpt-flash.so is not built here")
    sys.exit(77)
SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(SOURCE / "plugins" / "torch"), str(SOURCE / "tests" / "support")]
from ckpt_flash import Engine, FlashError  # noqa: E402
from flash_job import check, state_of  # noqa: E402
from nodes import wait_until  # noqa: E402


class Place:
    """A folder of checkpoints, its agents and their trainers."""

    def __enter__(self):
        self.base = pathlib.Path(tempfile.mkdtemp(prefix="ckpt-flash-disk-"))
        self.folder, self.agents, self.engines = self.base / "c", [], []
        self.folder.mkdir()
        return self

    def agent(self, name, *options, slow=None, before=()):
        environment = dict(os.environ, LD_PRELOAD=os.environ["CKPT_KILL_POINTS"], **slow) if slow else dict(os.environ)
        log = open(self.base / f"{name}.log", "w+", encoding="utf-8")
        self.agents.append(subprocess.Popen([*before, CKPT, "agent", str(self.folder), "--socket", str(self.base / name), *options],
                                            env=environment, stdin=subprocess.DEVNULL, stderr=log))
        wait_until(lambda: (self.base / name).exists(), "the agent begins")
        return self.agents[-1]

    def engine(self, name, **options):
        self.engines.append(Engine(self.folder, socket=str(self.base / name), start_agent=False, **options))
        return self.engines[-1]

    def log(self, name):
        return (self.base / f"{name}.log").read_text()

    def names(self):
        return sorted(os.listdir(self.folder))

    def sound(self, step):
        done = subprocess.run([CKPT, "verify", str(self.folder / f"iter_{step:07}")], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def __exit__(self, *_):
        for engine in self.engines:
            engine.leave()
        for agent in self.agents:
            agent.kill()
            agent.wait()
        shutil.rmtree(self.base, ignore_errors=True)


def slow_disk():
    """Saves do not wait for it: two return while the first step is still being written; a third would be written over what is read."""
    with Place() as place:
        place.agent("a", slow={"SLOW_STORAGE_UNTIL": str(place.base / "awake")})
        engine = place.engine("a")
        for step in (1, 2):
            assert engine.save(step, state_of(step, 0), persist=step == 1)
        wait_until(lambda: engine.status()["persisting_step"] == 1, "it is being written")
        skipped = engine.save(3, state_of(3, 0))
        assert not skipped and "step 1 is still being written to storage" in skipped.skipped, skipped
        assert check(engine.load(kind="buffer"), 0) == 2
        (place.base / "awake").touch()
        assert engine.save(4, state_of(4, 0), persist=True)  # this one waits
        wait_until(lambda: engine.status()["persisted_step"] == 4, "both are in storage")
        for step in (1, 4):
            place.sound(step)


def slow_disk_and_no_time():
    with Place() as place:
        agent = place.agent("a", "--grace", "1", slow={"SLOW_STORAGE_US": "400000"})
        engine = place.engine("a")
        engine.save(1, state_of(1, 0))
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(30) == 7, place.log("a")
        assert place.names() == [], place.names()


def slow_disk_of_one_node():
    """It is no lost node, though none of its writes is through in the time after which one is."""
    with Place() as place:
        place.agent("a", "--lost-after", "3")
        place.agent("b", "--lost-after", "3", slow={"SLOW_STORAGE_US": "3500000"})
        engines = [place.engine("ab"[rank], rank=rank, world=2, local_world=1) for rank in (0, 1)]
        for rank, engine in enumerate(engines):
            assert engine.save(1, state_of(1, rank), persist=True)
        wait_until(lambda: all(engine.status()["persists"] + engine.status()["failures"] == 1 for engine in engines), "the nodes are done", 90)
        assert all(engine.status()["persisted_step"] == 1 for engine in engines), place.log("a") + place.log("b")
        place.sound(1)


def folder_that_cannot_be_seen():
    """For a moment, by one node: it waits, and takes nobody's attempt away."""
    with Place() as place:
        hidden = place.base / "hidden"
        place.agent("a", slow={"SLOW_STORAGE_UNTIL": str(place.base / "awake")})
        place.agent("b", slow={"HIDDEN_WHILE": str(hidden)})
        engines = [place.engine("ab"[rank], rank=rank, world=2, local_world=1) for rank in (0, 1)]
        for rank, engine in enumerate(engines):
            assert engine.save(1, state_of(1, rank), persist=True)
        wait_until(lambda: list(place.folder.glob(".ckpt-joint-*/written-1")), "one node has written its part")
        hidden.touch()
        time.sleep(0.3)  # it looks each 20 ms
        assert list(place.folder.glob(".ckpt-joint-*/written-1")), place.log("b")
        hidden.unlink()
        (place.base / "awake").touch()
        wait_until(lambda: all(engine.status()["persists"] + engine.status()["failures"] == 1 for engine in engines), "the nodes are done")
        assert all(engine.status()["persisted_step"] == 1 for engine in engines), place.log("a") + place.log("b")
        place.sound(1)


def full_disk():
    """What did not fit is told, and left nothing; with room again the next step is written."""
    with Place() as place:
        mount = f'mount -t tmpfs -o size=1200k none "{place.folder}" && exec "$@"'
        agent = place.agent("a", "--keep-last", "2", before=["unshare", "-m", "sh", "-c", mount, "sh"])
        inside = pathlib.Path(f"/proc/{agent.pid}/root{place.folder}")
        engine = place.engine("a")
        engine.save(1, state_of(1, 0))
        engine.persist()
        wait_until(lambda: not list(inside.glob(".ckpt-*")), "it is done")
        before = sorted(os.listdir(inside))
        for step in (2, 3, 4):
            assert engine.save(step, state_of(step, 0) | {"more": bytearray(900_000)})
            try:
                engine.persist()
                raise AssertionError("a disk that is full has room")
            except FlashError as error:
                assert error.status == 9, error
            assert sorted(os.listdir(inside)) == before, os.listdir(inside)
        assert check(engine.load(kind="buffer"), 0) == 4 and engine.status()["failures"] == 3
        subprocess.run(["nsenter", "-t", str(agent.pid), "-m", "mount", "-o", "remount,size=16m", str(place.folder)], check=True)
        engine.persist()
        assert (inside / "LATEST").read_text() == "iter_0000004\n"


slow_disk()
slow_disk_and_no_time()
slow_disk_of_one_node()
folder_that_cannot_be_seen()
if os.geteuid() == 0:
    full_disk()
else:
    print("a full disk takes root: not tried")
