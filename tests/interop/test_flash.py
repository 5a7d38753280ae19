"""Flash checkpoints with torch: what the agent wrote is read by torch's own loaders, and what is loaded from memory trains on as
if nothing had been."""
import os
import sys

import pytest
import torch
import torch.distributed.checkpoint as dcp

from conftest import CKPT, SOURCE, as_processes, as_two_processes, bits

LIBRARY = os.path.join(os.path.dirname(CKPT), "libckpt-flash.so")
pytestmark = pytest.mark.skipif(not os.path.exists(LIBRARY), reason="libckpt-flash.so is not built here")
os.environ["CKPT_BIN"], os.environ["CKPT_FLASH_LIBRARY"] = os.path.abspath(CKPT), os.path.abspath(LIBRARY)
sys.path.insert(0, str(SOURCE / "plugins" / "torch"))
from ckpt_flash import Engine  # noqa: E402


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


def trained(steps, model=None, optimizer=None, begin=0):
    if model is None:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.BatchNorm1d(30), torch.nn.ReLU(), torch.nn.Linear(30, 5))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(begin, steps):
        torch.manual_seed(1000 + step)
        optimizer.zero_grad()
        model(torch.randn(16, 20)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def state_of(model, optimizer):
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state(), "lr": 0.01}


def test_a_loop_that_goes_on_from_memory_ends_with_the_same_weights(tmp_path):
    model, optimizer = trained(5)
    with Engine(tmp_path / "c", linger=60) as engine:
        engine.prepare(state_of(model, optimizer))
        assert engine.save(5, state_of(model, optimizer))
    with Engine(tmp_path / "c", linger=60) as engine:
        loaded = engine.load()
        assert loaded.step == 5 and loaded.level in ("memory", "storage")
        assert equal(dict(loaded), state_of(model, optimizer))
        fresh, its = trained(0)
        fresh.load_state_dict(loaded["model"])
        its.load_state_dict(loaded["optimizer"])
        trained(9, fresh, its, begin=5)
    assert equal(fresh.state_dict(), trained(9)[0].state_dict())


def test_every_dtype_and_odd_tensors_come_back(tmp_path):
    state = {str(dtype): torch.arange(24).reshape(2, 3, 4).to(dtype)
             for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
                           torch.int8, torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2)}
    state |= {"scalar": torch.tensor(3.5), "empty": torch.empty(0, 4), "transposed": torch.arange(12.).reshape(3, 4).t(),
              "parameter": torch.nn.Parameter(torch.ones(3)), "conjugate": torch.tensor([1 + 2j]).conj(), "tied": None}
    state["tied"] = state["transposed"]
    with Engine(tmp_path / "c", linger=60) as engine:
        engine.save(1, state)
        loaded = engine.load()
        assert equal({k: v.detach().resolve_conj().contiguous() for k, v in state.items()}, dict(loaded))
        engine.persist()
        assert equal(dict(engine.load(level="storage")), dict(loaded))


@pytest.mark.parametrize("form", ["dcp", "torch", "safetensors", "torch_dist"])
def test_torch_reads_what_the_agent_wrote(tmp_path, ckpt, form):
    state = state_of(*trained(3))
    with Engine(tmp_path / "c", format=form, linger=60) as engine:
        engine.save(3, state)
        engine.persist()
    folder = tmp_path / "c" / (tmp_path / "c" / "LATEST").read_text().strip()
    ckpt("verify", folder)
    if form == "torch":
        assert equal(torch.load(folder / "model.pt", weights_only=True), state)
    elif form == "safetensors":
        from safetensors.torch import load_file
        read = load_file(folder / "model.safetensors")
        assert all(equal(read[f"model.{name}"], value) for name, value in state["model"].items())
    else:
        template = {"model": {name: torch.zeros_like(value) for name, value in state["model"].items()}}
        if form == "dcp":
            template["lr"] = None
        dcp.load(template, checkpoint_id=folder, no_dist=True)
        assert equal(template["model"], dict(state["model"])) and template.get("lr", 0.01) == 0.01
        if form == "torch_dist":
            assert torch.load(folder / "common.pt", weights_only=False)["lr"] == 0.01


