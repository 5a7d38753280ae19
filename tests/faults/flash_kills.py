#!/usr/bin/env python3
"""kill -9 of a trainer, of an agent, of all of a node, of all nodes, at every step of the protocol and at random moments: after each, memory
or storage holds on every rank, bit for bit, the newest step that a save returned for, or the step before where the save had not
returned; the job goes on from it, and what it persists then is sound.

usage: flash_kills.py [--long] [--only TEXT]
    CKPT_BIN names ckpt, CKPT_KILL_POINTS kill_points.so; CKPT_FLASH_SEED repeats a run, CKPT_FLASH_ROUNDS is how many the long one has.
"""
import ctypes
import dataclasses
import itertools
import mmap
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

LONG = "--long" in sys.argv
ONLY = sys.argv[sys.argv.index("--only") + 1] if "--only" in sys.argv else ""
if LONG and os.environ.get("CKPT_LONG") != "1":
    print("skipped: flash_kills --long: needs CKPT_LONG=1")
    sys.exit(77)
CKPT = os.path.abspath(os.environ["CKPT_BIN"])
os.environ.setdefault("CKPT_FLASH_LIBRARY", os.path.join(os.path.dirname(CKPT), "libckpt-flash.so"))
if not os.path.exists(os.environ["CKPT_FLASH_LIBRARY"]):
    print("skipped: flash_kills: libckpt-flash.so is not built here")
    sys.exit(77)
POINTS = os.path.abspath(os.environ["CKPT_KILL_POINTS"])
if os.environ.get("LD_PRELOAD") != POINTS:  # trainers are forked from here
    handle, name = tempfile.mkstemp(prefix="ckpt-kill-points-")
    os.truncate(handle, 4096)
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"LD_PRELOAD": POINTS, "KILL_POINTS": name})
SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(SOURCE / "plugins" / "torch"), str(SOURCE / "tests" / "support")]
import flash_job  # noqa: E402
from ckpt_flash import Engine, group  # noqa: E402
from nodes import wait_until  # noqa: E402

KILLED_AT, PERSISTED = 4, 2  # steps of the first job; the killed one of the second is of its third

# (step of the protocol, point of kill_points.c, visits, whether the rank has the step by then)
OF_TRAINER = [("layout", "send:2", 1, False), ("layout", "sent:2", 1, False), ("layout", "received:2", 1, False),
              ("lock", "send:4", 1, False), ("lock", "sent:4", 1, False), ("lock", "received:4", 1, False),
              ("copy", "copy:begun", 1, False), ("copy", "copy:half", 1, False), ("copy", "copy:done", 1, False),
              ("unlock", "send:5", 1, True), ("notify", "sent:5", 1, True), ("notify", "received:5", 1, True)]
# What is write-protected is copied behind the trainer: it has the step once it says so, at once or before its next call returns.
OF_SNAPSHOT = [("snapshot", "received:4", 1, False), ("snapshot", "snapshot:returned", 1, None), ("snapshot", "send:5", 1, True)]
OF_AGENT = [("layout", "received:2", 1, None), ("layout", "sent:2", 1, None), ("lock", "received:4", 1, None), ("lock", "sent:4", 1, None),
            ("notify", "received:5", 1, None), ("notify", "send:5", 1, None), ("notify", "sent:5", 1, None)]
PERSISTING = [("persist", "mkdtemp", 1, None), ("persist", "pwrite", 1, None), ("persist", "fsync", 1, None), ("verify", "verify", 1, None),
              ("commit", "rename:iter_", 1, None), ("commit", "rename:LATEST", 1, None),
              ("commit", "rename:latest_checkpointed_iteration.txt", 1, None)]
TOGETHER = [("persist", "mkdir", 1, None), ("persist", "rename:ranks-", 1, None), ("persist", "mkdtemp", 1, None), ("verify", "verify", 1, None),
            ("commit", "rename:part-", 1, None), ("commit", "rename:written-", 1, None)]
LEADING = [("commit", "mkdtemp", 2, None), ("commit", "rename:iter_", 1, None), ("commit", "rename:LATEST", 1, None)]
# The second visit is that of the rank's other connection, over which it saves what it keeps for another node's.
OF_COPIER = [("partner copy", "send:4", 2, True), ("partner copy", "partner", 1, True), ("partner copy", "send:5", 2, True),
             ("partner copy", "sent:5", 2, True), ("partner copy", "send:12", 1, True)]


