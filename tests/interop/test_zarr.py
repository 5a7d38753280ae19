"""zarr-python and torch write a Megatron zarr checkpoint, ckpt converts it, torch and Megatron-Core load it."""
import argparse
import io
import zipfile

import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader

import megatron_zarr
from conftest import load_tensors, same


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    root = tmp_path_factory.mktemp("zarr") / "src"
    return (root, *megatron_zarr.write(root))


@pytest.fixture(scope="module")
def converted(ckpt, source, tmp_path_factory):
    return ckpt.convert(source[0], tmp_path_factory.mktemp("converted") / "dst")


def equal(a, b):
    """Deep equality for what torch.load gives back."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and same(a, b)
    if isinstance(a, io.BytesIO):
        return a.getvalue() == b.getvalue()
    if isinstance(a, argparse.Namespace):
        return equal(vars(a), vars(b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return a == b


def check(folder, tensors):
    loaded = load_tensors(folder)
    assert loaded.keys() == tensors.keys()
    for key, tensor in tensors.items():
        assert same(loaded[key], tensor), key


def test_torch_loads_every_tensor_bit_for_bit(converted, source):
    check(converted, source[1])


@pytest.mark.parametrize("options", [["--shard-size", "1000"], ["--shard-size", "64KiB", "-j", "4", "--files", "5"], ["--shard-size", "1GiB"]])
def test_torch_loads_regridded_tensors(ckpt, source, tmp_path, options):
    check(ckpt.convert(source[0], tmp_path / "dst", *options), source[1])


def test_files_beside_the_arrays_are_named_and_locks_are_none(ckpt, source, tmp_path):
    """KEY.sync: what the writer of zarr's arrays locked them with."""
    assert any(path.name.endswith(".sync") for path in source[0].iterdir())
    assert ckpt.json("convert", source[0], tmp_path / "dst", "--to", "torch_dist", "-n")["siblings"] == []
    (source[0] / "meta.yaml").write_text("a: 1")
    try:
        assert ckpt.json("convert", source[0], tmp_path / "dst", "--to", "torch_dist", "-n")["siblings"] == ["meta.yaml"]
    finally:
        (source[0] / "meta.yaml").unlink()


def test_shards_keep_the_source_grid_or_the_size_asked_for(ckpt, converted, source, tmp_path):
    chunks = FileSystemReader(converted).read_metadata().state_dict_metadata["large.weight"].chunks
    assert [tuple(c.sizes) for c in chunks] == [(350, 1024)] * 2
    again = ckpt.convert(source[0], tmp_path / "dst", "--shard-size", "1MiB")
    chunks = FileSystemReader(again).read_metadata().state_dict_metadata["large.weight"].chunks
    assert [tuple(c.sizes) for c in chunks] == [(256, 1024), (256, 1024), (188, 1024)]


def test_the_output_does_not_depend_on_the_workers(ckpt, source, tmp_path):
    one = ckpt.convert(source[0], tmp_path / "one", "-j", "1", "--files", "7")
    four = ckpt.convert(source[0], tmp_path / "four", "-j", "4", "--files", "7")
    names = sorted(p.name for p in one.iterdir())
    assert names == sorted(p.name for p in four.iterdir()) and len(names) == 10
    for name in names:
        assert (one / name).read_bytes() == (four / name).read_bytes(), name


def test_every_item_is_an_archive_whose_checksums_hold(converted):
    metadata = FileSystemReader(converted).read_metadata()
    assert len(metadata.storage_data) > 60
    for index, info in metadata.storage_data.items():
        raw = (converted / info.relative_path).read_bytes()[info.offset : info.offset + info.length]
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            assert archive.testzip() is None, index
            assert "version" in {name.split("/", 1)[1] for name in archive.namelist()}


def test_common_state_is_copied_byte_for_byte(converted, source):
    assert (converted / "common.pt").read_bytes() == (source[0] / "common.pt").read_bytes()


