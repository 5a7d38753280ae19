"""Megatron's torch_dist by the agents of several nodes (network namespaces) together: each writes what its ranks have, that of rank 0 the
metadata, the common state and metadata.json. torch and Megatron Core load the whole."""
import os
import pathlib
import shutil
import sys
import time

import pytest
import torch
import torch.distributed.checkpoint as dcp

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(SOURCE / "plugins" / "torch"), str(SOURCE / "tests" / "support")]
CKPT = os.path.abspath(os.environ.get("CKPT_BIN", str(SOURCE / "build" / "ckpt")))
LIBRARY = os.environ.setdefault("CKPT_FLASH_LIBRARY", os.path.join(os.path.dirname(CKPT), "libckpt-flash.so"))
os.environ["CKPT_BIN"] = CKPT
from conftest import as_processes, same  # noqa: E402
from flash_nodes import Processes, join, nodes_or_skip, tell, told  # noqa: E402

pytestmark = pytest.mark.skipif(not os.path.exists(LIBRARY), reason="libckpt-flash.so is not built here")
STEP = 5  # by Engine.save; the next one by dcp.save


def whole_tensors():
    torch.manual_seed(3)
    return {"model.w": torch.randn(10, 7), "model.half": torch.randn(5, 2).bfloat16(), "model.scale": torch.tensor(2.5),
            "optimizer.m": torch.randn(10, 7), "optimizer.count": torch.arange(6)}


def state_of(rank, world):
    """Rows over all ranks, not the same number on each; what is not cut lies on every rank."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (world,))
    state = {}
    for key, value in whole_tensors().items():
        top, name = key.split(".")
        state.setdefault(top, {})[name] = distribute_tensor(value, mesh, [Shard(0)]) if name in ("w", "m") else value
    return state


def wait_for(engine, step):
    end = time.monotonic() + 90
    while (status := engine.status())["persisted_step"] != step:
        assert time.monotonic() < end, status
        time.sleep(0.05)


def one_rank(base, node, rank, world, local, master):
    from ckpt_flash import Engine, FlashWriter
    join(rank, world, master)
    engine = Engine(f"{base}/c", socket=f"{base}/{node}.sock", local_world=local, linger=60, max_to_keep=0, format="torch_dist", persist_on_death=False)
    tell(base, rank, {"agent": engine.status()["pid"]})
    state = state_of(rank, world)
    assert engine.save(STEP, state | {"lr": 0.5, "rank": rank}, persist=True)
    wait_for(engine, STEP)
    loaded = engine.load(level="storage")
    assert loaded.step == STEP and same(loaded["model"]["w"], state["model"]["w"].to_local()) and loaded["rank"] == rank and loaded["lr"] == 0.5
    torch.distributed.barrier()
    dcp.save(state | {f"rng_state/shard_0.{rank}_1.{world}": ("of rank", rank)}, storage_writer=FlashWriter(engine, STEP + 1, persist=True))
    wait_for(engine, STEP + 1)
    torch.distributed.barrier()
    engine.leave()
    os._exit(0)


def check(folder, world, objects):
    """By torch, and by Megatron Core, to which nothing may be missing, and nothing left over."""
    from megatron.core import dist_checkpointing as mcore
    from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor
    expected = whole_tensors()
    target = {key: torch.zeros_like(value) for key, value in expected.items()}
    dcp.load(target, checkpoint_id=folder, no_dist=True)
    assert all(same(target[key], expected[key]) for key in expected)
    wanted = {key: ShardedTensor.from_rank_offsets(key, torch.zeros_like(value)) for key, value in expected.items()}
    for rank in range(world) if objects else ():
        wanted[f"rng{rank}"] = ShardedObject("rng_state", None, (1, world), (0, rank))
    loaded = mcore.load(wanted, str(folder), strict="raise_all")
    assert all(same(loaded[key], expected[key]) for key in expected)
    assert not objects or [loaded[f"rng{rank}"] for rank in range(world)] == [("of rank", rank) for rank in range(world)]
    assert mcore.load_common_state_dict(str(folder)) == ({} if objects else {"lr": 0.5, "rank": 0})


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("nsenter") is None,
                    reason="no network namespaces without root and ip")
@pytest.mark.parametrize("count,local", [(2, 2), (4, 1)])
def test_torch_and_megatron_load_what_the_agents_of_all_nodes_wrote(tmp_path, ckpt, single_process, count, local):
    nodes, base = nodes_or_skip(count), str(tmp_path)
    job = None
    try:
        job = Processes(__file__, base, nodes, range(count), local, 29502)
        job.end_well()
        for step in (STEP, STEP + 1):
            folder = tmp_path / "c" / f"iter_{step:07}"
            ckpt("verify", folder)
            writers = {int(path.name.split("_")[2]) for path in folder.glob("__*_*.distcp")}
            assert writers == {node * local for node in range(count)}  # each node's agent has written
            check(folder, job.world, step > STEP)
        assert (tmp_path / "c" / "latest_checkpointed_iteration.txt").read_text().strip() == str(STEP + 1)
        assert not list((tmp_path / "c").glob(".ckpt*"))
    finally:
        if job:
            job.end({told(base, rank)["agent"] for rank in range(job.world) if told(base, rank)})
        nodes.remove()


def of_two_formats(rank, base):
    from ckpt_flash import Engine, FlashError
    engine = Engine(f"{base}/c", socket=f"{base}/{rank}.sock", rank=rank, world=2, local_world=1, linger=60, persist_on_death=False,
                    format=("torch_dist", "dcp")[rank])
    assert engine.save(1, {"w": torch.arange(5.) + rank, str(rank): torch.ones(3)})
    torch.distributed.barrier()
    if rank == 0:
        with pytest.raises(FlashError, match="is dcp, and the whole torch_dist"):
            engine.persist()
    torch.distributed.barrier()
    engine.close()


def test_agents_of_two_formats_write_nothing(tmp_path):
    with pytest.raises(ValueError, match="several nodes write dcp or torch_dist, not torch"):
        from ckpt_flash import Engine
        Engine(tmp_path, rank=0, world=2, local_world=1, format="torch")
    as_processes(2, of_two_formats, tmp_path / "store", str(tmp_path))
    assert not list((tmp_path / "c").glob("iter_*"))


if __name__ == "__main__":
    one_rank(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]), sys.argv[6])