def sharded(rank, folder):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (2,))
    whole = torch.arange(35.).reshape(5, 7)  # three rows and two
    state = {"w": distribute_tensor(whole, mesh, [Shard(0)]), "b": torch.full((4,), 2.0), "rank": f"rank {rank}"}
    engine = Engine(folder, linger=60, if_busy="wait")
    for step in (1, 2):
        torch.distributed.barrier()
        assert engine.save(step, state)
    torch.distributed.barrier()
    loaded = engine.load()
    assert loaded.step == 2 and loaded["rank"] == f"rank {rank}"
    assert equal(loaded["w"], state["w"].to_local()) and equal(loaded["b"], state["b"])
    torch.distributed.barrier()
    if rank == 0:
        engine.persist()
    torch.distributed.barrier()
    from_storage = engine.load(level="storage")
    assert equal(from_storage["w"], state["w"].to_local()) and from_storage["rank"] == f"rank {rank}"
    torch.distributed.barrier()
    engine.close()


def test_two_ranks_with_a_sharded_tensor(tmp_path, ckpt):
    as_two_processes(sharded, tmp_path / "store", str(tmp_path / "c"))
    folder = tmp_path / "c" / "iter_0000002"
    ckpt("verify", folder)
    template = {"w": torch.zeros(5, 7), "b": torch.zeros(4)}
    dcp.load(template, checkpoint_id=folder, no_dist=True)
    assert equal(template, {"w": torch.arange(35.).reshape(5, 7), "b": torch.full((4,), 2.0)})


def through_dcp(rank, folder):
    from ckpt_flash import FlashReader, FlashWriter
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (2,))
    whole = torch.arange(35.).reshape(5, 7)

    def state(factor, placement):
        return {"model": {"w": distribute_tensor(whole * factor, mesh, [placement]), "b": torch.full((4,), 2.0 * factor)},
                "optimizer": {"state": {"w": {"step": torch.tensor(3.0 * factor)}}, "lr": 0.5 * factor}}

    engine = Engine(folder, linger=60)
    dcp.save(state(1, Shard(0)), storage_writer=FlashWriter(engine, step=4))
    for placement in (Shard(0), Shard(1), Replicate()):  # as it was saved, and cut anew
        for level in ("memory", "storage"):
            target, reader = state(0, placement), FlashReader(engine, source=level)
            if level == "storage":
                torch.distributed.barrier()
                if rank == 0:
                    engine.persist()
                torch.distributed.barrier()
            dcp.load(target, storage_reader=reader)
            assert reader.level == level
            assert equal(target["model"]["w"].full_tensor(), whole) and equal(target["model"]["b"], torch.full((4,), 2.0))
            with pytest.raises(Exception, match="neither memory nor storage has step 99"):
                FlashReader(engine, step=99).read_metadata()
            assert target["optimizer"]["state"]["w"]["step"] == 3 and target["optimizer"]["lr"] == 0.5
    engine.close()


def test_dcp_save_and_load_go_through_memory_and_cut_anew(tmp_path):
    as_two_processes(through_dcp, tmp_path / "store", str(tmp_path / "c"))


def test_a_step_that_was_named_is_not_overridden_by_a_number_in_the_path(tmp_path):
    from ckpt_flash import FlashReader, FlashWriter
    with Engine(tmp_path / "c", linger=60) as engine:
        dcp.save({"w": torch.arange(3.)}, storage_writer=FlashWriter(engine, step=4), checkpoint_id="/runs/exp2/ckpt", no_dist=True)
        dcp.save({"w": torch.arange(3.)}, storage_writer=FlashWriter(engine), checkpoint_id="/runs/exp2/step-6", no_dist=True)
        assert engine.status()["ranks"][0]["steps"] == [4, 6]


