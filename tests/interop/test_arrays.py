"""zarr-python 3, numpy and gguf write arrays in all the ways they have, in an environment of their own; what ckpt makes of
them is loaded by torch and compared with what was written, bit for bit."""
import json
import subprocess

import pytest

from conftest import SOURCE, bits, load_tensors

HERE = SOURCE / "tests" / "interop"


@pytest.fixture(scope="session")
def arrays(tmp_path_factory):
    python = subprocess.run([HERE / "make_env.sh", "arrays"], check=True, capture_output=True, text=True).stdout.strip()
    root = tmp_path_factory.mktemp("arrays")
    subprocess.run([python, HERE / "write_arrays.py", root], check=True)
    return root


def check(ckpt, source, expected, tmp_path):
    loaded = load_tensors(ckpt.convert(source, tmp_path / "dst"))
    assert loaded.keys() == expected.keys()
    for key, (dtype, shape, content) in expected.items():
        assert str(loaded[key].dtype) == f"torch.{dtype}" and list(loaded[key].shape) == shape, key
        assert bits(loaded[key]).hex() == content, key


@pytest.mark.parametrize("case", ["zarr_v2", "zarr_v2_consolidated", "zarr_v3", "zarr_v3_consolidated"])
def test_zarr(ckpt, arrays, tmp_path, case):
    check(ckpt, arrays / case, json.loads((arrays / f"{case}.json").read_text()), tmp_path)
    assert ckpt.json("verify", arrays / case)["findings"] == []
