"""torch writes distributed checkpoints; ckpt reads and converts them; torch loads the result."""
import os

import pytest
import torch
import torch.distributed.checkpoint as dcp

from conftest import as_two_processes, load_tensors, same
from megatron_zarr import random_tensor

DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64,
          torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex32, torch.complex64, torch.complex128,
          torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu]


def state():
    model = {f"weight.{str(t).split('.')[1]}": random_tensor((6, 5), t, i) for i, t in enumerate(DTYPES)}
    model |= {"scalar": torch.tensor(3.5), "empty": torch.empty(0, 4), "vector": random_tensor((1000,), torch.float32, 99)}
    model["transposed"] = random_tensor((20, 30), torch.float32, 100).t()
    model["strided"] = random_tensor((20, 30), torch.bfloat16, 103)[::2, 3:17]
    model["expanded"] = random_tensor((5, 1), torch.int16, 104).expand(5, 4)
    model["large"] = random_tensor((600, 1024), torch.float32, 101)
    step = {"step": torch.tensor(7.0), "exp_avg": random_tensor((6, 5), torch.float32, 102)}
    return {"model": model, "optim": {"state": {0: step}, "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": [0]}]},
            "note": "text", "epoch": 3}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dcp") / "src"
    dcp.save(state(), checkpoint_id=folder, no_dist=True)
    return folder


@pytest.mark.parametrize("options", [[], ["--shard-size", "300", "--files", "3"]], ids=["as stored", "regridded"])
def test_torch_loads_the_nested_state_back(ckpt, source, tmp_path, options):
    ckpt.convert(source, tmp_path / "dst", *options)
    expected, loaded = state(), state()
    for part in (loaded["model"], loaded["optim"]["state"][0]):
        part.update({k: v.clone(memory_format=torch.contiguous_format).zero_() for k, v in part.items()})
    loaded["optim"]["param_groups"][0]["lr"], loaded["note"], loaded["epoch"] = None, None, None
    dcp.load(loaded, checkpoint_id=tmp_path / "dst", no_dist=True)
    for key, tensor in expected["model"].items():
        assert same(loaded["model"][key], tensor), key
    for key, tensor in expected["optim"]["state"][0].items():
        assert same(loaded["optim"]["state"][0][key], tensor), key
    assert loaded["optim"]["param_groups"] == expected["optim"]["param_groups"]
    assert (loaded["note"], loaded["epoch"]) == ("text", 3)


def test_load_metadata_lists_what_torch_saved(ckpt, source):
    listed = {t["key"]: t for t in ckpt.json("load-metadata", source)["tensors"]}
    for key, tensor in state()["model"].items():
        assert listed["model." + key]["dtype"] == str(tensor.dtype).split(".")[1], key
        assert listed["model." + key]["shape"] == list(tensor.shape), key


def test_inspect_and_verify_accept_what_torch_saved(ckpt, source):
    assert "model.weight.bfloat16" in ckpt("inspect", source).stdout
    ckpt("verify", source)


def save_sharded(rank, folder):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    values = {"rows": (Shard(0), (7, 6)), "columns": (Shard(1), (5, 9)), "copies": (Replicate(), (4,))}
    sharded = {k: distribute_tensor(random_tensor(shape, torch.float32, i), mesh, [place]) for i, (k, (place, shape)) in enumerate(values.items())}
    dcp.save({"model": sharded}, checkpoint_id=folder)


@pytest.mark.parametrize("options", [[], ["--shard-size", "64"]], ids=["as stored", "regridded"])
def test_tensors_sharded_over_processes(ckpt, tmp_path, options):
    as_two_processes(save_sharded, tmp_path / "store", tmp_path / "src")
    ckpt.convert(tmp_path / "src", tmp_path / "dst", *options)
    loaded = load_tensors(tmp_path / "dst")
    for i, (key, shape) in enumerate({"rows": (7, 6), "columns": (5, 9), "copies": (4,)}.items()):
        assert same(loaded["model." + key], random_tensor(shape, torch.float32, i)), key


def test_items_past_four_gibibytes_use_zip64_and_load(ckpt, tmp_path):
    if os.environ.get("CKPT_INTEROP_HUGE") != "1":
        pytest.skip("needs CKPT_INTEROP_HUGE=1, 10 GiB of disk and 5 GiB of memory")
    tensor = torch.arange(2**32 + 8192, dtype=torch.int64).to(torch.uint8)
    dcp.save({"huge": tensor, "after": torch.arange(10)}, checkpoint_id=tmp_path / "src", no_dist=True)
    ckpt.convert(tmp_path / "src", tmp_path / "dst")
    loaded = load_tensors(tmp_path / "dst")
    assert torch.equal(loaded["huge"], tensor) and torch.equal(loaded["after"], torch.arange(10))


