"""What inspect, cat and load-metadata say, against torch, numpy and Megatron-Core on the same files."""
import io
import json
import subprocess

import ml_dtypes
import numpy
import pytest
import torch
import torch.distributed.checkpoint as dcp

from conftest import CKPT, FIXTURES, bits, fixture

FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool]
COMPLEX = [torch.complex64, torch.complex128]


def name(dtype):
    return str(dtype).removeprefix("torch.")


@pytest.fixture(scope="module")
def tensors():
    torch.manual_seed(3)
    out = {name(d): torch.arange(256, dtype=torch.uint8).repeat(9).view(d) for d in FLOAT8}
    for dtype in FLOATS:
        values = torch.randn(70, 90, dtype=torch.float64).to(dtype)
        values[3, 5], values[6, 1], values[6, 2], values[0, 0] = float("nan"), float("inf"), -float("inf"), 0
        out[name(dtype)] = values
    out |= {name(d): torch.randint(0, 2 if d == torch.bool else 100, (70, 90)).to(d) for d in INTEGERS}
    out |= {name(d): torch.randn(50, 7, dtype=d) for d in COMPLEX}
    return out


def check(stats, tensor):
    values = (tensor.abs() if tensor.is_complex() else tensor.float() if tensor.element_size() == 1 else tensor).to(torch.float64).flatten()
    finite = values[torch.isfinite(values)]
    assert (stats["nan"], stats["inf"], stats["zeros"]) == (int(values.isnan().sum()), int(values.isinf().sum()), int((values == 0).sum()))
    wanted = [finite.min(), finite.max(), finite.mean(), finite.std(correction=0)]
    near = 1e-6 if tensor.is_complex() else 1e-11
    assert [stats[k] for k in ("min", "max", "mean", "std")] == pytest.approx([float(x) for x in wanted], rel=near, abs=near * float(wanted[3]))


@pytest.mark.parametrize("form", ["torch_save", "dcp"])
def test_statistics_are_torchs_for_every_dtype(ckpt, tensors, tmp_path, form):
    if form == "torch_save":
        torch.save(tensors, tmp_path / "x.pt")
    else:
        dcp.save(tensors, checkpoint_id=tmp_path / "x.pt", no_dist=True)
    listed = {t["key"]: t for t in ckpt.json("inspect", tmp_path / "x.pt", "--stats")["tensors"]}
    assert listed.keys() == tensors.keys()
    for key, tensor in tensors.items():
        assert listed[key]["dtype"] == key
        check(listed[key]["stats"], tensor)


def test_cat_gives_numpy_every_dtype(tensors, tmp_path):
    torch.save(tensors, tmp_path / "x.pt")
    for key, tensor in tensors.items():
        raw = subprocess.run([CKPT, "cat", tmp_path / "x.pt", key, "--npy"], capture_output=True, check=True).stdout
        array = numpy.load(io.BytesIO(raw))
        assert array.tobytes() == bits(tensor) and array.shape == tuple(tensor.shape), key
        if key == "bfloat16":
            assert (array.view(ml_dtypes.bfloat16).astype("f4") == tensor.float().numpy()).sum() == tensor.numel() - 1  # NaN
        elif key == "float8_e5m2":
            numpy.testing.assert_array_equal(array.view(ml_dtypes.float8_e5m2).astype("f4"), tensor.float().numpy())
        elif array.dtype.kind != "V":
            numpy.testing.assert_array_equal(array, tensor.numpy())
        part = subprocess.run([CKPT, "cat", tmp_path / "x.pt", key, "--slice", "3:-2"], capture_output=True, check=True).stdout
        assert part == bits(tensor[3:-2]), key


def test_a_trained_models_moments_are_found_by_name(ckpt, tmp_path):
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(5, 4)).sum().backward()
    optimizer.step()
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optim": state}, checkpoint_id=tmp_path / "x", no_dist=True)
    document = ckpt.json("inspect", tmp_path / "x", "--group-by", "param")
    groups = {g["name"]: g for g in document["groups"]}
    assert groups.keys() == {"model." + n for n, _ in model.named_parameters()}
    assert all(g["states"].keys() >= {"exp_avg", "exp_avg_sq"} for g in groups.values())
    assert document["findings"] == []
    del state["state"]["2.weight"]["exp_avg_sq"], state["state"]["0.bias"]
    dcp.save({"model": weights, "optim": state}, checkpoint_id=tmp_path / "dropped", no_dist=True)
    found = {f["key"]: f["message"] for f in ckpt.json("inspect", tmp_path / "dropped", "--group-by", "param")["findings"]}
    assert found.keys() == {"model.2.weight", "model.0.bias"} and "exp_avg_sq" in found["model.2.weight"]
    assert "model.2.weight" in ckpt("verify", tmp_path / "dropped").stdout
    ckpt("verify", tmp_path / "dropped", "--optimizer", code=1)