def through_fsdp(rank, folder):
    from ckpt_flash import FlashReader, FlashWriter
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))

    def make(seed):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(20, 33), torch.nn.ReLU(), torch.nn.Linear(33, 5))
        for layer in (model[0], model[2]):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model, torch.optim.AdamW(model.parameters(), lr=0.01)

    def train(model, optimizer, steps):
        for step in steps:
            torch.manual_seed(1000 * step + rank)
            optimizer.zero_grad()
            model(torch.randn(8, 20)).square().mean().backward()
            optimizer.step()

    def state_of(model, optimizer):
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments}

    def whole(state):
        return {name: value.full_tensor() for name, value in state["model"].items()}

    engine = Engine(folder, linger=60)
    model, optimizer = make(0)
    train(model, optimizer, range(3))
    dcp.save(state_of(model, optimizer), storage_writer=FlashWriter(engine, step=3))
    train(model, optimizer, range(3, 6))
    for level in ("memory", "storage"):
        other, its = make(1)
        state, reader = state_of(other, its), FlashReader(engine, source=level)
        if level == "storage":
            torch.distributed.barrier()
            if rank == 0:
                engine.persist()
            torch.distributed.barrier()
        dcp.load(state, storage_reader=reader)
        set_state_dict(other, its, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        train(other, its, range(3, 6))
        assert (reader.level, reader.step) == (level, 3 if level == "memory" else None)
        assert equal(whole(state_of(other, its)), whole(state_of(model, optimizer)))
    engine.close()


@pytest.mark.parametrize("ranks", [2, 8])
def test_fsdp2_trains_on_as_if_nothing_had_been(tmp_path, ranks):
    as_processes(ranks, through_fsdp, tmp_path / "store", str(tmp_path / "c"))


def test_a_snapshot_is_of_the_moment_it_was_taken(tmp_path):
    weights = {str(i): torch.full((300_000,), float(i)) for i in range(8)}
    with Engine(tmp_path / "c", linger=60) as engine:
        saved = engine.save(1, {"w": weights, "step": 1}, mode="snapshot")
        for tensor in weights.values():
            tensor.add_(100)
        saved.wait()
        assert saved.done()
        loaded = engine.load()
        assert loaded.step == 1
        assert all(torch.equal(loaded["w"][str(i)], torch.full((300_000,), float(i))) for i in range(8))
        assert engine.save(2, {"w": weights, "step": 2}, mode="snapshot")
        assert torch.equal(engine.load()["w"]["3"], torch.full((300_000,), 103.0))


def test_memory_is_page_locked_once_and_let_go_before_it_is_unmapped(monkeypatch):
    from ckpt_flash.pinned import Pinned
    calls = []

    class Runtime:
        refuses = 0

        def cudaHostRegister(self, begin, size, flags):
            calls.append(("lock", begin, size, flags))
            return self.refuses

        def cudaHostUnregister(self, begin):
            calls.append(("unlock", begin))
            return 0

    runtime = Runtime()
    monkeypatch.setattr(Pinned, "_runtime", staticmethod(lambda: runtime))
    monkeypatch.setattr(Pinned, "_clear_error", staticmethod(lambda: calls.append("cleared")))
    pinned = Pinned()
    for _ in range(2):
        pinned.pin(0x10010, 0x12001)
    pinned.pin(0x20000, 0x21000)
    pinned.release()
    pinned.release()
    assert calls[:2] == [("lock", 0x10000, 0x3000, 0), ("lock", 0x20000, 0x1000, 0)]
    assert sorted(calls[2:]) == [("unlock", 0x10000), ("unlock", 0x20000)]
    calls.clear()
    runtime.refuses = 2
    with pytest.warns(UserWarning, match="page-locked"):
        pinned.pin(0x10000, 0x11000)
    pinned.pin(0x10000, 0x11000)
    pinned.release()
    assert calls == [("lock", 0x10000, 0x1000, 0), "cleared"]