def test_a_converted_checkpoint_converts_again_to_the_same_tensors(ckpt, source, tmp_path):
    first = load_tensors(ckpt.convert(source, tmp_path / "one", "--shard-size", "200"))
    second = load_tensors(ckpt.convert(tmp_path / "one", tmp_path / "two"))
    assert first.keys() == second.keys() and all(same(first[k], second[k]) for k in first)


def small_model(rank):
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.ReLU(), torch.nn.Linear(16, 6))


def train(rank, kind, folder, save):
    """Two processes, one step of AdamW under FSDP, the state saved as `save` does."""
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model = small_model(rank)
    if kind == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    else:
        from torch.nn.parallel import DistributedDataParallel

        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(torch.ones(4, 10)).square().sum().backward()
    optimizer.step()
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optim": optimizer_state, "step": 3, "names": ["a", "b"]}
    save(state, folder)
    if rank == 0:
        full = {}
        for key, value in model_state.items():
            full["model." + key] = value
        for key, entry in optimizer_state["state"].items():
            for name, value in entry.items():
                full[f"optim.state.{key}.{name}"] = value
    else:
        full = {"model." + k: v for k, v in model_state.items()} | {
            f"optim.state.{k}.{n}": v for k, e in optimizer_state["state"].items() for n, v in e.items()}
    full = {k: v.full_tensor() if hasattr(v, "full_tensor") else v for k, v in full.items()}
    if rank == 0:
        torch.save(full, str(folder) + ".expected")


def save_plainly(state, folder):
    dcp.save(state, checkpoint_id=folder)


def save_alone(state, folder):
    dcp.save(state, checkpoint_id=folder, use_collectives=False)


@pytest.mark.parametrize("kind", ["fsdp2", "ddp"])
@pytest.mark.parametrize("save", [save_plainly, save_alone], ids=["together", "each rank alone"])
def test_model_and_optimizer_of_two_processes(ckpt, tmp_path, kind, save):
    as_two_processes(train, tmp_path / "store", kind, tmp_path / "src", save)
    alone = save is save_alone
    assert (tmp_path / "src" / ("__1.metadata" if alone else ".metadata")).exists()
    ckpt.convert(tmp_path / "src", tmp_path / "dst")
    loaded, expected = load_tensors(tmp_path / "dst"), torch.load(str(tmp_path / "src") + ".expected")
    assert expected.keys() == loaded.keys() and len(loaded) == 4 + 3 * 4
    for key, value in expected.items():
        assert same(loaded[key], value), key
    document = ckpt.json("load-metadata", tmp_path / "src")
    keys = {o["key"] for o in document["objects"]}
    assert {"step", "names", "optim.param_groups.0.lr"} <= keys or any(k.startswith("optim.param_groups.") for k in keys)
    assert any("saved by several ranks" in w for w in document["warnings"]) == alone
    ckpt("verify", tmp_path / "src")


def test_a_rank_that_is_missing_is_damage(ckpt, tmp_path):
    as_two_processes(train, tmp_path / "store", "fsdp2", tmp_path / "src", save_alone)
    source, whole = tmp_path / "src", torch.load(str(tmp_path / "src") + ".expected")
    (source / "__1.metadata").unlink()
    halved = {key for key, tensor in whole.items() if tensor.ndim > 0}
    # What is there is shown, and what is not is told; whether that will do is what verify answers, and what convert asks.
    said = ckpt("inspect", source).stderr
    for verb in ("inspect", "load-metadata"):
        document = ckpt.json(verb, source)
        assert {t["key"] for t in document["tensors"]} == whole.keys()
        assert len(document["damage"]) == len(halved)
        for key in halved:
            damage, = [text for text in document["damage"] if text.startswith(key + ": no shard covers [")]
            assert f"warning: damaged: {damage}\n" in said
    found = [f for f in ckpt.json("verify", source, code=1)["findings"] if "no shard covers" in f["message"]]
    assert {f["key"] for f in found} == halved
    assert "no shard covers" in ckpt("inspect", source, "--stats", code=1).stderr
    assert "no shard covers" in ckpt("convert", source, tmp_path / "dst", "--to", "torch_dist", code=1).stderr
    assert "no shard covers" in ckpt("convert", source, tmp_path / "dst", "--to", "torch_dist", "--allow-damage", code=1).stderr
    assert not (tmp_path / "dst").exists()