@dataclasses.dataclass
class Round:
    what: str
    who: str  # trainer, agent, node, all (of all nodes)
    point: str  # none: at a random moment
    nodes: int = 1
    local: int = 2
    visits: int = 1
    has: bool | None = None
    victim: int = 0  # a rank, or of an agent a node
    of_agent: bool = False
    persist: bool = False

    @property
    def world(self):
        return self.nodes * self.local

    @property
    def node(self):
        return self.victim if self.of_agent else self.victim // self.local

    @property
    def slot(self):
        return self.victim if self.of_agent else 4 + self.victim

    @property
    def format(self):
        """Of several nodes some rounds write torch_dist, which has a common state and a last file of its own."""
        return "torch_dist" if self.nodes > 1 and self.who != "node" else "dcp"

    def __str__(self):
        return f"{self.what} ({self.point or 'any moment'}, visit {self.visits}), {self.who} of {self.nodes}x{self.local}, victim {self.victim}"


def all_rounds(nodes, local):
    """Every point, with who is killed there."""
    def made(points, whos, of_agent, victims, persist=False):
        for (what, point, visits, has), who, victim in itertools.product(points, whos, victims):
            yield Round(what, who, point, nodes, local, visits, has, victim, of_agent, persist)

    ranks, agents, everybody = range(nodes * local), range(nodes), ("node", "all") if nodes > 1 else ("node",)
    yield from made(OF_TRAINER, ("trainer", *everybody), False, ranks)
    yield from made(OF_SNAPSHOT, ("trainer", *everybody), False, ranks)
    yield from made(OF_AGENT, ("agent", *everybody), True, agents)
    if nodes == 1:
        yield from made(PERSISTING, ("agent", "node"), True, agents, True)
    else:
        yield from made(TOGETHER[1:], ("agent", "node", "all"), True, agents, True)
        yield from made(TOGETHER[:1] + LEADING, ("agent", "node", "all"), True, (0,), True)
        yield from made(OF_COPIER, ("trainer", "node", "all"), False, ranks)
    for who in ("trainer", "agent", *everybody):
        yield from made([("any", "", 1, None)], (who,), who == "agent", agents if who == "agent" else ranks, True)


class Slots:
    """The file of kill_points.c."""

    def __init__(self):
        with open(os.environ["KILL_POINTS"], "r+b") as stream:
            self._memory = mmap.mmap(stream.fileno(), 4096)

    def clear(self):
        self._memory[:] = bytes(4096)

    def arm(self, one):
        struct.pack_into("48s", self._memory, one.slot * 64, one.point.encode())
        struct.pack_into("i", self._memory, one.slot * 64 + 52, int(one.who in ("node", "all")))
        struct.pack_into("i", self._memory, one.slot * 64 + 48, one.visits)

    def hit(self, one):
        return struct.unpack_from("i", self._memory, one.slot * 64 + 56)[0] != 0


def visit(point):
    ctypes.CDLL(None).kill_points_reach(point.encode())


