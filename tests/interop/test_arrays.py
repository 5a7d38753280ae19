"""zarr-python 3, numpy and gguf write arrays in all the ways they have, in an environment of their own; what ckpt makes of
them is loaded by torch and compared with what was written, bit for bit."""
import json
import re
import subprocess

import pytest

from conftest import SOURCE, bits, load_tensors

HERE = SOURCE / "tests" / "interop"


@pytest.fixture(scope="session")
def python():
    return subprocess.run([HERE / "make_env.sh", "arrays"], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="session")
def arrays(python, tmp_path_factory):
    root = tmp_path_factory.mktemp("arrays")
    subprocess.run([python, HERE / "write_arrays.py", root], check=True)
    return root


def check(ckpt, source, expected, tmp_path):
    loaded = load_tensors(ckpt.convert(source, tmp_path / "dst"))
    assert loaded.keys() == expected.keys()
    for key, (dtype, shape, content) in expected.items():
        assert str(loaded[key].dtype) == f"torch.{dtype}" and list(loaded[key].shape) == shape, key
        assert bits(loaded[key]).hex() == content, key


@pytest.mark.parametrize("case", ["zarr_v2", "zarr_v2_consolidated", "zarr_v3", "zarr_v3_consolidated", "npy", "npz.npz", "npz_deflated.npz", "gguf.gguf"])
def test_every_array_comes_out_bit_for_bit(ckpt, arrays, tmp_path, case):
    source = arrays / case
    check(ckpt, source, json.loads((arrays / f"{source.stem}.json").read_text()), tmp_path)
    assert [f for f in ckpt.json("verify", source)["findings"] if f["severity"] != "warning"] == []


def test_gguf_metadata_and_types(ckpt, arrays):
    about = ckpt.json("load-metadata", arrays / "gguf.gguf")["metadata"]
    assert about["metadata"]["general.name"] == "tiny \u00e9" and about["metadata"]["x"] == 0.25
    assert about["metadata"]["tokenizer.ggml.tokens"] == {"elements": 5000, "first": [f"t{i}" for i in range(16)]}
    assert about["quantised"]["blk.Q6_K"] == "Q6_K"


def test_the_table_of_ggml_types_is_that_of_the_package(arrays):
    source = (SOURCE / "formats" / "gguf" / "header.cpp").read_text()
    ours = {number: [name, int(block), int(size)] for number, name, block, size in re.findall(r'\{(\d+), "(\w+)", (\d+), (\d+),', source)}
    assert ours == json.loads((arrays / "gguf_types.json").read_text())


@pytest.mark.parametrize("to, options", [("npy", []), ("zarr3", []), ("zarr3", ["--shard-size", "7KiB"]), ("zarr3", ["--shard-grid", "large=3x7"])])
@pytest.mark.parametrize("source", ["npz.npz", "zarr_v3"])
def test_numpy_and_zarr_python_read_what_is_written(ckpt, python, arrays, tmp_path, source, to, options):
    ckpt("convert", arrays / source, tmp_path / "dst", "--to", to, "--verify", *options)
    read = json.loads(subprocess.run([python, HERE / "read_arrays.py", to, tmp_path / "dst"], check=True, capture_output=True, text=True).stdout)
    assert read == json.loads((arrays / f"{source.split('.')[0]}.json").read_text())


def test_types_that_zarr_python_lacks_do_not_keep_it_from_the_others(ckpt, python, arrays, tmp_path):
    expected = json.loads((arrays / "npy.json").read_text())
    ckpt("convert", arrays / "npy", tmp_path / "zarr", "--to", "zarr3")
    read = json.loads(subprocess.run([python, HERE / "read_arrays.py", "zarr3", tmp_path / "zarr"], check=True, capture_output=True, text=True).stdout)
    assert read == {key: row for key, row in expected.items() if row[0] != "bfloat16"}
    check(ckpt, tmp_path / "zarr", expected, tmp_path)
