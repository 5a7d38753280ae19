"""Every checkpoint of the fixtures: converted, loaded by torch and Megatron-Core, compared with the fixtures' hashes."""
import hashlib
import json

import pytest
import torch

from conftest import FIXTURES, bits, fixture, load_tensors

GROUPS = ["generated-megatron", "generated-dcp", "lightning-dcp-torch2.0"]


def checkpoints():
    for group in GROUPS:
        path = FIXTURES / group / "manifest.json"
        if not path.exists():
            yield pytest.param(group, None, id=group)
            continue
        for name in json.loads(path.read_text())["checkpoints"]:
            yield pytest.param(group, name, id=f"{group}/{name}")


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def facts_of(group, name):
    return json.loads((FIXTURES / group / "manifest.json").read_text())["checkpoints"][name]["tensors"]


def check(loaded, expected):
    assert loaded.keys() == expected.keys()
    for key, facts in expected.items():
        tensor = loaded[key]
        assert str(tensor.dtype) == "torch." + facts["dtype"], key
        assert list(tensor.shape) == facts["shape"], key
        assert sha256(bits(tensor)) == facts["sha256"], key


def logical(expected):
    """With the rows of Megatron Core 0.8 to 0.15 undone."""
    return {key: facts.get("logical", facts) for key, facts in expected.items()}


@pytest.mark.parametrize("group,name", checkpoints())
def test_converted_tensors_have_the_hashes_of_the_manifest(ckpt, tmp_path, group, name):
    """As they are stored: rows stay rows, cut as they were, and ckpt says so."""
    source = fixture(group, name or "manifest.json")
    expected = facts_of(group, name)
    done = ckpt("convert", source, tmp_path / "dst", "--to", "torch_dist")
    check(load_tensors(tmp_path / "dst"), expected)
    rows = [key for key, facts in expected.items() if "logical" in facts]
    assert (f"{len(rows)} optimizer tensors stay rows" in done.stderr) == bool(rows)
    ckpt("verify", tmp_path / "dst")


@pytest.mark.parametrize("options", [[], ["--shard-size", "96"]], ids=["shards as stored", "regridded"])
@pytest.mark.parametrize("group,name", checkpoints())
def test_tensors_without_rows_have_the_logical_hashes_of_the_manifest(ckpt, tmp_path, group, name, options):
    source = fixture(group, name or "manifest.json")
    ckpt.convert(source, tmp_path / "dst", "--mcore", "0.16", *options)
    check(load_tensors(tmp_path / "dst"), logical(facts_of(group, name)))
    ckpt("verify", tmp_path / "dst")


def without_rows(tensor, shape):
    """(fragments of each axis, elements of a fragment): what Megatron's reformulation undoes."""
    counts = tensor.shape[:-1]
    fragment = [length // count for length, count in zip(shape, counts)]
    axes = len(shape)
    order = [axis for i in range(axes) for axis in (i, axes + i)]
    return tensor.reshape(*counts, *fragment).permute(order).reshape(shape)


@pytest.mark.parametrize("group,name", checkpoints())
def test_tensors_cut_anew_keep_what_the_manifest_hashes(ckpt, tmp_path, group, name):
    """Without --mcore: rows of the new shards where the source has rows, and a refusal where the shards are not equal."""
    source = fixture(group, name or "manifest.json")
    expected = facts_of(group, name)
    rows = {key for key, facts in expected.items() if "logical" in facts}
    if not rows:
        check(load_tensors(ckpt.convert(source, tmp_path / "dst", "--shard-size", "96")), expected)
        return
    said = ckpt("convert", source, tmp_path / "dst", "--to", "torch_dist", "--shard-size", "96", code=2).stderr
    assert "is not cut into equal shards" in said and "--shard-grid" in said and "--mcore 0.16" in said
    assert any(key + ": " in said for key in rows) and list(tmp_path.iterdir()) == []
    loaded = load_tensors(ckpt.convert(source, tmp_path / "dst", "--shard-grid", "**.weight=4"))
    wanted = logical(expected)
    for key in rows:
        counts, shape = loaded[key].shape[:-1], wanted[key]["shape"]
        assert counts[0] == 4 and len(counts) == len(shape), key
        loaded[key] = without_rows(loaded[key], shape)
    check(loaded, wanted)
    ckpt("inspect", "--diff", source, tmp_path / "dst")


@pytest.mark.parametrize("group,name", checkpoints())
def test_objects_of_a_torch_checkpoint_are_carried_byte_for_byte(ckpt, tmp_path, group, name):
    source = fixture(group, name or "manifest.json")
    if "zarr" in name or "zstd" in name:
        pytest.skip("stored in another form there")
    from torch.distributed.checkpoint import FileSystemReader

    ckpt.convert(source, tmp_path / "dst")
    expected = json.loads((FIXTURES / group / "manifest.json").read_text())["checkpoints"][name]["objects"]
    places = {i.fqn: p for i, p in FileSystemReader(tmp_path / "dst").read_metadata().storage_data.items() if not getattr(i, "offset", None)}
    for key, facts in expected.items():
        if key == "common_state/shard_0_1":
            continue
        place = places[key]
        raw = (tmp_path / "dst" / place.relative_path).read_bytes()[place.offset : place.offset + place.length]
        assert sha256(raw) == facts["sha256"], key


MEGATRON = [p for p in checkpoints() if p.values[0] == "generated-megatron"]


@pytest.mark.parametrize("group,name", MEGATRON)
def test_megatron_loads_the_objects_and_the_common_state(ckpt, tmp_path, group, name, single_process):
    from megatron.core import dist_checkpointing as mcore
    from megatron.core.dist_checkpointing.mapping import ShardedObject

    source = fixture(group, name or "manifest.json")
    ckpt.convert(source, tmp_path / "dst")
    extra = "decoder.layers.self_attention.core_attention._extra_state"
    wanted = {f"rng{i}": ShardedObject("rng_state", None, (1, 2), (0, i)) for i in range(2)}
    if (source / extra).exists() or "0.16" not in name and "0.19" not in name:
        wanted |= {f"extra{i}": ShardedObject(extra, None, (3,), (i,)) for i in range(3)}
    loaded = mcore.load(wanted, str(tmp_path / "dst"))
    assert all(value is not None for value in loaded.values())
    common = mcore.load_common_state_dict(str(tmp_path / "dst"))
    assert type(common) is dict and len(common) > 3
    if (source / "common.pt").exists():
        assert (tmp_path / "dst/common.pt").read_bytes() == (source / "common.pt").read_bytes()
    else:
        assert common.keys() == common_of_another(name).keys()


def common_of_another(name):
    """0.19 keeps the common state as an object; 0.16's file of the same run has the same keys."""
    path = fixture("generated-megatron", "mcore-0.16.0_dcp-2.9.1", "common.pt")
    return torch.load(path, weights_only=False)
