#!/usr/bin/env python3
"""Flash checkpoints without torch: trainers with numpy arrays save to an agent, which persists; strangers knock at its socket.

    flash.py CKPT_BINARY [TEST...]
"""
import ctypes
import fcntl
import json
import mmap
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest
import warnings

import numpy

CKPT = os.path.abspath(sys.argv.pop(1))
SOURCE = pathlib.Path(__file__).resolve().parents[2]
os.environ["CKPT_BIN"] = CKPT
os.environ.setdefault("CKPT_FLASH_LIBRARY", os.path.join(os.path.dirname(CKPT), "libckpt-flash.so"))
if not os.path.exists(os.environ["CKPT_FLASH_LIBRARY"]):
    print("skipped: flash: libckpt-flash.so is not built here")
    sys.exit(77)
sys.path.insert(0, str(SOURCE / "plugins" / "torch"))
from ckpt_flash import Busy, Engine, FlashError  # noqa: E402
from ckpt_flash._library import Library, LoadedInfo, objects_of, tensors_of  # noqa: E402
from ckpt_flash.state import Leaf, dump, restore  # noqa: E402

HEADER = struct.Struct("<IHHQIIIIQQII")  # man/ckpt-agent.7
REPLY = struct.Struct("<IHHQiIQ4Q")
MAGIC, HELLO, DECLARE, ADOPT, BEGIN, COMMIT, LOAD, PERSIST, STATUS = 0x4C464B43, 1, 2, 3, 4, 5, 7, 9, 10


