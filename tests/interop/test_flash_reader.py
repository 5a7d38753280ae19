"""dcp.load through FlashReader on two nodes (network namespaces) of two ranks: from the memory of both, cut anew too, while storage has an
older step; after a node's agent was lost from the partner's memory, or from storage."""
import os
import pathlib
import signal
import sys
import time

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(SOURCE / "plugins" / "torch"), str(SOURCE / "tests" / "support")]
CKPT = os.path.abspath(os.environ.get("CKPT_BIN", str(SOURCE / "build" / "ckpt")))
LIBRARY = os.environ.setdefault("CKPT_FLASH_LIBRARY", os.path.join(os.path.dirname(CKPT), "libckpt-flash.so"))
os.environ["CKPT_BIN"] = CKPT
from conftest import same  # noqa: E402
from flash_nodes import Processes, join, needs, nodes_or_skip, tell, told  # noqa: E402

pytestmark = needs(LIBRARY)
CUT, STORED, NEWEST = 1, 2, 3  # steps


def mesh_of():
    from torch.distributed.device_mesh import init_device_mesh
    return init_device_mesh("cpu", (torch.distributed.get_world_size(),))


def fsdp_state(seed):
    """Of a model and its optimizer after one step; the same on every call."""
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.fsdp import fully_shard
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(20, 33), torch.nn.ReLU(), torch.nn.Linear(33, 5))
    fully_shard(model, mesh=mesh_of())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(torch.randn(8, 20)).square().mean().backward()
    optimizer.step()
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


def flat(state, prefix=""):
    """Every value by its name, tensors whole."""
    out = {}
    for key, value in state.items() if isinstance(state, dict) else enumerate(state):
        if isinstance(value, (dict, list)):
            out |= flat(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = value.full_tensor() if hasattr(value, "full_tensor") else value
    return out


def equal(a, b):
    a, b = flat(a), flat(b)
    return a.keys() == b.keys() and all(same(a[k], b[k]) if torch.is_tensor(a[k]) else a[k] == b[k] for k in a)


def load(engine, target, **options):
    from ckpt_flash import FlashReader
    reader = FlashReader(engine, **options)
    dcp.load(target, storage_reader=reader)
    assert reader.total_us > 0
    return reader


def load_cut_anew(engine):
    import ckpt_flash.exchange
    from ckpt_flash import FlashWriter
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    def state(factor, placement):  # five rows on four ranks; a scalar, an odd size, and what is no tensor
        whole = {"w": torch.arange(35.).reshape(5, 7), "m": torch.arange(4000.).reshape(40, 100).double()}
        return {name: distribute_tensor(value * factor, mesh_of(), [placement]) for name, value in whole.items()} | {
            "b": torch.full((3,), 2.0 * factor).bfloat16(), "count": torch.tensor(7 * factor), "lr": 0.5 * factor, "none": torch.empty(0, 3)}

    ckpt_flash.exchange.CHUNK = 1000
    dcp.save(state(1, Shard(0)), storage_writer=FlashWriter(engine, CUT))
    for placement in (Shard(0), Shard(1), Replicate()):
        target = state(0, placement)
        reader = load(engine, target)
        assert (reader.level, reader.step, reader.why) == ("memory", CUT, "") and equal(target, state(1, placement))
        assert placement == Shard(0) or reader.fetched >= 4000  # half of its part of `m` lies on the other node
    whole = state(0, Replicate()) | {"lr": 1.0}  # one rank cannot take what it gets: it is told, and no other one is left waiting
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

    class Fails(DefaultLoadPlanner):
        def commit_tensor(self, item, tensor):
            if torch.distributed.get_rank() == 3:
                raise ValueError("rank 3 has no room")

    from ckpt_flash import FlashReader
    with pytest.raises(CheckpointException, match="rank 3 has no room"):
        dcp.load(whole, storage_reader=FlashReader(engine), planner=Fails())


def save_and_load(engine, rank):
    from ckpt_flash import FlashReader, FlashWriter
    load_cut_anew(engine)
    dcp.save(fsdp_state(STORED), storage_writer=FlashWriter(engine, STORED, persist=True))
    end = time.monotonic() + 90
    while (status := engine.status())["persisted_step"] != STORED:
        assert time.monotonic() < end, status
        time.sleep(0.05)
    torch.distributed.barrier()
    dcp.save(fsdp_state(NEWEST), storage_writer=FlashWriter(engine, NEWEST, persist=False))
    for step in (None, STORED, NEWEST):
        target = fsdp_state(99)
        reader = load(engine, target, step=step, source="memory")
        assert reader.step == (step or NEWEST) and equal(target, fsdp_state(reader.step))
    if rank == 0:  # from storage one rank may load alone
        alone = {"model": {"0.weight": torch.zeros(33, 20)}}
        dcp.load(alone, storage_reader=FlashReader(engine, source="storage"), no_dist=True)
    torch.distributed.barrier()
    weight = fsdp_state(STORED)["model"]["0.weight"].full_tensor()
    assert rank != 0 or same(alone["model"]["0.weight"], weight)
    engine._settle()
    torch.distributed.barrier()


def load_after_a_loss(engine, base, rank, partners):
    target = fsdp_state(99)
    if not partners:
        with pytest.raises(CheckpointException, match="memory has no step of all ranks"):
            load(engine, fsdp_state(99), source="memory")
    reader = load(engine, target)
    assert equal(target, fsdp_state(NEWEST if partners else STORED))
    tell(base, rank, {"agent": engine.status()["pid"], "level": reader.level, "why": reader.why})


def one_rank(base, node, rank, world, local, master, phase, partners):
    from ckpt_flash import Engine
    join(rank, world, master)
    engine = Engine(f"{base}/c", socket=f"{base}/{node}.sock", local_world=local, linger=300, max_to_keep=0, partners=partners, persist_on_death=False)
    tell(base, rank, {"agent": engine.status()["pid"]})
    if phase == "save":
        save_and_load(engine, rank)
    else:
        load_after_a_loss(engine, base, rank, partners)
    torch.distributed.barrier()
    engine.leave()
    os._exit(0)


@pytest.mark.parametrize("partners", [0, 1])
def test_memory_of_two_nodes_serves_a_load(tmp_path, partners):
    nodes, base, local = nodes_or_skip(2), str(tmp_path), 2
    job, agents = None, set()
    try:
        job = Processes(__file__, base, nodes, [0, 1], local, 29504, "save", partners)
        job.end_well()
        agents = {told(base, rank)["agent"] for rank in range(job.world)}
        os.kill(told(base, 2)["agent"], signal.SIGKILL)  # with the memory of node 1
        if partners:  # nobody could load from here
            for path in (tmp_path / "c").glob("iter_*/*.distcp"):
                path.unlink()
        job = Processes(__file__, base, nodes, [0, 1], local, 29505, "load", partners)
        job.end_well()
        found = [(told(base, rank)["level"], told(base, rank)["why"]) for rank in range(job.world)]
        assert found == ([("memory", "")] * 2 + [("partner", "")] * 2 if partners else [("storage", "memory has no step of all ranks")] * 4)
    finally:
        if job:
            job.end(agents | {told(base, rank)["agent"] for rank in range(job.world) if told(base, rank)})
        nodes.remove()


if __name__ == "__main__":
    one_rank(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]), sys.argv[6], sys.argv[7], int(sys.argv[8]))
