#!/usr/bin/env python3
"""A save to memory and a load from it beside DLRover's and torch.distributed.checkpoint's, in turn, in one run.

usage: peers.py [GIB]    CKPT_BIN names ckpt. Wants torch and, to be compared with, dlrover (pip install dlrover==0.6.1).
"""
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

CKPT = os.path.abspath(os.environ["CKPT_BIN"])
os.environ.setdefault("CKPT_FLASH_LIBRARY", os.path.join(os.path.dirname(CKPT), "libckpt-flash.so"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "plugins", "torch"))
import logging  # noqa: E402

import torch  # noqa: E402
from ckpt_flash import Engine  # noqa: E402

TENSORS, ROUNDS = 32, 7


def timed(work):
    began = time.perf_counter()
    done = work()
    if done is False:
        raise RuntimeError("a save was skipped")
    return time.perf_counter() - began


def touch(state):
    """As a step does: every tensor is written."""
    for value in state.values():
        value.add_(1)


class Ours:
    def __init__(self, folder, state, mode):
        self.engine, self.mode = Engine(os.path.join(folder, mode), linger=60), mode
        self.engine.prepare(state)
        self.engine.ready()

    def save(self, step, state):
        return bool(self.engine.save(step, state, mode=self.mode))

    def settle(self):
        self.engine._library.wait(None)

    def load(self):
        return self.engine.load()


class DLRover:
    """Its agent in a process of its own, as its launcher has it."""

    AGENT = "from dlrover.python.elastic_agent.torch.ckpt_saver import AsyncCheckpointSaver as A; import time; A.start_async_saving_ckpt(); time.sleep(3600)"

    def __init__(self, folder):
        from dlrover.python.common.storage import PosixDiskStorage
        self.agent = subprocess.Popen([sys.executable, "-c", self.AGENT], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(5)
        from dlrover.trainer.torch.flash_checkpoint.full_ckpt_engine import FullCheckpointEngine
        self.folder = folder
        self.engine = FullCheckpointEngine(folder, PosixDiskStorage())

    def save(self, step, state):
        return self.engine.save_to_memory(step, {"model_states": state}, {"model_states": os.path.join(self.folder, f"{step}.pt")}) is not False

    def settle(self):
        pass

    def load(self):
        return self.engine.get_state_dict_from_memory()

    def end(self):
        self.agent.kill()
        self.agent.wait()


class AsyncSave:
    def __init__(self, folder):
        import torch.distributed as dist
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.folder, self.future = folder, None

    def save(self, step, state):
        import torch.distributed.checkpoint as dcp
        self.future = dcp.async_save(state, checkpoint_id=os.path.join(self.folder, str(step)))

    def settle(self):
        if self.future is not None:
            self.future.result()
            shutil.rmtree(self.folder, ignore_errors=True)


def main():
    logging.disable(logging.CRITICAL)  # DLRover tells of every save
    gib = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    count = int(gib * 2**30 / TENSORS / 4)
    state = {f"t{i}": torch.full((count,), float(i)) for i in range(TENSORS)}
    copies = {name: torch.zeros_like(value) for name, value in state.items()}
    folder = tempfile.mkdtemp(prefix="ckpt-bench-peers-", dir=os.environ.get("CKPT_BENCH_DIR"))
    peers = {"ckpt, copy": Ours(folder, state, "copy"), "ckpt, snapshot": Ours(folder, state, "snapshot")}
    try:
        try:
            peers["DLRover"] = DLRover(os.path.join(folder, "dlrover"))
        except ImportError as lacking:
            print(f"without DLRover: {lacking}")
        peers["dcp.async_save"] = AsyncSave(os.path.join(folder, "dcp"))
        firsts, times, plain = {}, {name: [] for name in peers}, []
        for step in range(1, ROUNDS + 2):
            plain.append(timed(lambda: [copies[name].copy_(value) for name, value in state.items()]))
            for name, peer in peers.items():
                touch(state)
                took = timed(lambda: peer.save(step, state))
                peer.settle()
                if step == 1:
                    firsts[name] = took
                else:
                    times[name].append(took)
        copy = statistics.median(plain)
        print(f"{gib:g} GiB in {TENSORS} tensors; torch's copy_ with its threads takes {copy:.3f} s")
        for name, peer in peers.items():
            loads = [timed(lambda: peer.load() is not None) for _ in range(5)] if hasattr(peer, "load") else []
            load = f"   load {statistics.median(loads) * 1000:8.2f} ms" if loads else ""
            print(f"{name:15} save {statistics.median(times[name]):6.3f} s {statistics.median(times[name]) / copy:5.2f} of a copy   "
                  f"first {firsts[name]:6.3f} s {firsts[name] / copy:5.2f}{load}")
    finally:
        if "DLRover" in peers:
            peers["DLRover"].end()
        shutil.rmtree(folder, ignore_errors=True)


main()