def state_of(step, size=50_000):
    random = numpy.random.default_rng(step)
    return {"model": {"w": random.standard_normal((size // 10, 10)).astype("f4"), "half": random.standard_normal(7).astype("f2"),
                      "empty": numpy.zeros((0, 3), "f4"), "scalar": numpy.array(step, "i8"), "mask": numpy.array([True, False])},
            "optimizer": {"state": {0: {"m": random.standard_normal(100)}, 1: {"m": random.standard_normal(3)}},
                          "param_groups": [{"lr": 0.1, "params": [0, 1]}]},
            "list": [numpy.arange(5), {"inner": numpy.arange(3), "text": "x"}], "step": step, "none": None}


def same(a, b):
    if isinstance(a, numpy.ndarray):
        return isinstance(b, numpy.ndarray) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    return a == b


def wait_until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.005)


class Agent:
    """An agent started by hand."""

    def __init__(self, folder, *options, before=()):
        self.folder = str(folder)
        self.err = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([*before, CKPT, "agent", self.folder, *options], stderr=self.err, stdin=subprocess.DEVNULL)
        wait_until(lambda: "serves" in self.text() or self.process.poll() is not None)

    def text(self):
        self.err.seek(0)
        return self.err.read()

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        return self.process.wait(60)


class Flash(unittest.TestCase):
    def setUp(self):
        self.base = pathlib.Path(tempfile.mkdtemp(prefix="ckpt-flash-"))
        self.agents, self.engines = [], []

    def tearDown(self):
        for engine in self.engines:
            engine.close()
        for agent in self.agents:
            if agent.process.poll() is None:
                agent.stop(signal.SIGKILL)
            agent.err.close()
        shutil.rmtree(self.base)

    def agent(self, *options, **how):
        self.agents.append(Agent(self.base / "c", *options, **how))
        return self.agents[-1]

    def engine(self, **options):
        options.setdefault("start_agent", False)
        self.engines.append(Engine(self.base / "c", **options))
        return self.engines[-1]

    def ckpt(self, *arguments, code=0):
        done = subprocess.run([CKPT, *map(str, arguments)], capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def steps_on_disk(self):
        return sorted(int(path.name[5:]) for path in (self.base / "c").glob("iter_*"))

    def persisted(self, format_name):
        agent = self.agent("--to", format_name)
        self.engine(format=format_name).save(3, state_of(3))
        told = json.loads(self.ckpt("persist", self.base / "c", "--json").stdout)
        self.assertEqual((told["step"], told["durable"], told["path"]), (3, True, str(self.base / "c" / "iter_0000003")))
        self.assertEqual(agent.stop(), 0)
        self.assertIn("is sound", self.ckpt("verify", self.base / "c").stderr)
        self.assertEqual((self.base / "c" / "LATEST").read_text(), "iter_0000003\n")
        self.assertEqual((self.base / "c" / "latest_checkpointed_iteration.txt").read_text(), "3")
        self.agent()
        loaded = self.engine().load()
        self.assertEqual((loaded.step, loaded.level), (3, "storage"))
        self.assertTrue(same(loaded, state_of(3)))

    def test_every_format_is_sound_and_loads_again(self):
        for name in ("dcp", "torch", "safetensors", "torch_dist"):
            with self.subTest(name):
                self.tearDown()
                self.setUp()
                self.persisted(name)

    def test_a_new_trainer_has_the_last_step_from_memory(self):
        self.agent()
        first = self.engine()
        self.assertIsNone(first.load())
        for step in (1, 2, 3):
            self.assertTrue(first.save(step, state_of(step)))
        with self.assertRaisesRegex(Busy, "rank 0 is process"):
            Engine(self.base / "c", start_agent=False, connect_timeout=0).close()
        first.close()
        loaded = self.engine().load()
        self.assertEqual((loaded.step, loaded.level), (3, "memory"))
        self.assertTrue(same(loaded, state_of(3)))

    def test_what_was_loaded_may_be_changed_and_stays_through_later_saves(self):
        self.agent()
        engine = self.engine()
        engine.save(1, state_of(1))
        one = engine.load()
        one["model"]["w"][0] = 7
        again = engine.load()
        self.assertTrue(same(again, state_of(1)))
        for step in range(2, 7):
            self.assertTrue(engine.save(step, state_of(step)))
        self.assertTrue(same(again, state_of(1)))
        self.assertEqual(one["model"]["w"][0, 0], 7)
        self.assertTrue(same(engine.load(), state_of(6)))

    def test_of_two_loads_the_one_that_is_left_stays_through_later_saves(self):
        for first, second in (("memory", "memory"), ("storage", "memory"), ("storage", "path"), ("memory", "path")):
            with self.subTest(first=first, second=second):
                self.tearDown()
                self.setUp()
                self.agent()
                engine = self.engine(if_busy="wait")
                for step in (1, 2):
                    engine.save(step, {"w": numpy.full(50_000, float(step))}, persist=True)
                    engine.persist()
                path = str(self.base / "c" / "iter_0000001")
                first = engine.load(level=first)
                second = engine.load(path=path) if second == "path" else engine.load(level=second)
                self.assertEqual((first.step, second.step), (2, 1 if second.level == "storage" else 2))
                del first
                for step in range(11, 16):
                    self.assertTrue(engine.save(step, {"w": numpy.full(50_000, float(step))}))
                self.assertEqual(set(second["w"]), {float(second.step)})
                self.assertEqual(engine.load()["w"][0], 15.0)

    def test_what_was_loaded_stays_when_a_new_agent_takes_over_the_memory(self):
        agent = self.agent()
        engine = self.engine()
        engine.save(1, {"w": numpy.full(50_000, 1.0)})
        loaded = engine.load()
        agent.stop(signal.SIGKILL)
        self.agent()
        for step in range(2, 6):
            self.assertTrue(engine.save(step, {"w": numpy.full(50_000, float(step))}))
        self.assertEqual(set(loaded["w"]), {1.0})

    def test_ranks_agree_that_one_of_them_has_no_agent(self):
        engine = self.agent() and self.engine(world=2, local_world=1)
        told = []
        engine._gather = lambda value: told.append(value) or [value, (set(), "")]
        engine.status = lambda: (_ for _ in ()).throw(FlashError(4, "the agent is gone"))
        with self.assertRaisesRegex(FlashError, "the agent is gone"):
            engine.load()
        self.assertEqual(told, [(None, "the agent is gone")])
        del engine.status
        engine._gather = lambda value: [value, (None, "the agent is gone")]
        with self.assertRaisesRegex(FlashError, "rank 1: the agent is gone"):
            engine.load()

    def test_two_ranks_a_step_counts_when_both_have_it(self):
        self.agent()
        ranks = [self.engine(rank=rank, world=2) for rank in (0, 1)]
        for step in (1, 2):
            for rank, engine in enumerate(ranks):
                engine.save(step, {"own": {str(rank): numpy.full(9, step * 10 + rank)}, "same": numpy.full(4, step)})
        ranks[0].save(3, {"own": {"0": numpy.full(9, 30)}, "same": numpy.full(4, 3)})
        self.assertEqual(ranks[0].status()["newest_step"], 2)
        refused = self.ckpt("persist", self.base / "c", "--step", 3, code=4).stderr
        self.assertIn("rank 1 has 1 and 2", refused)
        for rank, engine in enumerate(ranks):
            self.assertTrue(same(engine.load()["own"][str(rank)], numpy.full(9, 20 + rank)))
        self.ckpt("persist", self.base / "c")
        self.assertIn("own.1", self.ckpt("inspect", self.base / "c").stdout)

    def test_a_tensor_that_two_ranks_have_with_other_bytes_is_told(self):
        agent = self.agent()
        for rank in (0, 1):
            self.engine(rank=rank, world=2).save(1, {"rng": numpy.full(4, rank), "both": numpy.full(4, 7)})
        self.ckpt("persist", self.base / "c")
        self.assertIn("rng is written as rank 0 has it: rank 1 has other bytes", agent.text())
        self.assertNotIn("both is written", agent.text())

    def test_an_older_step_neither_moves_latest_back_nor_takes_a_newer_one_away(self):
        self.agent("--keep-last", "1")
        engine = self.engine()
        engine.save(6, state_of(6, 100))
        engine.save(7, state_of(7, 100))
        self.ckpt("persist", self.base / "c")
        self.ckpt("persist", self.base / "c", "--step", 6)
        self.assertEqual(self.steps_on_disk(), [6, 7])
        self.assertEqual((self.base / "c" / "LATEST").read_text(), "iter_0000007\n")

    def test_fewer_ranks_after_a_restart_while_it_still_writes(self):
        agent = self.agent("--rate", "2M")
        ranks = [self.engine(rank=rank, world=2) for rank in (0, 1)]
        for rank, engine in enumerate(ranks):
            engine.save(1, {"own": {str(rank): numpy.zeros(400_000)}})
        ranks[0].persist(wait=False)
        for engine in ranks:
            engine.close()
        alone = self.engine()
        alone.save(2, state_of(2, 100))
        wait_until(lambda: "step 1 is in" in agent.text())
        self.assertEqual(alone.status()["newest_step"], 2)
        self.assertEqual(agent.stop(), 0)
        self.assertEqual(self.steps_on_disk(), [1, 2])

    def test_what_a_killed_agent_staged_goes_with_the_next_persist(self):
        agent = self.agent("--rate", "1M")
        engine = self.engine()
        engine.save(1, {"w": numpy.zeros(500_000)})
        engine.persist(wait=False)
        wait_until(lambda: list((self.base / "c").glob(".ckpt-staging-*")))
        agent.stop(signal.SIGKILL)
        engine.close()
        self.agent()
        self.engine().save(2, state_of(2, 100))
        self.ckpt("persist", self.base / "c")
        self.assertEqual(list((self.base / "c").glob(".ckpt-staging-*")), [])

    def test_ranks_that_contradict_each_other_are_refused_by_key(self):
        agent = self.agent()
        for rank in (0, 1):
            self.engine(rank=rank, world=2).save(1, {"w": numpy.zeros(5 + rank)})
        self.assertIn("w: rank 1 has it with another", self.ckpt("persist", self.base / "c", code=1).stderr)
        self.assertEqual(self.steps_on_disk(), [])
        self.assertEqual(agent.stop(), 7)

    def test_partner_copies_are_kept_for_their_rank_and_nobody_waits_for_them(self):
        agent = self.agent("--agree", "1")
        # Before the node's own rank, as where the agent before this one was killed while a copy came.
        copy = Library(str(self.base / "c"), None, 1, 2, 1, 1, True)
        copy.check(copy.opened)
        own = self.engine(rank=0, world=2, local_world=1)
        with self.knock() as peer:  # of another job
            self.assertEqual(self.ask(peer, HELLO, rank=2, world=3, flags=1)[0], 2)
        data = numpy.arange(10.0)
        copy.declare(tensors_of([("w", "float64", [10], None, None, [(0, "w")])]), 1, 1 << 20)
        pointers = (ctypes.c_void_p * 1)(data.ctypes.data)
        for step in (1, 2):
            own.save(step, {"w": numpy.full(5, step)})
            copy.save(step, pointers, objects_of([]), 0, 1, 1000, 0, None)
        status = own.status()
        self.assertEqual((status["newest_step"], status["ranks"][0]["steps"], status["partner_copies"][0]["steps"]), (2, [1, 2], [1, 2]))
        looked = ctypes.POINTER(LoadedInfo)()
        own._library.look(1, 2, ctypes.byref(looked))
        self.assertEqual((looked.contents.level, ctypes.string_at(looked.contents.data[0], 80)), (2, data.tobytes()))
        own._library.unload(looked)
        with self.assertRaisesRegex(FlashError, "1 of 2 ranks' agents have joined in time"):
            own.persist()
        with self.assertRaises(Busy):  # its memory is being written to
            Engine(self.base / "c", rank=1, world=2, local_world=1, start_agent=False, connect_timeout=0.1)
        copy.close()
        own.close()
        self.assertNotIn("is gone", agent.text())
        moved = self.engine(rank=1, world=2, local_world=1)  # the launcher has numbered the nodes anew
        loaded = moved.load(level="memory")
        self.assertTrue(same(dict(loaded), {"w": data}))
        self.assertEqual([(one["rank"], one["steps"]) for one in moved.status()["partner_copies"]], [(0, [1, 2])])

    def test_one_buffer_and_partner_copies_are_told_of_once(self):
        agent = self.agent("--buffers", "1")
        own = self.engine(rank=0, world=2, local_world=1)
        own.save(1, {"w": numpy.zeros(5)})
        self.assertNotIn("partner copies", agent.text())
        copy = Library(own.checkpoint_dir, None, 1, 2, 1, 1, True)
        copy.check(copy.opened)
        for elements in (10, 20):
            copy.declare(tensors_of([("w", "float64", [elements], None, None, [(0, "w")])]), 1, 1 << 20)
        copy.close()
        self.assertEqual(agent.text().count("partner copies have one buffer, too: while a save is under way, no step is protected"), 1)
        own._partner = types.SimpleNamespace(settle=lambda: None, protected_step=None, close=lambda: None)
        with self.assertWarnsRegex(UserWarning, "memory allows one buffer a rank"):
            own.prepare({"w": numpy.zeros(6)})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            own.prepare({"w": numpy.zeros(7)})

    # --- several nodes: their agents share the folder of checkpoints alone ---

    def node(self, name, *options):
        self.agents.append(Agent(self.base / "c", "--socket", str(self.base / name), *options))
        return self.agents[-1]

    def two_nodes(self, *options):
        """Agents of two ranks each, and their engines."""
        return [self.node("a", *options), self.node("b", *options)], self.engines_of_two()

    def engines_of_two(self):
        return [self.engine(rank=rank, world=4, local_world=2, socket=str(self.base / "ab"[rank // 2]), if_busy="wait") for rank in range(4)]

    def shards(self, rank, step):
        """A tensor that is cut over the ranks, one that all have, one of its own, and objects."""
        rows = numpy.arange(step, step + 70.0).reshape(10, 7)
        begin, end = (0, 3, 4, 4, 10)[rank], (0, 3, 4, 4, 10)[rank + 1]  # rank 2's part is empty
        leaves = []
        for path, value, whole, offset in (
                (("model", "cut"), rows[begin:end], (10, 7), (begin, 0)), (("model", "all"), numpy.full(5, step), (5,), (0,)),
                ((f"own{rank}",), numpy.array(rank + step), (), ())):
            leaf = Leaf()
            leaf.path, leaf.key, leaf.value = tuple((0, name) for name in path), ".".join(path), value
            leaf.dtype, leaf.shape, leaf.global_shape, leaf.global_offset = str(value.dtype), value.shape, whole, offset
            leaves.append(leaf)
        return leaves, [(((0, "step"),), "step", 0, dump(step)), (((0, f"name{rank}"),), f"name{rank}", 0, dump(f"rank {rank}"))]

    def check_whole(self, step):
        folder = self.base / "c" / f"iter_{step:07}"
        self.assertIn("is sound", self.ckpt("verify", folder).stderr)
        tensors = {one["key"]: one for one in json.loads(self.ckpt("inspect", folder, "--json").stdout)["tensors"]}
        self.assertEqual(sorted(tensors), ["model.all", "model.cut", "own0", "own1", "own2", "own3"])
        cut = subprocess.run([CKPT, "cat", folder, "model.cut"], capture_output=True, check=True).stdout
        self.assertEqual(cut, numpy.arange(step, step + 70.0).tobytes())
        self.assertEqual(list((self.base / "c").glob(".ckpt-*")), [])

    def test_agents_of_two_nodes_write_one_checkpoint(self):
        agents, engines = self.two_nodes()
        for step in (1, 2):
            for rank, engine in enumerate(engines):
                engine.save_parts(step, *self.shards(rank, step), persist=step == 2)
        wait_until(lambda: all(engine.status()["persisted_step"] == 2 for engine in engines))
        self.assertEqual(self.steps_on_disk(), [2])
        self.check_whole(2)
        self.assertEqual((self.base / "c" / "LATEST").read_text(), "iter_0000002\n")
        engines[0].persist(1)
        self.assertEqual(self.steps_on_disk(), [1, 2])
        self.assertEqual((self.base / "c" / "LATEST").read_text(), "iter_0000002\n")
        for rank, engine in enumerate(engines):  # each rank gets back what it had, from storage too
            loaded = engine.load(level="storage")
            leaves, _ = self.shards(rank, 2)
            self.assertTrue(same(loaded["model"]["cut"], leaves[0].value))
            self.assertEqual((loaded[f"own{rank}"], loaded["step"], loaded[f"name{rank}"]), (rank + 2, 2, f"rank {rank}"))
        with self.assertRaisesRegex(FlashError, "made by the agent of rank 0"):
            engines[3].persist()
        for engine in engines:
            engine.save_parts(3, *self.shards(engine.rank, 3))
        ends = [agent.process.send_signal(signal.SIGTERM) or agent for agent in agents]
        self.assertEqual([agent.process.wait(60) for agent in ends], [0, 0], agents[0].text() + agents[1].text())
        self.check_whole(3)

    def save_for_megatron(self, engines, step):
        for rank, engine in enumerate(engines):
            engine.save_parts(step, self.shards(rank, step)[0], [((), f"rng/shard_0.{rank}_1.4", 0, dump(rank)), ((), "common", 1, dump({"lr": rank}))])

    def test_agents_of_two_nodes_write_torch_dist_together(self):
        _, engines = self.two_nodes("--to", "torch_dist")
        self.save_for_megatron(engines, 1)
        engines[0].persist()
        self.check_whole(1)
        folder = self.base / "c" / "iter_0000001"
        told = json.loads(self.ckpt("inspect", folder, "--json").stdout)
        self.assertEqual((told["format"], [one["key"] for one in told["objects"]]), ("torch_dist", [f"rng/shard_0.{rank}_1.4" for rank in range(4)]))
        self.assertEqual(restore((folder / "common.pt").read_bytes(), False), {"lr": 0})
        self.assertEqual(json.loads((folder / "metadata.json").read_text())["sharded_backend"], "torch_dist")
        self.assertEqual({path.name.split("_")[2] for path in folder.glob("*.distcp")}, {"0", "2"})

    def of_two_formats(self, other, why):
        self.node("a", "--to", "torch_dist")
        self.node("b", "--to", other)
        engines = self.engines_of_two()
        self.save_for_megatron(engines, 1)
        with self.assertRaisesRegex(FlashError, why):
            engines[0].persist()
        self.assertEqual((self.steps_on_disk(), list((self.base / "c").glob(".ckpt-*"))), ([], []))

    def test_agents_of_two_formats_that_could_be_written_together_write_nothing(self):
        self.of_two_formats("dcp", "is dcp, and the whole torch_dist")

    def test_an_agent_of_a_format_of_one_node_declines(self):
        self.of_two_formats("torch", "the agent of rank 2: says: torch: is not written by several nodes")

    def test_a_job_begun_anew_is_not_mixed_with_the_one_before(self):
        agents = [self.node("a", "--no-persist-on-death"), self.node("b", "--no-persist-on-death")]

        def engines():
            return [self.engine(rank=rank, world=2, local_world=1, socket=str(self.base / "ab"[rank]), if_busy="wait") for rank in (0, 1)]

        for engine in engines():
            for step in (4, 5):
                engine.save(step, {"w": numpy.full(3, 100.0 + step)})
            engine.close()
        agents[1].stop(signal.SIGKILL)  # the node is replaced
        agents.append(self.node("b", "--no-persist-on-death"))
        anew = engines()
        for step in range(1, 6):
            for engine in anew:
                engine.save(step, {"w": numpy.full(3, float(step))}, persist=step in (3, 5))
            if step in (3, 5):
                wait_until(lambda: anew[0].status()["persisted_step"] == step)
        self.assertEqual(self.steps_on_disk(), [3, 5])
        cut = subprocess.run([CKPT, "cat", self.base / "c" / "iter_0000005", "w"], capture_output=True, check=True).stdout
        self.assertEqual(cut, numpy.full(3, 5.0).tobytes())

    def test_a_step_saved_twice_is_the_second_one_and_a_kept_one_stays_when_the_layout_changes(self):
        self.agent()
        engine = self.engine()
        for value in (1.0, 2.0):
            self.assertTrue(engine.save(5, {"w": numpy.full(3, value)}))
        self.assertEqual(engine.load()["w"][0], 2.0)
        engine._library.keep(5)
        for step in (6, 7):
            engine.save(step, {"w": numpy.full(4, float(step))})
        self.assertEqual(engine.status()["ranks"][0]["steps"], [5, 6, 7])
        engine._library.keep(7)
        self.assertEqual(engine.status()["ranks"][0]["steps"], [6, 7])

    def test_a_node_that_saves_a_step_later_takes_part_in_its_checkpoint(self):
        _, engines = self.two_nodes()
        for rank in (0, 1):
            engines[rank].save_parts(1, *self.shards(rank, 1), persist=True)
        wait_until(lambda: list((self.base / "c").glob(".ckpt-joint-*/ranks-0")))
        time.sleep(1.1)  # the other agent looks each second
        for rank in (2, 3):
            engines[rank].save_parts(1, *self.shards(rank, 1))
        wait_until(lambda: engines[0].status()["persisted_step"] == 1)
        self.check_whole(1)

    def test_an_attempt_that_was_over_and_whose_folder_came_back_is_none(self):
        agents, engines = self.two_nodes()
        for rank in (0, 1):
            engines[rank].save_parts(1, *self.shards(rank, 1), persist=True)
        wait_until(lambda: list((self.base / "c").glob(".ckpt-joint-*/ranks-0")))
        (self.base / "c" / ".ckpt-joint-iter_0000001-0123456789abcdef" / "part-2").mkdir(0o700, parents=True)
        for rank in (2, 3):
            engines[rank].save_parts(1, *self.shards(rank, 1))
        wait_until(lambda: engines[0].status()["persisted_step"] == 1)
        for rank, engine in enumerate(engines):
            engine.save_parts(2, *self.shards(rank, 2), persist=True)
        wait_until(lambda: all(engine.status()["persisted_step"] == 2 for engine in engines))
        self.check_whole(2)  # and nothing is left

    def test_nodes_that_do_not_agree_write_nothing(self):
        agents, engines = self.two_nodes("--grace", "1", "--agree", "6")
        for rank in (0, 1):
            engines[rank].save_parts(5, *self.shards(rank, 5))
        for rank in (2, 3):
            engines[rank].save_parts(4, *self.shards(rank, 4))
        with self.assertRaisesRegex(FlashError, "the agent of rank 2: says: step 5 is not complete on every rank"):
            engines[0].persist()
        for rank in (2, 3):
            leaves, objects = self.shards(rank, 5)
            leaves[1].global_shape = leaves[1].shape = (6,)
            leaves[1].value = numpy.zeros(6)
            engines[rank].save_parts(5, leaves, objects)
        with self.assertRaisesRegex(FlashError, "model.all: rank 2 has it with another dtype or global shape"):
            engines[0].persist()
        self.assertEqual((self.steps_on_disk(), list((self.base / "c").glob(".ckpt-joint-*"))), ([], []))
        self.assertEqual([agent.stop() for agent in agents], [7, 7])

    def test_what_a_killed_leader_left_is_not_taken_for_the_next_attempt(self):
        agents, engines = self.two_nodes("--rate", "200K", "--grace", "30")
        for rank, engine in enumerate(engines):
            leaves, objects = self.shards(rank, 1)
            leaves[2].value = numpy.full(30_000, float(rank))
            leaves[2].dtype, leaves[2].shape, leaves[2].global_shape, leaves[2].global_offset = "float64", (30_000,), (30_000,), (0,)
            engine.save_parts(1, leaves, objects)
        engines[0].persist(wait=False)
        wait_until(lambda: list((self.base / "c").glob(".ckpt-joint-*/.ckpt-staging-*")))
        agents[0].stop(signal.SIGKILL)
        agents.append(self.node("a"))
        for rank in (0, 1):
            engines[rank].save_parts(1, *self.shards(rank, 1))  # the same step, anew
        for rank in (2, 3):
            engines[rank].save_parts(1, *self.shards(rank, 1))
        engines[0].persist()
        self.check_whole(1)

    def write_long(self, engines, slow):
        """A checkpoint is begun of which these ranks' node writes its part for seconds."""
        for rank, engine in enumerate(engines):
            leaves, objects = self.shards(rank, 1)
            if rank == slow:
                leaves[2].value = numpy.full(200_000, 1.0)
                leaves[2].dtype, leaves[2].shape, leaves[2].global_shape, leaves[2].global_offset = "float64", (200_000,), (200_000,), (0,)
            engine.save_parts(1, leaves, objects)
        engines[0].persist(wait=False)
        wait_until(lambda: list((self.base / "c").glob(f".ckpt-joint-*/.ckpt-staging-part-{slow}-*/*")))

    def test_a_node_lost_while_it_writes_is_not_waited_for(self):
        agents, engines = self.two_nodes("--rate", "200K", "--lost-after", "2")
        self.write_long(engines, 2)
        agents[1].stop(signal.SIGKILL)
        wait_until(lambda: "was not persisted" in agents[0].text(), 15)
        self.assertIn("the agent of rank 2 is lost: nothing was heard of it for 2", agents[0].text())
        self.assertEqual((self.steps_on_disk(), list((self.base / "c").glob(".ckpt-*"))), ([], []))

    def test_a_leader_lost_while_it_writes_is_not_waited_for(self):
        agents, engines = self.two_nodes("--rate", "200K", "--lost-after", "2")
        self.write_long(engines, 0)
        wait_until(lambda: list((self.base / "c").glob(".ckpt-joint-*/written-2")))
        agents[0].stop(signal.SIGKILL)
        wait_until(lambda: "was not persisted" in agents[1].text(), 15)
        self.assertIn("the agent of rank 0 is lost: nothing was heard of it for 2", agents[1].text())
        self.assertEqual(engines[2].status()["persisting_step"], None)

    def test_a_leader_lost_after_its_own_part_is_not_waited_for(self):
        agents, engines = self.two_nodes("--rate", "200K", "--lost-after", "2")
        self.write_long(engines, 2)
        wait_until(lambda: list((self.base / "c").glob(".ckpt-joint-*/written-0")))
        agents[0].stop(signal.SIGKILL)
        wait_until(lambda: "was not persisted" in agents[1].text(), 15)
        self.assertIn("the agent of rank 0 is lost: nothing was heard of it for 2", agents[1].text())
        self.assertEqual(engines[2].status()["persisting_step"], None)

    def test_no_save_waits_for_nodes_that_do_not_join_what_nobody_asked_for(self):
        self.node("a")
        script = ("import os, sys, numpy\nfrom ckpt_flash import Engine\n"
                  "e = Engine(sys.argv[1], rank=0, world=2, local_world=1, socket=sys.argv[2], start_agent=False)\n"
                  "e.save(1, {'w': numpy.zeros(9)})\nos._exit(1)")
        environment = dict(os.environ, PYTHONPATH=str(SOURCE / "plugins" / "torch"))
        subprocess.run([sys.executable, "-c", script, self.base / "c", self.base / "a"], env=environment, check=False)
        engine = self.engine(rank=0, world=2, local_world=1, socket=str(self.base / "a"), if_busy="wait", timeout=5)
        wait_until(lambda: engine.status()["persisting_step"] == 1)
        for step in (2, 3, 4):
            self.assertTrue(engine.save(step, {"w": numpy.full(9, float(step))}))
        self.assertEqual(engine.status()["persisting_step"], 1)  # still without the other node

    def test_ranks_that_find_different_steps_in_storage_load_the_same(self):
        for removed in (False, True):
            with self.subTest(removed=removed):
                self.tearDown()
                self.setUp()
                agents = [self.node("a"), self.node("b")]
                engines = [self.engine(rank=rank, world=2, local_world=1, socket=str(self.base / "ab"[rank]), if_busy="wait") for rank in (0, 1)]
                for step in (1, 2):
                    for engine in engines:
                        engine.save(step, {"w": numpy.full(3, float(step))}, persist=True)
                    wait_until(lambda: [engine.status()["persisted_step"] for engine in engines] == [step, step])
                for engine in engines:
                    engine.close()
                for agent in agents:
                    agent.stop(signal.SIGKILL)
                for name in "ab":
                    self.node(name)
                latest = self.base / "c" / "LATEST"
                latest.write_text("iter_0000001\n")
                meet, said, first_has_loaded = threading.Barrier(2), [[], []], threading.Event()

                def gather(rank, value):
                    """Stands in for torch.distributed. Between the first rank's load and the second's a checkpoint is written."""
                    if value == (1, "") and rank == 0 and not first_has_loaded.is_set():
                        latest.write_text("iter_0000002\n")
                        if removed:
                            shutil.rmtree(self.base / "c" / "iter_0000001")
                        first_has_loaded.set()
                    said[rank].append(value)
                    meet.wait(30)
                    out = [said[0][-1], said[1][-1]]
                    meet.wait(30)
                    return out

                def load(rank):
                    engine = self.engine(rank=rank, world=2, local_world=1, socket=str(self.base / "ab"[rank]))
                    engine._agreed_step = lambda: None
                    engine._gather = lambda value: gather(rank, value)
                    if rank == 1:
                        first_has_loaded.wait(30)
                    found[rank] = engine.load()

                found = [None, None]
                threads = [threading.Thread(target=load, args=(rank,)) for rank in (0, 1)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join(60)
                self.assertEqual([one and one.step for one in found], [2, 2] if removed else [1, 1], said)
                self.assertEqual({float(one["w"][0]) for one in found}, {2.0 if removed else 1.0})

    def test_a_layout_that_changes_is_taken_and_the_step_before_stays_until_then(self):
        self.agent()
        engine = self.engine()
        engine.save(1, state_of(1, 1000))
        engine.prepare(state_of(2, 2000))
        self.assertTrue(same(engine.load(), state_of(1, 1000)))
        engine.save(2, state_of(2, 2000))
        engine.save(3, dict(state_of(3, 2000), blob=b"x" * 3_000_000))  # objects that outgrow what was declared
        self.assertEqual(len(engine.load()["blob"]), 3_000_000)

    def test_busy_is_skipped_refused_or_waited_for(self):
        self.agent("--rate", "4M")
        engine = self.engine()
        big = {"w": numpy.zeros(1_500_000)}
        engine.save(1, big)
        engine.persist(wait=False)
        self.assertTrue(engine.save(2, big))
        skipped = engine.save(3, big)
        self.assertFalse(skipped)
        self.assertIn("step 1 is still being written", skipped.skipped)
        engine.if_busy = "fail"
        with self.assertRaises(Busy):
            engine.save(3, big)
        engine.if_busy = "wait"
        self.assertTrue(engine.save(3, big))
        status = engine.status()
        self.assertEqual((status["skipped"], status["refused"], status["waited"]), (1, 1, 1))

    def test_retention_counts_what_is_on_disk(self):
        self.agent("--keep-last", "2", "--every", "2")
        engine = self.engine()
        (self.base / "c" / "iter_0000001").mkdir()  # somebody else's
        for step in range(1, 9):
            engine.if_busy = "wait"
            engine.save(step, state_of(step, 100))
            if step % 2 == 0:
                engine.persist(step)
        self.assertEqual(self.steps_on_disk(), [1, 6, 8])

    def test_sigterm_saves_the_newest_step_and_says_whether_it_could(self):
        self.agents.append(Agent(str(self.base / "c") + "/"))
        agent = self.agents[-1]
        self.engine().save(5, state_of(5))
        self.assertEqual(agent.stop(), 0)
        self.assertEqual(self.steps_on_disk(), [5])
        agent = self.agent("--grace", "0")
        self.engine().save(6, state_of(6))
        self.assertEqual(agent.stop(), 7)
        self.assertEqual(self.steps_on_disk(), [5])
        self.assertIn("is sound", self.ckpt("verify", self.base / "c").stderr)

    def test_no_room_leaves_nothing_behind_and_memory_as_it_was(self):
        if os.geteuid() != 0:
            self.skipTest("a small disk takes root")
        (self.base / "c").mkdir()
        script = f'mount -t tmpfs -o size=64k none "{self.base}/c" && exec "$@"'
        agent = self.agent(before=["unshare", "-m", "sh", "-c", script, "sh"])
        engine = self.engine()
        engine.save(1, state_of(1))
        with self.assertRaises(FlashError) as caught:
            engine.persist()
        self.assertEqual(caught.exception.status, 9)
        self.assertEqual(os.listdir(f"/proc/{agent.process.pid}/root{self.base}/c"), [])
        self.assertTrue(same(engine.load(), state_of(1)))
        self.assertEqual(engine.status()["failures"], 1)
        self.assertEqual(agent.stop(), 7)

    def test_storage_that_was_damaged_is_refused(self):
        agent = self.agent("--to", "torch")
        self.engine().save(1, state_of(1))
        self.assertEqual(agent.stop(), 0)
        path = self.base / "c" / "iter_0000001" / "model.pt"
        data = bytearray(path.read_bytes())
        at = bytes(data).find(state_of(1)["model"]["w"].tobytes()[:64])
        data[at + 5] ^= 1
        path.write_bytes(data)
        self.agent()
        with self.assertRaisesRegex(FlashError, "model.w.*hash differs"):
            self.engine().load()

    def test_objects_from_storage_run_nothing_unless_they_are_trusted(self):
        agent = self.agent()
        self.engine().save(1, {"w": numpy.zeros(3), "object": pathlib.PurePosixPath("/x"), "set": {1, 2}})
        self.assertEqual(self.engines[-1].load()["object"], pathlib.PurePosixPath("/x"))
        self.assertEqual(agent.stop(), 0)
        self.agent()
        with self.assertRaisesRegex(FlashError, "trust=True.*pathlib"):
            self.engine().load()
        loaded = self.engines[-1].load(trust=True)
        self.assertEqual((loaded["object"], loaded["set"]), (pathlib.PurePosixPath("/x"), {1, 2}))

    def test_an_agent_is_found_by_its_folder_alone_and_there_is_one(self):
        self.agent()
        self.assertIn("has an agent already", self.ckpt("agent", self.base / "c", code=7).stderr)
        os.symlink(self.base / "c", self.base / "link")
        status = json.loads(self.ckpt("agent", self.base / "link", "--status").stdout)
        self.assertEqual(status["schema"], "ckpt.agent/1")
        self.assertIn("has no agent", self.ckpt("persist", self.base, code=4).stderr)

    def test_what_a_killed_agent_left_goes_when_another_begins(self):
        self.agent().stop(signal.SIGKILL)
        left = self.socket_path()
        self.assertTrue(os.path.exists(left + ".lock"))
        os.mkdir(self.base / "d")
        other = Agent(self.base / "d")
        self.agents.append(other)
        self.assertFalse(os.path.exists(left) or os.path.exists(left + ".lock"))
        its_own = self.socket_path("d")
        self.assertTrue(os.path.exists(its_own + ".lock"))
        self.assertEqual(other.stop(), 0)
        self.assertFalse(os.path.exists(its_own) or os.path.exists(its_own + ".lock"))

    def test_an_engine_starts_its_agent_which_ends_after_the_last_trainer(self):
        engine = self.engine(start_agent=True, linger=30)
        engine.save(1, state_of(1))
        agent = engine.status()["pid"]
        engine.close()
        wait_until(lambda: not os.path.exists(f"/proc/{agent}") or "Z" in pathlib.Path(f"/proc/{agent}/stat").read_text())
        self.assertEqual(self.steps_on_disk(), [1])

    # --- the end of trainers, and of agents ---

    def trainer(self, code, *arguments, **options):
        """Another process with `e`, an engine of rank 0 (`options`); whatever becomes of it."""
        script = ("import os, sys, numpy\nfrom ckpt_flash import Engine\n"
                  f"e = Engine(sys.argv[1], start_agent=False, **{options!r})\n" + code)
        environment = dict(os.environ, PYTHONPATH=str(SOURCE / "plugins" / "torch"), PYTHONDONTWRITEBYTECODE="1")
        return subprocess.run([sys.executable, "-c", script, self.base / "c", *map(str, arguments)], env=environment, check=False,
                              capture_output=True, text=True, timeout=60)

    def status(self):
        return json.loads(self.ckpt("agent", self.base / "c", "--status").stdout)

    def deaths(self):
        return self.status()["deaths"]

    def test_a_trainer_that_an_exception_ends_has_not_ended_in_order(self):
        self.agent("--linger", "60")
        save = "e.save(5, {'w': numpy.ones(9)})\n"
        for deaths, how in enumerate(("raise RuntimeError", "with e:\n    raise RuntimeError",
                                      "try:\n    raise RuntimeError\nfinally:\n    e.close()", "with e:\n    sys.exit(3)"), 1):
            self.trainer(save + how)
            wait_until(lambda: self.deaths() == deaths, 5)
        for how in ("e.close()", "with e:\n    sys.exit(0)"):
            done = self.trainer(save + how)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
        time.sleep(0.2)
        self.assertEqual(self.deaths(), deaths)

    def test_a_forked_child_that_ends_ends_nothing_of_its_parent(self):
        self.agent("--linger", "60")
        done = self.trainer("e.save(5, {'w': numpy.ones(9)})\nl = e.load()\nif os.fork() == 0:\n    del l\n    e.close()\n    sys.exit(0)\nos.wait()\n"
                            "for step in (6, 7, 8):\n    assert e.save(step, {'w': numpy.full(9, 2.0)})\n"
                            "assert l['w'][0] == 1.0\nos.kill(os.getpid(), 9)")
        self.assertEqual((done.returncode, done.stderr), (-9, ""))
        wait_until(lambda: self.deaths() == 1, 5)

    def test_what_was_loaded_outlives_its_engine(self):
        self.agent()
        for end in ("e.close()", "e.leave()", "del e"):
            done = self.trainer(f"e.save(5, {{'w': numpy.ones(500_000)}})\nl = e.load()\n{end}\n"
                                "e = Engine(sys.argv[1], start_agent=False, if_busy='wait')\n"
                                "for step in (6, 7, 8): assert e.save(step, {'w': numpy.full(500_000, 2.0)})\n"
                                "assert set(l['w']) == {1.0}\ndel l\ne.close()\nprint('ends')")
            self.assertEqual((done.returncode, done.stdout), (0, "ends\n"), end + done.stderr)
        with self.assertRaisesRegex(FlashError, "the engine is closed"):
            engine = self.engine()
            engine.close()
            engine.save(1, state_of(1))

    def test_a_save_that_returned_while_the_agent_ends_is_written(self):
        agent = self.agent("--rate", "4M")
        engine = self.engine()
        engine.save(1, {"w": numpy.zeros(4_000_000)})
        engine.persist(wait=False)
        wait_until(lambda: engine.status()["persisting_step"] == 1)
        ones = numpy.ones(4_000_000)
        agent.process.send_signal(signal.SIGTERM)
        self.assertTrue(engine.save(2, {"w": ones}))
        self.assertEqual(agent.process.wait(20), 0)
        self.assertEqual(self.steps_on_disk(), [1, 2])

    def test_where_all_ended_in_order_the_last_step_gets_its_time(self):
        agent = self.agent("--rate", "400K", "--grace", "1", "--linger", "1")
        engine = self.engine()
        engine.save(1, {"w": numpy.zeros(150_000)})
        engine.close()
        self.assertEqual(agent.process.wait(30), 0, agent.text())
        self.assertEqual(self.steps_on_disk(), [1])

    def test_a_step_of_a_rank_that_died_beside_it_stays(self):
        self.agent("--no-persist-on-death")
        first = self.engine(world=2)
        self.trainer("for step in (9, 10, 11): assert e.save(step, {'w': numpy.ones(9)})\nos.kill(os.getpid(), 9)", rank=1, world=2)
        wait_until(lambda: self.deaths() == 1)
        for step in (10, 11):
            saved = first.save(step, {"w": numpy.ones(9)})
            self.assertEqual(saved.newest_step, step)

    def test_nodes_one_save_apart_write_the_step_that_all_have(self):
        agents = [self.node(name, "--agree", "2", "--grace", "20") for name in "ab"]
        engines = [self.engine(rank=rank, world=2, local_world=1, socket=str(self.base / "ab"[rank])) for rank in (0, 1)]
        for step in (1, 2):
            for engine in engines:
                engine.save(step, {"w": numpy.full(9, float(step))})
        engines[0].save(3, {"w": numpy.full(9, 3.0)})
        for agent in agents:
            agent.process.send_signal(signal.SIGTERM)
        ends = [agent.process.wait(60) for agent in agents]
        self.assertEqual((self.steps_on_disk(), ends[1]), ([2], 0), agents[0].text() + agents[1].text())

    def test_a_storage_step_that_no_two_ranks_had_at_once_is_written_as_the_next(self):
        for options, persist in ((), True), (("--every", "100"), None):
            self.agent(*options)
            ranks = [self.engine(rank=rank, world=2) for rank in (0, 1)]
            for step in (98, 99):
                for engine in ranks:
                    engine.save(step, {"w": numpy.full(9, float(step))})
            for engine in ranks:  # the first writes over its step 100: the second one still has to have 99
                engine.save(100, {"w": numpy.full(9, 100.0)}, persist=persist)
                engine.save(101, {"w": numpy.full(9, 101.0)})
            wait_until(lambda: self.steps_on_disk() == [101], 10)
            self.tearDown()
            self.setUp()

    def test_a_storage_step_saved_over_while_nodes_still_put_one_together_is_followed_by_the_newest(self):
        agents = [self.node("a"), self.node("b", "--rate", "400K")]
        engines = [self.engine(rank=rank, world=2, local_world=1, socket=str(self.base / "ab"[rank]), if_busy="wait") for rank in (0, 1)]
        for engine in engines:
            engine.save(1, {f"w{engine.rank}": numpy.full(50_000, 1.0)}, persist=True)
        wait_until(lambda: list((self.base / "c").glob(".ckpt-joint-*/written-0")))  # the first node's memory is free
        for step in (2, 3, 4):
            engines[0].save(step, {"w0": numpy.full(50_000, float(step))}, persist=step == 2)
        self.assertEqual(engines[0].status()["persisting_step"], 1)
        for step in (2, 3, 4):
            engines[1].save(step, {"w1": numpy.full(50_000, float(step))}, persist=step == 2)
        wait_until(lambda: self.steps_on_disk() == [1, 4])
        self.assertNotIn("was not persisted", agents[0].text() + agents[1].text())
        self.assertIn("step 2 was saved over before it could be written: step 4 is written in its place", agents[0].text())

    def test_a_storage_step_stays_until_the_node_that_leads_has_it(self):
        self.node("a")
        self.node("b", "--agree", "4")
        engines = [self.engine(rank=rank, world=2, local_world=1, socket=str(self.base / "ab"[rank])) for rank in (0, 1)]
        engines[1].save(1, {"w": numpy.full(9, 1.0)}, persist=True)
        self.assertEqual([bool(engines[1].save(step, {"w": numpy.full(9, float(step))})) for step in (2, 3)], [True, False])
        engines[0].save(1, {"w": numpy.full(9, 1.0)}, persist=True)
        wait_until(lambda: self.steps_on_disk() == [1] and all(engine.status()["persisted_step"] == 1 for engine in engines))
        for engine in engines[::-1]:  # where that one never comes to want it nobody waits for long
            engine.if_busy = "wait"
            for step in (4, 5, 6) if engine.rank == 1 else ():
                self.assertTrue(engine.save(step, {"w": numpy.full(9, float(step))}, persist=step == 4))

    def test_a_storage_step_stays_while_the_one_before_is_put_together(self):
        self.node("a")
        self.node("b", "--agree", "20")
        engines = [self.engine(rank=rank, world=2, local_world=1, socket=str(self.base / "ab"[rank])) for rank in (0, 1)]
        for step in (1, 2):
            engines[1].save(step, {"w": numpy.full(9, float(step))}, persist=True)
        engines[0].save(1, {"w": numpy.full(9, 1.0)}, persist=True)
        wait_until(lambda: all(engine.status()["persisted_step"] == 1 for engine in engines))
        self.assertEqual([bool(engines[1].save(step, {"w": numpy.full(9, float(step))})) for step in (3, 4)], [True, False])
        engines[0].save(2, {"w": numpy.full(9, 2.0)}, persist=True)
        wait_until(lambda: self.steps_on_disk() == [1, 2])

    def test_no_save_waits_longer_for_a_leader_that_is_busy(self):
        self.node("a", "--rate", "50K")
        self.node("b", "--agree", "2")
        engines = [self.engine(rank=rank, world=2, local_world=1, socket=str(self.base / "ab"[rank])) for rank in (0, 1)]
        for engine in engines:
            engine.save(1, {f"w{engine.rank}": numpy.full(100_000 if engine.rank == 0 else 9, 1.0)}, persist=True)
        wait_until(lambda: list((self.base / "c").glob(".ckpt-joint-*/written-1")))
        self.assertEqual([bool(engines[1].save(step, {"w1": numpy.full(9, float(step))}, persist=step == 2)) for step in (2, 3, 4)],
                         [True, True, False])
        engines[1].if_busy = "wait"
        began = time.monotonic()
        self.assertTrue(engines[1].save(4, {"w1": numpy.full(9, 4.0)}))
        self.assertLess(time.monotonic() - began, 6)
        self.assertEqual(engines[1].status()["persisting_step"], 1)  # for seconds more

    # --- going back ---

    def test_a_job_that_went_back_moves_latest(self):
        agent = self.agent("--keep-last", "2")
        engine = self.engine(if_busy="wait")
        for step in (50, 90, 100):
            engine.save(step, {"w": numpy.full(9, float(step))})
            engine.persist()
        self.assertEqual(self.steps_on_disk(), [90, 100])
        loaded = engine.load(path=str(self.base / "c" / "iter_0000090"))
        self.assertEqual((loaded.step, loaded["w"][0]), (90, 90.0))
        self.assertEqual(engine.status()["newest_step"], 100)  # nothing was saved yet
        for step in range(91, 97):
            engine.save(step, {"w": numpy.full(9, -float(step))})
        self.assertEqual(engine.status()["newest_step"], 96)
        engine.persist()
        self.assertEqual((self.base / "c" / "LATEST").read_text(), "iter_0000096\n")
        self.assertEqual(self.steps_on_disk(), [90, 96])
        agent.stop(signal.SIGKILL)
        engine.close()
        self.agent()
        loaded = self.engine().load()
        self.assertEqual((loaded.step, loaded["w"][0]), (96, -96.0))

    def test_a_checkpoint_that_was_named_does_not_become_the_jobs_own(self):
        self.agents.append(Agent(self.base / "pre"))
        with Engine(self.base / "pre", start_agent=False) as other:
            other.save(1000, {"w": numpy.full(9, 7.0)})
            other.persist()
        agent = self.agent()
        path = str(self.base / "pre" / "iter_0001000")
        engine = self.engine()
        self.assertEqual(engine.load(path=path).step, 1000)
        self.assertIsNone(engine.load(level="memory"))
        for step in (11, 12):
            engine.save(step, {"w": numpy.full(9, float(step))})
        loaded = engine.load(path=path)
        self.assertEqual(engine.status()["ranks"][0]["steps"], [11, 12])
        engine.save(13, {"w": numpy.full(9, 13.0)})
        self.assertEqual((set(loaded["w"]), engine.load()["w"][0]), ({7.0}, 13.0))
        self.assertEqual(agent.stop(), 0)
        self.assertEqual(self.steps_on_disk(), [13])

    # --- ranks ---

    def test_a_small_tensor_that_ranks_have_otherwise_comes_back_to_each(self):
        agent = self.agent()
        ranks = [self.engine(rank=rank, world=2) for rank in (0, 1)]
        for rank, engine in enumerate(ranks):
            engine.save(1, {"rng": numpy.full(4, rank), "same": numpy.full(4, 7), "large": numpy.full(200_000, rank)})
        ranks[0].persist()
        self.assertIn("rng is written as rank 0 has it: rank 1 has other bytes, which are kept for it", agent.text())
        self.assertIn("large is written as rank 0 has it: rank 1 has other bytes, which it does not get back from storage", agent.text())
        for rank, engine in enumerate(ranks):
            loaded = engine.load(level="storage")
            self.assertEqual([int(loaded[name][0]) for name in ("rng", "same", "large")], [rank, 7, 0])

    def test_so_it_does_over_nodes(self):
        agents, engines = self.two_nodes()
        for rank, engine in enumerate(engines):
            engine.save(1, {"rng": numpy.full(4, rank), "same": numpy.full(4, 7)}, persist=True)
        wait_until(lambda: all(engine.status()["persisted_step"] == 1 for engine in engines))
        self.assertIn("rank 3 has other bytes, which are kept for it", agents[0].text())
        self.assertNotIn("same is written", agents[0].text())
        for rank, engine in enumerate(engines):
            loaded = engine.load(level="storage")
            self.assertEqual([int(loaded[name][0]) for name in ("rng", "same")], [rank, 7])

    def test_of_small_tensors_a_node_keeps_those_that_differ(self):
        self.node("a", "--rate", "200K")
        self.node("b")
        engines = [self.engine(rank=rank, world=2, local_world=1, socket=str(self.base / "ab"[rank])) for rank in (0, 1)]
        alike = {f"bias{at}": numpy.full(2000, float(at)) for at in range(100)}
        for rank, engine in enumerate(engines):
            engine.save(1, dict(alike, rng=numpy.full(4, rank)), persist=True)
        wait_until(lambda: list((self.base / "c").glob(".ckpt-joint-*/written-1")))
        part, = (self.base / "c").glob(".ckpt-joint-*/part-1/flash.ranks")
        self.assertLess(part.stat().st_size, 50_000)
        wait_until(lambda: all(engine.status()["persisted_step"] == 1 for engine in engines))
        for rank, engine in enumerate(engines):
            loaded = engine.load(level="storage")
            self.assertEqual((int(loaded["rng"][0]), float(loaded["bias7"][0])), (rank, 7.0))

    def test_another_number_of_ranks_gets_what_all_had_alike_or_nothing(self):
        for state, refused in ((lambda rank: {f"layers.{rank}": numpy.full(4, rank)}, True), (lambda rank: {"w": numpy.full(4, 7)}, False)):
            agent = self.agent()
            ranks = [self.engine(rank=rank, world=2) for rank in (0, 1)]
            for rank, engine in enumerate(ranks):
                engine.save(1, state(rank))
            ranks[0].persist()
            for engine in ranks:
                engine.close()
            agent.stop(signal.SIGKILL)
            self.agent()
            alone = self.engine()
            if refused:
                with self.assertRaisesRegex(FlashError, "is of 2 ranks, whose tensors are not the same; these are 1"):
                    alone.load()
            else:
                self.assertEqual(alone.load()["w"][0], 7)
            self.tearDown()
            self.setUp()

    def test_intervals_that_ranks_measure_have_steps_in_common(self):
        self.agent()
        intervals = []
        for rank, cost in ((0, 0.231), (1, 0.262)):
            engine = self.engine(rank=rank, world=2, auto_save=True)
            engine._pace, engine._cost = [time.monotonic() - 100, 100], cost
            intervals.append(engine._interval())
        self.assertEqual(intervals, [32, 32])
        alone = Engine(self.base / "d", auto_save=True, linger=1)
        alone._pace, alone._cost = [time.monotonic() - 100, 100], 0.231
        self.assertIn(alone._interval(), (23, 24))
        alone.close()

    def test_an_agent_that_did_not_answer_takes_its_own_memory_again(self):
        agent = self.agent("--no-persist-on-death")
        engine = self.engine()
        engine.save(1, {"w": numpy.full(9, 1.0)})
        loaded = engine.load()
        engine._library.reconnect()
        for step in (2, 3, 4):
            self.assertEqual(engine.save(step, {"w": numpy.full(9, float(step))}).newest_step, step)
        self.assertEqual((loaded["w"][0], engine.load().step), (1.0, 4))
        self.assertNotIn("took over", agent.text())

    def test_a_limit_of_memory_allows_one_buffer(self):
        group = next((pathlib.Path(folder) / f"ckpt-flash-{os.getpid()}" for folder, limit in
                      (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max"))
                      if os.access(folder, os.W_OK) and (limit != "memory.max" or os.path.exists(f"{folder}/cgroup.controllers"))), None)
        try:
            group.mkdir()
        except (AttributeError, OSError):
            self.skipTest("a memory cgroup cannot be made here")
        try:
            limit = next((group / name for name in ("memory.limit_in_bytes", "memory.max") if (group / name).exists()), None)
            if limit is None:
                self.skipTest("a memory cgroup cannot be made here")
            limit.write_text(str(200 << 20))
            agent = self.agent(before=["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"])
            if agent.process.poll() is not None:
                self.skipTest("a memory cgroup cannot be entered here")
            self.engine().prepare({"w": numpy.zeros(8_000_000)})
            self.assertIn("memory allows one buffer", agent.text())
        finally:
            for agent in self.agents:
                agent.stop(signal.SIGKILL)
            group.rmdir()

    def test_a_file_in_the_sockets_place_stays(self):
        for name in ("precious", "precious.lock"):
            with self.subTest(name):
                (self.base / name).write_text("data")
                refused = self.node("precious")
                self.assertEqual(refused.process.poll(), 2)
                self.assertIn(name + ": is there, and is no", refused.text())
                self.assertEqual((self.base / name).read_text(), "data")
                (self.base / name).unlink()

    # --- strangers ---

    def socket_path(self, name="c"):
        """Of the agent of a folder; None: there is none."""
        hash_of = 0xCBF29CE484222325
        for byte in os.fsencode(os.path.realpath(self.base / name)):
            hash_of = (hash_of ^ byte) * 0x100000001B3 % 2**64
        folders = ["/run/ckpt", os.environ.get("XDG_RUNTIME_DIR", "/none") + "/ckpt", f"/run/user/{os.geteuid()}/ckpt",
                   f"/tmp/ckpt-{os.geteuid()}"]
        return next((path for path in (f"{folder}/flash-{hash_of:016x}.sock" for folder in folders) if os.path.exists(path)), None)

    def knock(self):
        """A connection to the agent's socket."""
        out = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        out.settimeout(10)
        out.connect(self.socket_path())
        return out

    def ask(self, peer, kind, rank=0, world=1, local=1, flags=0, step=0, value=0, fds=(), version=1, text=b""):
        message = HEADER.pack(MAGIC, version, kind, 1, rank, world, local, flags, step, value, len(text), 0) + text
        socket.send_fds(peer, [message], fds)
        answer = peer.recv(70_000)
        return REPLY.unpack(answer[:REPLY.size])[4] if answer else None, answer[REPLY.size:].decode()

    def test_messages_that_are_none_are_refused_and_harm_nobody(self):
        self.agent()
        good = self.engine()
        good.save(1, state_of(1))
        for junk in (b"x", b"x" * 4000, b"\0" * HEADER.size, HEADER.pack(MAGIC, 1, 1, 0, 0, 1, 1, 0, 0, 0, 9, 0)):
            with self.knock() as peer:
                peer.send(junk)
                self.assertEqual(peer.recv(100), b"")
        with self.knock() as peer:
            self.assertEqual(self.ask(peer, HELLO, version=2)[0], 6)
        with self.knock() as peer:
            self.assertEqual(self.ask(peer, 99)[0], 6)
            self.assertEqual(self.ask(peer, HELLO, rank=5, world=3)[0], 2)
            self.assertEqual(self.ask(peer, HELLO, rank=0, world=10**9)[0], 2)
            self.assertEqual(self.ask(peer, HELLO)[0], 7)
            for kind in (DECLARE, ADOPT, BEGIN, COMMIT):
                self.assertEqual(self.ask(peer, kind)[0], 2, kind)
        self.assertTrue(same(good.load(), state_of(1)))

    def test_buffers_that_are_half_written_or_lie_are_offered_to_nobody(self):
        self.agent()
        engine = self.engine()
        for step in (1, 2):
            engine.save(step, state_of(step))
        segment = next(fd for fd in map(int, os.listdir("/proc/self/fd")) if os.path.realpath(f"/proc/self/fd/{fd}").startswith("/memfd:ckpt-flash"))
        with mmap.mmap(segment, os.fstat(segment).st_size) as memory:  # what a trainer that has gone mad can write to
            newest = next(slot for slot in (128, 192) if struct.unpack_from("<Q", memory, slot + 8)[0] == 2)
            good = memory[newest:newest + 32]
            sequence, step, objects, saved = struct.unpack("<4Q", good)
            for lie in ((sequence + 1, step, objects, saved), (0, step, objects, saved), (sequence, step, 2**40, saved), (sequence, 2**64 - 1, objects, saved)):
                struct.pack_into("<4Q", memory, newest, *lie)
                self.assertEqual(engine.status()["ranks"][0]["steps"], [1], lie)
                self.assertTrue(same(engine.load(), state_of(1)))
                self.ckpt("persist", self.base / "c", "--step", 2, code=4)
            memory[newest:newest + 32] = good
            self.assertTrue(same(engine.load(), state_of(2)))
            # Of the header the agent believes nothing after it was made; objects are what they are when they are read.
            header = memory[:128]
            memory[8:128] = b"\xff" * 120
            self.assertEqual(engine.status()["ranks"][0]["steps"], [1, 2])
            self.ckpt("persist", self.base / "c", "--step", 1)
            memory[:128] = header
            at, = struct.unpack_from("<Q", memory, 40)
            stride, data = struct.unpack_from("<2Q", memory, 48)
            place = at + (newest - 128) // 64 * stride + data
            for junk in (b"\xff" * 8, struct.pack("<II", 0x314A424F, 2**31), b"\0" * objects):
                kept = memory[place:place + objects]
                memory[place:place + len(junk)] = junk
                self.ckpt("persist", self.base / "c", "--step", 2, code=1)
                memory[place:place + objects] = kept
            self.ckpt("persist", self.base / "c", "--step", 2)
        self.assertEqual(self.steps_on_disk(), [1, 2])

    def test_layouts_and_segments_that_lie_are_refused(self):
        self.agent()
        tensor = struct.pack("<I1sI7sIQQQQI", 1, b"w", 7, b"float32", 1, 4, 4, 0, 0, 0)
        layout = struct.pack("<IIQ", 0x3159414C, 1, 64) + tensor

        def memfd(data, seals=fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW):
            fd = os.memfd_create("x", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.write(fd, data)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
            return fd

        with self.knock() as peer:
            self.assertEqual(self.ask(peer, HELLO)[0], 0)
            for data in (b"", layout[:-1], layout + b"x", struct.pack("<IIQ", 0x3159414C, 1, 2**63) + tensor,
                         struct.pack("<IIQ", 0x3159414C, 2**31, 64) + tensor, layout.replace(b"float32", b"float99")):
                fd = memfd(data)
                self.assertIn(self.ask(peer, DECLARE, fds=[fd])[0], (1, 2), data)
                os.close(fd)
            open_fd = memfd(layout, 0)
            self.assertEqual(self.ask(peer, DECLARE, fds=[open_fd])[0], 2)
            self.assertEqual(self.ask(peer, ADOPT, fds=[open_fd])[0], 1)
            os.close(open_fd)
            fd = memfd(layout)
            self.assertEqual(self.ask(peer, DECLARE, value=2**62, fds=[fd])[0], 2)
            self.assertEqual(self.ask(peer, DECLARE, fds=[fd])[0], 0)
            os.close(fd)
            self.assertEqual(self.ask(peer, COMMIT, step=1)[0], 2)  # nothing was begun
            self.assertEqual(self.ask(peer, BEGIN, step=1)[0], 0)
            self.assertEqual(self.ask(peer, COMMIT, step=1)[0], 2)  # nor written
            self.assertEqual(self.ask(peer, COMMIT, step=1, value=77)[0], 2)
            self.assertEqual(self.ask(peer, PERSIST, step=2**64 - 1)[0], 4)
            self.assertEqual(self.ask(peer, STATUS)[0], 0)


if __name__ == "__main__":
    unittest.main()
