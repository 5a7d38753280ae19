"""ckpt writes files of torch.save; torch loads them, restricted and mapped."""
import collections

import pytest
import torch
import torch.distributed.checkpoint as dcp

from conftest import fixture, same
from megatron_zarr import random_tensor
from test_dcp import DTYPES, state
from test_torch_save import views


def write(ckpt, source, target, *options):
    ckpt("convert", source, target, "--to", "torch", *options)
    return torch.load(target, weights_only=True, mmap=True)


def flat(value, path=()):
    """Tensors by their dotted key."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    out = {}
    for key, inner in items:
        if isinstance(inner, torch.Tensor):
            out[".".join(map(str, path + (key,)))] = inner
        else:
            out |= flat(inner, path + (key,))
    return out


def test_a_distributed_checkpoint_gets_its_nesting_back(ckpt, tmp_path):
    dcp.save(state(), checkpoint_id=tmp_path / "src", no_dist=True)
    loaded = write(ckpt, tmp_path / "src", tmp_path / "x.pt", "--verify")
    assert loaded.keys() == {"model", "optim", "note", "epoch"}
    for key, tensor in state()["model"].items():
        place = loaded["model"]
        if key not in place:  # torch splits no names: the keys of a state dict have dots
            pytest.fail(key)
        assert same(place[key], tensor), key
    step = state()["optim"]["state"][0]
    for name, tensor in step.items():
        assert same(loaded["optim"]["state"]["0"][name], tensor)
    assert loaded["optim"]["param_groups"] == state()["optim"]["param_groups"]
    assert (loaded["note"], loaded["epoch"]) == ("text", 3)


def test_the_same_as_torchs_own_export(ckpt, tmp_path):
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    dcp.save(state(), checkpoint_id=tmp_path / "src", no_dist=True)
    dcp_to_torch_save(tmp_path / "src", tmp_path / "theirs.pt")
    ours, theirs = write(ckpt, tmp_path / "src", tmp_path / "ours.pt"), torch.load(tmp_path / "theirs.pt")
    a, b = flat(ours), flat(theirs)
    assert a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    assert ours["optim"]["param_groups"] == theirs["optim"]["param_groups"]


def test_a_file_of_torch_save_comes_back_the_same(ckpt, tmp_path):
    state = views() | {str(t): random_tensor((6, 4), t, i) for i, t in enumerate(DTYPES)}
    nested = {"model": collections.OrderedDict(state), "step": 7, "lr": 1e-3, "big": 2**70, "negative": -5, "long": -(2**40), "none": None,
              "flags": [True, False], "betas": (0.9, 0.999), "text": "h\u00e4\u2603", "raw": b"\x00\xffbytes", "array": bytearray(b"ab"), "set": {1, 2},
              "size": torch.Size([2, 3]), "dtype": torch.bfloat16, "list": [torch.ones(2), {"x": torch.zeros(1)}], "empty": {}, 3: {4: torch.ones(1)},
              "device": torch.device("cpu"), "counter": collections.Counter("aab"), "complex": 1 + 2j}
    torch.save(nested, tmp_path / "a.pt")
    loaded = write(ckpt, tmp_path / "a.pt", tmp_path / "b.pt", "--verify")
    a, b = flat(nested), flat(loaded)
    assert a.keys() == b.keys() and all(same(a[k].resolve_conj().resolve_neg(), b[k].resolve_conj().resolve_neg()) for k in a)
    for key, value in nested.items():
        if key not in ("model", "list", 3):
            assert loaded[key] == value and type(loaded[key]) is type(value), key
    assert loaded[3][4] == 1 and isinstance(loaded["list"], list)
    assert list(loaded) == list(nested) and type(loaded["model"]) is collections.OrderedDict and list(loaded["model"]) == list(state)


def test_what_torch_writes_stays_as_it_is(ckpt, tmp_path):
    tied = torch.rand(1 << 12)
    value = collections.OrderedDict([("z", tied), ("a", tied), ("view", tied[5:9]), ("pair", (torch.ones(1), torch.zeros(2))), ("sparse", torch.eye(3).to_sparse()),
                                     ("jagged", torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)),
                                     ("parameter", torch.nn.Parameter(torch.ones(2))), ("quantised", torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8))])
    torch.save(value, tmp_path / "a.pt")
    ckpt("verify", tmp_path / "a.pt")
    loaded = write(ckpt, tmp_path / "a.pt", tmp_path / "b.pt", "--verify", "--exclude", "quantised")
    assert type(loaded) is collections.OrderedDict and list(loaded) == [k for k in value if k != "quantised"]
    assert loaded["z"].data_ptr() == loaded["a"].data_ptr() and loaded["view"].data_ptr() == loaded["z"].data_ptr() + 20
    assert type(loaded["pair"]) is tuple and loaded["sparse"].is_sparse and type(loaded["parameter"]) is torch.nn.Parameter
    assert torch.equal(loaded["jagged"].values(), value["jagged"].values()) and torch.equal(loaded["sparse"].to_dense(), torch.eye(3))
    assert (tmp_path / "b.pt").stat().st_size < 1.2 * (tmp_path / "a.pt").stat().st_size
    halves = write(ckpt, tmp_path / "a.pt", tmp_path / "c.pt", "--dtype", "parameter=float16")
    assert halves["parameter"].dtype == torch.float16 and type(halves["parameter"]) is torch.nn.Parameter


def test_values_become_a_distributed_checkpoint_that_torch_reads(ckpt, tmp_path):
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save, torch_save_to_dcp

    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    value = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "rng": torch.get_rng_state(), "best": (1.5, "x"), "args": {"x": None}}
    torch.save(value, tmp_path / "a.pt")
    ckpt("convert", tmp_path / "a.pt", tmp_path / "ours", "--to", "dcp", "--verify")
    torch_save_to_dcp(tmp_path / "a.pt", tmp_path / "theirs")
    ours, theirs = (dcp.FileSystemReader(tmp_path / n).read_metadata() for n in ("ours", "theirs"))
    assert ours.state_dict_metadata.keys() == theirs.state_dict_metadata.keys() and ours.planner_data == theirs.planner_data
    assert {k: type(v) for k, v in ours.state_dict_metadata.items()} == {k: type(v) for k, v in theirs.state_dict_metadata.items()}
    dcp_to_torch_save(tmp_path / "ours", tmp_path / "back.pt")
    back = torch.load(tmp_path / "back.pt", weights_only=False)
    assert (back["epoch"], back["best"], back["args"]) == (3, (1.5, "x"), {"x": None})
    assert back["optimizer"]["param_groups"] == value["optimizer"]["param_groups"] and torch.equal(back["rng"], value["rng"])
    goal = {"model": {k: torch.zeros_like(v) for k, v in value["model"].items()}, "epoch": 0}
    dcp.load(goal, checkpoint_id=tmp_path / "ours", no_dist=True)
    assert goal["epoch"] == 3 and all(torch.equal(goal["model"][k], v) for k, v in value["model"].items())


def test_megatrons_values_become_objects_of_a_plain_checkpoint(ckpt, tmp_path):
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    ckpt("convert", fixture("generated-megatron", "mcore-0.16.0_dcp-2.9.1"), tmp_path / "out", "--to", "dcp", "--verify")
    dcp_to_torch_save(tmp_path / "out", tmp_path / "x.pt")
    common = torch.load(fixture("generated-megatron", "mcore-0.16.0_dcp-2.9.1", "common.pt"), weights_only=False)
    loaded = torch.load(tmp_path / "x.pt", weights_only=False)
    assert common.keys() <= loaded.keys() and loaded["iteration"] == common["iteration"]


def test_megatrons_common_state_of_a_plain_file(ckpt, tmp_path, single_process):
    from megatron.core import dist_checkpointing as mcore

    torch.save({"model": {"w": torch.ones(1 << 16)}, "iteration": 7, "list": [torch.ones(2), "x"], "rng": {"seed": 3}}, tmp_path / "a.pt")
    ckpt("convert", tmp_path / "a.pt", tmp_path / "out", "--to", "torch_dist", "--verify")
    assert mcore.load_common_state_dict(str(tmp_path / "out")) == {"iteration": 7, "list": [None, "x"], "rng": {"seed": 3}}
    assert torch.equal(mcore.load_plain_tensors(str(tmp_path / "out"))["model.w"], torch.ones(1 << 16))


def test_objects_that_share_and_hold_themselves(ckpt, tmp_path):
    shared = ["s"]
    loop = [shared]
    loop.append(loop)
    torch.save({"t": torch.ones(1), "twice": [shared, shared], "loop": loop}, tmp_path / "a.pt")
    loaded = write(ckpt, tmp_path / "a.pt", tmp_path / "b.pt")
    assert loaded["twice"][0] is loaded["twice"][1] and loaded["loop"][1] is loaded["loop"]


@pytest.mark.parametrize("name", ["mcore-0.13.1_dcp-2.7.1", "mcore-0.19.0_dcp-2.9.1", "mcore-0.16.0_dcp-2.9.1"])
def test_megatron_common_state_and_objects_are_values(ckpt, tmp_path, name, single_process):
    import hashlib
    import json

    from conftest import FIXTURES, bits

    source = fixture("generated-megatron", name)
    ckpt("convert", source, tmp_path / "x.pt", "--to", "torch")
    loaded = torch.load(tmp_path / "x.pt", weights_only=False)
    expected = json.loads((FIXTURES / "generated-megatron" / "manifest.json").read_text())["checkpoints"][name]
    for key, facts in expected["tensors"].items():
        facts = facts.get("logical", facts)
        assert hashlib.sha256(bits(loaded[key])).hexdigest() == facts["sha256"], key
    assert "iteration" in loaded and any(k.startswith("rng_state/shard_") for k in loaded)


def test_what_has_another_name_lies_at_the_top(ckpt, tmp_path):
    dcp.save(state(), checkpoint_id=tmp_path / "src", no_dist=True)
    loaded = write(ckpt, tmp_path / "src", tmp_path / "x.pt", "--rename", r"^model\.scalar$=s", "--include", "model.scalar", "--tensors-only")
    assert loaded.keys() == {"s"} and loaded["s"] == 3.5


def test_folders_get_model_pt(ckpt, tmp_path):
    torch.save({"a": torch.ones(3)}, tmp_path / "a.pt")
    ckpt("convert", tmp_path / "a.pt", tmp_path / "out", "--to", "torch")
    assert torch.equal(torch.load(tmp_path / "out/model.pt")["a"], torch.ones(3))


def test_complex32_is_refused_where_no_reader_knows_it(ckpt, tmp_path):
    torch.save({"c": torch.zeros(2, dtype=torch.complex32), "w": torch.ones(2)}, tmp_path / "a.pt")
    assert "c: complex32" in ckpt("convert", tmp_path / "a.pt", tmp_path / "z", "--to", "zarr3", code=6).stderr
    ckpt("convert", tmp_path / "a.pt", tmp_path / "z", "--to", "zarr3", "--exclude", "c", "--verify")