def save_safetensors(rank, folder, options):
    from torch.distributed.checkpoint import HuggingFaceStorageWriter
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    sharded = {k: distribute_tensor(random_tensor(shape, torch.bfloat16, i), mesh, [place])
               for i, (k, (place, shape)) in enumerate(SAFE.items())}
    dcp.save(sharded, storage_writer=HuggingFaceStorageWriter(path=str(folder), **options))


def safe():
    from torch.distributed.tensor import Replicate, Shard

    return {"rows": (Shard(0), (7, 6)), "columns": (Shard(1), (5, 9)), "copies": (Replicate(), (4,))}


SAFE = safe()


@pytest.mark.parametrize("options", [
    {"save_distributed": True}, {"save_distributed": True, "enable_consolidation": True},
    {"save_distributed": True, "fqn_to_index_mapping": {"rows": 1, "columns": 2, "copies": 2}},
    {"save_distributed": True, "fqn_to_index_mapping": {"rows": 1, "columns": 2, "copies": 2}, "enable_consolidation": True},
], ids=["sharded", "consolidated", "sharded files", "consolidated files"])
def test_the_safetensors_writer(ckpt, tmp_path, options):
    as_two_processes(save_safetensors, tmp_path / "store", tmp_path / "src", options)
    folders = [tmp_path / "src"] + ([tmp_path / "src/sharded"] if "enable_consolidation" in options else [])
    for i, folder in enumerate(folders):
        ckpt.convert(folder, tmp_path / f"dst{i}")
        loaded = load_tensors(tmp_path / f"dst{i}")
        assert loaded.keys() == SAFE.keys()
        for j, (key, (_, shape)) in enumerate(SAFE.items()):
            assert same(loaded[key], random_tensor(shape, torch.bfloat16, j)), key


def test_the_safetensors_writer_of_one_process(ckpt, tmp_path):
    from torch.distributed.checkpoint import HuggingFaceStorageWriter

    state = {k: random_tensor(shape, torch.bfloat16, i) for i, (k, (_, shape)) in enumerate(SAFE.items())}
    writer = HuggingFaceStorageWriter(path=str(tmp_path / "src"), fqn_to_index_mapping={"rows": 1, "columns": 2, "copies": 2})
    dcp.save(state, storage_writer=writer, no_dist=True)
    loaded = load_tensors(ckpt.convert(tmp_path / "src", tmp_path / "dst"))
    assert loaded.keys() == state.keys() and all(same(loaded[k], v) for k, v in state.items())


def test_safetensors_in_distcp_files(ckpt, tmp_path):
    """FileSystemWriter with serialization_format=SAFETENSORS: objects, then one safetensors file, in each .distcp."""
    from torch.distributed.checkpoint.filesystem import SerializationFormat

    state = {"a": random_tensor((3, 4), torch.float32, 1), "b": random_tensor((50,), torch.bfloat16, 2), "note": "text", "s": torch.tensor(1.5)}
    writer = dcp.FileSystemWriter(tmp_path / "src", serialization_format=SerializationFormat.SAFETENSORS)
    dcp.save(state, storage_writer=writer, no_dist=True)
    loaded = load_tensors(ckpt.convert(tmp_path / "src", tmp_path / "dst"))
    assert all(same(loaded[k], state[k]) for k in "abs")
    ckpt("verify", tmp_path / "src")


def test_a_nested_torch_save_becomes_a_distributed_checkpoint_and_comes_back(ckpt, tmp_path):
    """planner_data: torch's own export nests the keys as they were."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    state = {"model": {"a": torch.arange(6.0).reshape(2, 3), "b": [torch.ones(2), torch.zeros(3, dtype=torch.bfloat16)]}, "top": torch.tensor(5)}
    torch.save(state, tmp_path / "state.pt")
    ckpt("convert", tmp_path / "state.pt", tmp_path / "dcp", "--to", "dcp", "--verify")
    dcp_to_torch_save(tmp_path / "dcp", tmp_path / "back.pt")
    back = torch.load(tmp_path / "back.pt", weights_only=True)
    assert same(back["model"]["a"], state["model"]["a"])
    assert isinstance(back["model"]["b"], list) and all(same(x, y) for x, y in zip(back["model"]["b"], state["model"]["b"]))
    assert same(back["top"], state["top"])