def test_megatron_lists_loads_and_reassembles(converted, source, single_process):
    from megatron.core import dist_checkpointing as mcore
    from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor

    _, tensors, objects, common = source
    folder = str(converted)
    assert mcore.check_is_distributed_checkpoint(folder)
    listed = mcore.load_tensors_metadata(folder)
    assert {k: (v.dtype, v.global_shape) for k, v in listed.items()} == {k: (t.dtype, tuple(t.shape)) for k, t in tensors.items()}
    assert equal(mcore.load_common_state_dict(folder), common)
    plain = mcore.load_plain_tensors(folder)
    for key, tensor in tensors.items():
        assert same(plain[key], tensor), key

    # As training loads: shards of two tensor-parallel ranks, layers in front, objects by their place.
    wanted = {}
    for rank in range(2):
        half = torch.empty(32, 32, dtype=torch.bfloat16)
        wanted[f"embedding{rank}"] = ShardedTensor.from_rank_offsets("embedding.word_embeddings.weight", half, (0, rank, 2))
        for layer in range(3):
            part, place = torch.empty(24, 32, dtype=torch.bfloat16), ((0, layer, 3), (1, rank, 2))
            wanted[f"layer{layer}.{rank}"] = ShardedTensor.from_rank_offsets("decoder.layers.mlp.linear_fc1.weight", part, *place, prepend_axis_num=1)
    for i, (key, offset, shape) in enumerate(objects):
        wanted[f"object{i}"] = ShardedObject(key, None, shape, offset)
    loaded = mcore.load(wanted, folder)
    for rank in range(2):
        assert same(loaded[f"embedding{rank}"], tensors["embedding.word_embeddings.weight"][32 * rank : 32 * rank + 32])
        for layer in range(3):
            rows = tensors["decoder.layers.mlp.linear_fc1.weight"][layer, 24 * rank : 24 * rank + 24]
            assert same(loaded[f"layer{layer}.{rank}"], rows)
    for i, value in enumerate(objects.values()):
        assert equal(loaded[f"object{i}"], value), i
    assert loaded["iteration"] == common["iteration"]


def test_include_and_exclude_choose_keys(ckpt, source, tmp_path):
    report = ckpt.json("convert", source[0], tmp_path / "dst", "--to", "torch_dist", "--include", "optimizer.**", "--exclude", "**.bucket_idx_0.*")
    kept = {k for k in source[1] if k.startswith("optimizer.") and "bucket_idx" not in k}
    assert load_tensors(tmp_path / "dst").keys() == kept
    assert report["tensors"] == 3 and report["excluded"] == len(source[1]) + len(source[2]) - 3


def test_the_hand_written_demo_checkpoint_loads(ckpt, tmp_path, single_process):
    import subprocess
    import sys
    from conftest import SOURCE
    from megatron.core import dist_checkpointing as mcore
    from megatron.core.dist_checkpointing.mapping import ShardedObject

    subprocess.run([sys.executable, SOURCE / "tests/support/make_megatron_zarr.py", tmp_path / "src", "--mib", "16"], check=True)
    folder = ckpt.convert(tmp_path / "src", tmp_path / "dst")
    tensors = load_tensors(folder)
    name = "decoder.layers.mlp.linear_fc1.weight"
    layers, rows, columns = tensors[name].shape
    shard = (tmp_path / "src" / name / "1.1.0").read_bytes()
    assert tensors[name][1, rows // 2 :].contiguous().view(torch.uint8).numpy().tobytes() == shard
    state = mcore.load({"rng": ShardedObject("rng_state", None, (1, 2), (0, 1))}, str(folder), validate_access_integrity=False)
    assert state["rng"]["random_rng_state"] == (3, 1, None) and state["rng"]["torch_rng_state"].shape == (5056,)
    assert state["args"].params_dtype == torch.bfloat16 and state["iteration"] == 100