def test_a_difference_that_torch_makes_is_found(ckpt, tmp_path):
    one = {"a": torch.randn(300, 40), "b": torch.randn(10).to(torch.bfloat16)}
    two = {"a": one["a"] + 1e-4, "b": one["b"]}
    torch.save(one, tmp_path / "one.pt")
    dcp.save(two, checkpoint_id=tmp_path / "two", no_dist=True)
    row, = ckpt.json("inspect", tmp_path / "one.pt", "--diff", tmp_path / "two", code=1)["diff"]
    assert row["key"] == "a" and row["max_abs"] == pytest.approx(float((one["a"].double() - two["a"].double()).abs().max()))
    assert row["different"] == int((one["a"] != two["a"]).sum())
    ckpt("inspect", tmp_path / "one.pt", "--diff", tmp_path / "two", "--tolerance", "2e-4")


def test_compressed_chunks_are_counted_cut_and_compared(ckpt, tmp_path):
    import zarr

    values = numpy.random.default_rng(5).normal(0, 1, (301, 47)).astype("f4")
    for key, options in {"packed": {"chunks": (50, 9)}, "other": {"chunks": (64, 47)}, "plain": {"chunks": (301, 10), "compressor": None}}.items():
        zarr.open(str(tmp_path / key), mode="w", shape=values.shape, dtype="f4", fill_value=3, **options)[:] = values
    sparse = zarr.open(str(tmp_path / "sparse"), mode="w", shape=values.shape, chunks=(100, 47), dtype="f4", fill_value=3)
    sparse[:100] = values[:100]
    for key in ("packed", "plain", "other", "sparse"):
        tensor, = ckpt.json("inspect", tmp_path / key, "--stats")["tensors"]
        array = zarr.open(str(tmp_path / key), mode="r")[:]
        check(tensor["stats"], torch.from_numpy(array))
        raw = subprocess.run([CKPT, "cat", tmp_path / key, tensor["key"], "--slice", "45:260,3:-4"], capture_output=True, check=True).stdout
        assert raw == array[45:260, 3:-4].tobytes()
    for other, equal in (("plain", True), ("other", True), ("sparse", False)):
        # An array's key is its folder's name.
        same_name = tmp_path / f"with {other}" / "packed"
        same_name.parent.mkdir()
        (tmp_path / other).rename(same_name)
        document = ckpt.json("inspect", tmp_path / "packed", "--diff", same_name, code=0 if equal else 1)
        assert document["equal"] == equal and document["compared"] == 1
        assert equal or document["diff"][0]["different"] == 201 * 47


def megatron_checkpoints():
    path = FIXTURES / "generated-megatron" / "manifest.json"
    # torch_dist ones: the Megatron-Core that is installed reads no zarr any more.
    return [n for n in json.loads(path.read_text())["checkpoints"] if "zarr" not in n] if path.exists() else ["none"]


@pytest.mark.parametrize("checkpoint", megatron_checkpoints())
def test_load_metadata_is_what_megatron_gives(ckpt, tmp_path, checkpoint, single_process):
    from megatron.core import dist_checkpointing as mcore

    source = fixture("generated-megatron", checkpoint)
    # Through convert: with flattened shapes undone, in the form that the release reads that is installed.
    folder = ckpt.convert(source, tmp_path / "x", "--mcore", "0.16")
    for path in (source, folder, ckpt.convert(source, tmp_path / "as stored")):
        listed = {t["key"]: (t["dtype"], t["shape"]) for t in ckpt.json("load-metadata", path)["tensors"]}
        wanted = {k: (name(t.dtype), list(t.global_shape)) for k, t in mcore.load_tensors_metadata(str(folder)).items()}
        assert listed == wanted
    document = ckpt.json("load-metadata", folder, "--common")
    common = mcore.load_common_state_dict(str(folder))
    assert document["common"].keys() == common.keys()
    assert mcore.load_plain_tensors(str(folder)).keys() == {t["key"] for t in document["tensors"]} | common.keys()