def copies_in_halves(engine):
    whole = engine._copy

    def copy(tensors, pointers, places):
        visit("copy:begun")
        for leaf, pointer, place in zip(tensors, pointers, places):
            ctypes.memmove(place, pointer, len(memoryview(leaf.value).cast("B")) // 2)
        visit("copy:half")
        whole(tensors, pointers, places)
        visit("copy:done")

    engine._copy = copy


def trainer(run, job, last, arms):
    """Goes on from what there is up to `last`, then waits for its end. `arms`: the step before which the point is armed."""
    one, told, rank = run.one, run.told, job.rank
    for other in run.jobs:
        if other is not job:
            other.end()
    if arms:
        os.setpgid(0, run.groups[rank // one.local])
        ctypes.CDLL(None).kill_points_as(4 + rank)
    job.visited(lambda: visit("partner"))
    group.running = lambda world=None: job
    engine = Engine(f"{run.base}/c", socket=f"{run.base}/{rank // one.local}.sock", rank=rank, world=one.world, local_world=one.local,
                    partners=int(one.nodes > 1), linger=30, if_busy="wait", timeout=30, connect_timeout=20, max_to_keep=2,
                    format=one.format)
    copies_in_halves(engine)
    loaded = engine.load(kind="buffer")
    begin = flash_job.check(loaded, rank) if loaded is not None else 0
    told.tell(rank, loaded=begin, level=flash_job.LEVELS.index(loaded.level if loaded is not None else "none"), agent=engine.status()["pid"])
    del loaded
    for step in range(begin + 1, (last or begin + 2) + 1):
        engine._settle()
        told.tell(rank, protected=engine.protected_step or 0)
        job.gather(0)  # as a training step is one
        if step == arms and rank == one.victim % one.world:
            run.slots.arm(one)
        if step == arms:
            job.gather(0)
        told.tell(rank, begun=step)
        stored = step == PERSISTED if arms else step == begin + 2
        state = flash_job.state_of(step, rank, one.what == "layout" and arms and step >= arms)
        snapshot = one.what == "snapshot" and step == arms
        saved = engine.save(step, state, persist=stored or one.persist and step == arms, mode="snapshot" if snapshot else "copy")
        if snapshot:
            visit("snapshot:returned")
            wait_until(saved.done, "the snapshot is complete")  # not its partner copy, which dead ranks have a part in
        told.tell(rank, saved=step)
        if stored:
            wait_until(lambda: run.on_disk() >= step, f"rank {rank}: step {step} in storage")
            wait_until(lambda: engine.status()["persisting_step"] is None, f"rank {rank}: the agent is done")
    engine._settle()
    told.tell(rank, protected=engine.protected_step or 0)
    for turn in itertools.count(1):
        engine.status()  # a trainer that says nothing any more starts no other agent
        told.tell(rank, done=turn)
        time.sleep(0.02)


class Run:
    """One round."""

    def __init__(self, one, slots):
        self.one, self.slots = one, slots
        self.base = tempfile.mkdtemp(prefix="ckpt-flash-kills-")
        self.agents, self.pids, self.groups = [], [], []
        self.told, self.killed = None, False

    def on_disk(self):
        try:
            return int((pathlib.Path(self.base) / "c" / "LATEST").read_text().strip()[5:])
        except FileNotFoundError:
            return 0

    def agent(self, node):
        """Leads the group of the node's processes."""
        environment = os.environ | {"KILL_POINTS_SLOT": str(node)}
        with open(f"{self.base}/{node}.log", "ab") as log:
            self.agents.append(subprocess.Popen(
                [CKPT, "agent", f"{self.base}/c", "--socket", f"{self.base}/{node}.sock", "--keep-last", "2", "--linger", "30",
                 "--to", self.one.format, "--agree", "3", "--lost-after", "1"], env=environment, process_group=0, stdin=subprocess.DEVNULL, stderr=log))
        self.groups.append(self.agents[-1].pid)
        wait_until(lambda: os.path.exists(f"{self.base}/{node}.sock"), "the agent begins")

    def start(self, last, arms):
        self.jobs, self.told = flash_job.Job.of(self.one.world), flash_job.Told(self.one.world)
        self.pids = [flash_job.fork(trainer, self, job, last, arms) for job in self.jobs]
        for job in self.jobs:
            job.end()

    def wait(self, condition, what):
        def holds():
            if condition():
                return True
            for rank, pid in enumerate(self.pids):
                ended, status = os.waitpid(pid, os.WNOHANG) if pid else (0, 0)
                if ended:
                    self.pids[rank] = 0
                    assert self.killed, f"rank {rank} has failed by itself"
            return False

        wait_until(holds, what, 60)

    def kill(self):
        """At the point, or at a random moment; then what is left of the job's trainers, as a launcher does."""
        one, told = self.one, self.told
        if one.point:
            self.killed = True  # at any moment
            self.wait(lambda: self.slots.hit(one), "the point is reached")
        else:
            self.wait(lambda: min(told.all("saved")) >= KILLED_AT, "saves go on")
            time.sleep(random.random() * 0.05)
            self.killed = True
            if one.who in ("node", "all"):
                os.killpg(self.groups[one.node], signal.SIGKILL)
            else:
                os.kill(self.agents[one.victim].pid if one.of_agent else self.pids[one.victim], signal.SIGKILL)
        last = self.last()
        if one.who == "agent":
            for _ in range(2):  # a turn that was under way may have been the killed one's
                before = told.all("done")
                self.wait(lambda: all(now > then for now, then in zip(told.all("done"), before)), "the others go on with another agent")
        elif one.point and one.who == "trainer":
            self.wait(lambda: all(step >= KILLED_AT for rank, step in enumerate(told.all("saved")) if rank != one.victim), "the others save")
        if one.who == "all":
            for agent in self.agents:
                agent.kill()
        flash_job.end([pid for pid in self.pids if pid])
        for agent, node in zip(self.agents, range(one.nodes)):
            if one.who == "all" or node == one.node and one.who in ("agent", "node"):
                agent.wait()
        return last

    def last(self):
        return KILLED_AT + 2 if self.one.point else KILLED_AT + 40

    def allowed(self, disk):
        """The steps that the job may go on from, and where they may be."""
        one, told = self.one, self.told
        saved, begun = min(told.all("saved")), min(told.all("begun"))
        if one.who == "all" or one.who == "node" and one.nodes == 1:
            newest = KILLED_AT if one.persist else PERSISTED
            assert disk in (PERSISTED, newest), f"storage has step {disk}"
            return (disk, disk), ("storage",)
        if one.who == "node":
            return (max(KILLED_AT - 1, *told.all("protected")), begun), ("memory", "partner")
        if not one.point:
            return (saved, begun), ("memory",)
        if one.point == "snapshot:returned":
            return (KILLED_AT - 1, KILLED_AT), ("memory",)
        exact = KILLED_AT + 2 if one.who == "agent" else KILLED_AT if one.has else KILLED_AT - 1
        return (exact, exact), ("memory",)

    def go_on(self, allowed, levels):
        self.killed = False
        self.start(None, None)
        self.wait(lambda: all(self.told.all("done")), "the job goes on")
        loaded, told = self.told.all("loaded"), [flash_job.LEVELS[level] for level in self.told.all("level")]
        assert len(set(loaded)) == 1, f"the ranks go on from different steps: {loaded} of {told}"
        assert allowed[0] <= loaded[0] <= allowed[1] and set(told) <= set(levels), f"goes on with step {loaded} of {told}, not {allowed} of {levels}"
        newest = pathlib.Path(self.base) / "c" / f"iter_{loaded[0] + 2:07}"
        self.sound(newest)
        # What the killed ones left goes with it, and its own drafts.
        wait_until(lambda: not list(newest.parent.glob(".ckpt-*")), f"nothing is left beside checkpoints: {os.listdir(newest.parent)}", 10)

    def sound(self, folder):
        done = subprocess.run([CKPT, "verify", str(folder)], capture_output=True, text=True, env=os.environ | {"LD_PRELOAD": ""})
        assert done.returncode == 0, done.stderr
        assert os.path.exists(f"{folder}/metadata.json") == (self.one.format == "torch_dist"), os.listdir(folder)

    def do(self):
        for node in range(self.one.nodes):
            self.agent(node)
        self.start(self.last(), KILLED_AT)
        self.kill()
        disk = self.on_disk()
        allowed = self.allowed(disk)
        self.sound(f"{self.base}/c/iter_{disk:07}")
        self.go_on(*allowed)

    def end(self):
        flash_job.end([pid for pid in self.pids if pid])
        for agent in self.agents:
            agent.kill()
            agent.wait()
        for pid in filter(str.isdigit, os.listdir("/proc")):  # agents that trainers have started
            try:
                if self.base.encode() in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(int(pid), signal.SIGKILL)
            except OSError:
                pass
        shutil.rmtree(self.base, ignore_errors=True)


def rounds_of(chance):
    """A short run has each point once, a long one CKPT_FLASH_ROUNDS of all combinations."""
    if LONG:
        every = [one for nodes, local in ((1, 2), (1, 3), (2, 1), (2, 2)) for one in all_rounds(nodes, local)]
        out = []
        while len(out) < int(os.environ.get("CKPT_FLASH_ROUNDS", 300)):
            out += chance.sample(every, len(every))
        return out[:int(os.environ.get("CKPT_FLASH_ROUNDS", 300))]
    by_point = {}
    for nodes, local in ((1, 2), (2, 1)):
        for one in all_rounds(nodes, local):
            if nodes == 1 or one.what == "partner copy" or one.persist:
                by_point.setdefault((nodes, one.of_agent, one.point), []).append(one)
    return [some[number % len(some)] for number, some in enumerate(by_point.values())]


def main():
    seed = int(os.environ.get("CKPT_FLASH_SEED", random.randrange(10**6)))
    random.seed(seed)
    slots, counts = Slots(), {}
    for number, one in enumerate(rounds_of(random)):
        if ONLY and ONLY not in str(one):
            continue
        slots.clear()
        run, began = Run(one, slots), time.monotonic()
        try:
            run.do()
        except AssertionError as error:
            for log in [*pathlib.Path(run.base).glob("*.log"), *pathlib.Path(run.base).glob("c/*.log")]:
                print(f"--- {log.name}\n{log.read_text()[-3000:]}")
            print(f"begun {run.told.all('begun')}, saved {run.told.all('saved')}, protected {run.told.all('protected')}")
            raise AssertionError(f"round {number} of seed {seed}: {one}: {error}") from error
        finally:
            run.end()
        if "--verbose" in sys.argv:
            print(f"{number}: {one}: {time.monotonic() - began:.2f} s", flush=True)
        counts[one.who] = counts.get(one.who, 0) + 1
    print(f"{sum(counts.values())} kills held (seed {seed}): {counts}")


try:
    main()
finally:
    os.unlink(os.environ["KILL_POINTS"])
