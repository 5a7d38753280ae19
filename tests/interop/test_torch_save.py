"""torch.save writes files of every kind; ckpt reads them, and torch loads what ckpt makes of them."""
import io
import subprocess
import sys

import pytest
import torch
import torch.distributed.checkpoint as dcp

from conftest import load_tensors, same
from megatron_zarr import random_tensor
from test_dcp import DTYPES

FORMS = {"zip": {}, "legacy": {"_use_new_zipfile_serialization": False}, "zip_p4": {"pickle_protocol": 4},
         "legacy_p4": {"_use_new_zipfile_serialization": False, "pickle_protocol": 4}}


def views():
    base = random_tensor((20, 30), torch.float32, 1)
    deep = random_tensor((3, 4, 5, 6), torch.bfloat16, 2)
    signal = random_tensor((7, 9), torch.uint8, 3).to(torch.float32)
    complex_ = torch.complex(signal, signal.flip(0))
    return {
        "base": base, "transposed": base.t(), "sliced": base[::2, 3:17], "column": base[:, 5], "one": base[3, 4], "narrow": base.narrow(0, 5, 9),
        "expanded": random_tensor((5, 1), torch.int16, 4).expand(5, 4), "permuted": deep.permute(2, 0, 3, 1), "tied": base,
        "overlapping": torch.arange(10.0).unfold(0, 4, 2), "empty": torch.empty(0, 4), "scalar": torch.tensor(2.5), "of_empty": torch.empty(3, 0).t(),
        "conjugated": complex_.conj(), "negated": complex_.clone().conj().imag, "conjugate_transposed": complex_.mH, "diagonal": base.diagonal(),
        "channels_last": random_tensor((2, 3, 4, 5), torch.float32, 6).to(memory_format=torch.channels_last),
        "half_complex": random_tensor((4,), torch.complex32, 7), "bytes_of_floats": base.clone().view(torch.uint8), "bigger": random_tensor((400, 500), torch.float64, 8).t(),
    }


def convert(ckpt, source, folder):
    ckpt.convert(source, folder)
    return load_tensors(folder)


@pytest.mark.parametrize("form", FORMS)
def test_every_dtype(ckpt, tmp_path, form):
    state = {str(t).split(".")[1]: random_tensor((6, 4), t, i) for i, t in enumerate(DTYPES)}
    state["float4_e2m1fn_x2"] = random_tensor((6, 4), torch.uint8, 50).view(torch.float4_e2m1fn_x2)
    torch.save(state, tmp_path / "x.pt", **FORMS[form])
    loaded = convert(ckpt, tmp_path / "x.pt", tmp_path / "out")
    assert loaded.keys() == state.keys()
    for key, tensor in state.items():
        assert loaded[key].dtype == tensor.dtype and torch.equal(loaded[key].view(torch.uint8), tensor.view(torch.uint8)), key


@pytest.mark.parametrize("form", FORMS)
def test_views_and_shared_storages(ckpt, tmp_path, form):
    torch.save(views(), tmp_path / "x.pt", **FORMS[form])
    loaded = convert(ckpt, tmp_path / "x.pt", tmp_path / "out")
    assert loaded.keys() == views().keys()
    for key, tensor in views().items():
        assert same(loaded[key], tensor.resolve_conj().resolve_neg()), key
    shared = ckpt.json("load-metadata", tmp_path / "x.pt")["metadata"]["shared"]
    assert any({"base", "tied", "transposed"} <= set(group) for group in shared)
    ckpt("verify", tmp_path / "x.pt")


@pytest.mark.parametrize("form", FORMS)
def test_quantised_tensors_are_carried_as_bytes_and_their_quantiser_is_told(ckpt, tmp_path, form):
    values = torch.linspace(-1, 1, 12).reshape(4, 3)
    scales, zeros = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0, 1, 2, 3])
    state = {
        "qint8": torch.quantize_per_tensor(values, 0.05, 3, torch.qint8), "quint8": torch.quantize_per_tensor(values, 0.02, 100, torch.quint8),
        "qint32": torch.quantize_per_tensor(values, 0.001, 0, torch.qint32),
        "channels": torch.quantize_per_channel(values, scales, zeros, 0, torch.qint8),
        "packed": torch.quantize_per_channel(values, scales, zeros.to(torch.float32), 0, torch.quint4x2),
    }
    torch.save(state, tmp_path / "x.pt", **FORMS[form])
    loaded = convert(ckpt, tmp_path / "x.pt", tmp_path / "out")
    for key in ("qint8", "quint8", "qint32", "channels"):
        assert same(loaded[key], state[key].int_repr()), key
    assert loaded["packed"].dtype == torch.uint8 and loaded["packed"].numel() == state["packed"].untyped_storage().nbytes()
    assert bytes(loaded["packed"].tolist()) == bytes(state["packed"].untyped_storage().tolist())
    assert same(loaded["channels.scales"], state["channels"].q_per_channel_scales())
    assert same(loaded["channels.zero_points"], state["channels"].q_per_channel_zero_points())
    document = ckpt.json("load-metadata", tmp_path / "x.pt")
    facts = document["metadata"]["carried"]
    assert facts["qint8"] == {"dtype": "torch.qint8", "quantiser": ["torch.per_tensor_affine", 0.05, 3]}
    assert facts["packed"]["shape"] == [4, 3]
    assert sum("is handed out as" in w for w in document["warnings"]) == 5


def test_bits_are_carried_as_bytes(ckpt, tmp_path):
    raw = random_tensor((8,), torch.uint8, 9)
    names = ["bits8", "bits1x8", "bits2x4", "bits4x2"]
    torch.save({n: raw.view(getattr(torch, n)) for n in names} | {"bits16": raw.view(torch.bits16)}, tmp_path / "x.pt")
    loaded = convert(ckpt, tmp_path / "x.pt", tmp_path / "out")
    for name in names + ["bits16"]:
        assert torch.equal(loaded[name].view(torch.uint8), raw), name


def test_sparse_and_nested_tensors_come_apart(ckpt, tmp_path):
    dense = torch.tensor([[0.0, 1.0, 0.0], [2.0, 0.0, 3.0]])
    jagged = torch.nested.nested_tensor([torch.ones(2, 3), torch.zeros(1, 3)])
    state = {"coo": dense.to_sparse(), "csr": dense.to_sparse_csr(), "csc": dense.to_sparse_csc(), "nested": jagged}
    torch.save(state, tmp_path / "x.pt")
    loaded = convert(ckpt, tmp_path / "x.pt", tmp_path / "out")
    back = torch.sparse_coo_tensor(loaded["coo.indices"], loaded["coo.values"], (2, 3)).to_dense()
    assert torch.equal(back, dense)
    assert torch.equal(torch.sparse_csr_tensor(loaded["csr.crow_indices"], loaded["csr.col_indices"], loaded["csr.values"]).to_dense(), dense)
    assert torch.equal(torch.sparse_csc_tensor(loaded["csc.ccol_indices"], loaded["csc.row_indices"], loaded["csc.values"]).to_dense(), dense)
    assert torch.equal(loaded["nested.sizes"], torch.tensor([[2, 3], [1, 3]]))
    assert loaded["nested.values"].numel() == 9
    warnings = ckpt.json("load-metadata", tmp_path / "x.pt")["warnings"]
    assert any("coo: a torch.sparse_coo tensor of shape [2, 3], taken apart" in w for w in warnings)


class Wrapped(torch.Tensor):
    """As torchao's quantised tensors: no storage of its own, two tensors inside."""

    @staticmethod
    def __new__(cls, inner, scale):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=torch.float32)

    def __init__(self, inner, scale):
        self.inner, self.scale = inner, scale

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(func)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)])


def test_subclasses_and_modules(ckpt, tmp_path):
    parameter = torch.nn.Parameter(torch.ones(2, 2))
    parameter.tag = "kept by nobody"
    wrapped = Wrapped(torch.arange(6, dtype=torch.int8).reshape(2, 3), torch.tensor(0.5))
    net = Net()
    torch.save({"p": parameter, "w": wrapped, "net": net, "buffer": torch.nn.Buffer(torch.ones(3)),
                "set": {1, 2}, ("a", 1): torch.zeros(2), 7: torch.ones(1)}, tmp_path / "x.pt")
    loaded = convert(ckpt, tmp_path / "x.pt", tmp_path / "out")
    assert torch.equal(loaded["p"], torch.ones(2, 2)) and torch.equal(loaded["buffer"], torch.ones(3))
    assert torch.equal(loaded["w.inner"], torch.arange(6, dtype=torch.int8).reshape(2, 3)) and loaded["w.scale"] == 0.5
    assert torch.equal(loaded["(a, 1)"], torch.zeros(2)) and torch.equal(loaded["7"], torch.ones(1))
    for key, value in net.state_dict().items():
        assert same(loaded["net." + key], value), key
    warnings = "\n".join(ckpt.json("load-metadata", tmp_path / "x.pt")["warnings"])
    assert "Wrapped, taken apart" in warnings and "Net" in warnings


def test_a_dtensor_is_its_local_part(ckpt, tmp_path):
    script = f"""
import os, torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
mesh = init_device_mesh("cpu", (1,))
torch.save({{"w": distribute_tensor(torch.arange(12.).reshape(3, 4), mesh, [Shard(0)])}}, {str(tmp_path / 'x.pt')!r})
os._exit(0)  # not through Gloo's destructor: see conftest.as_two_processes
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True)
    loaded = convert(ckpt, tmp_path / "x.pt", tmp_path / "out")
    assert torch.equal(loaded["w._local_tensor"], torch.arange(12.0).reshape(3, 4))
    assert any("DTensor" in w for w in ckpt.json("load-metadata", tmp_path / "x.pt")["warnings"])


def test_what_is_no_state_dict_is_refused_by_name(ckpt, tmp_path):
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "script.pt")
    assert "TorchScript" in ckpt("inspect", tmp_path / "script.pt", code=6).stderr
    import tarfile

    with tarfile.open(tmp_path / "tar.pt", "w", format=tarfile.USTAR_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo("sys_info"), io.BytesIO(b""))
    assert "tar" in ckpt("inspect", tmp_path / "tar.pt", code=6).stderr
    (tmp_path / "old.pt").write_bytes(b"PYTORCH1" + bytes(64))
    assert "preview" in ckpt("inspect", tmp_path / "old.pt", code=6).stderr


def of_a_big_endian_machine(state, folder):
    """torch.save's file of a big-endian machine: the records say so and hold swapped bytes."""
    import zipfile

    torch.save(state, folder / "little.pt")
    with zipfile.ZipFile(folder / "little.pt") as source, zipfile.ZipFile(folder / "big.pt", "w") as target:
        for name in source.namelist():
            data = source.read(name)
            if name.endswith("/byteorder"):
                data = b"big"
            if "/data/" in name:
                width = 4 if len(data) != 5 else 1
                data = b"".join(data[i : i + width][::-1] for i in range(0, len(data), width))
            target.writestr(name, data)
    return folder / "big.pt"


def test_big_endian_files(ckpt, tmp_path):
    state = {"f": torch.arange(6.0).reshape(2, 3), "c": torch.complex(torch.arange(3.0), -torch.arange(3.0)), "b": torch.arange(5, dtype=torch.uint8)}
    big = of_a_big_endian_machine(state | {"epoch": 3, "names": ["x", "y"]}, tmp_path)
    expected = torch.load(big)
    ckpt("verify", big)
    for form in ("torch_dist", "dcp"):
        ckpt("convert", big, tmp_path / form, "--to", form, "--verify")
        loaded = load_tensors(tmp_path / form)
        assert loaded.keys() == state.keys()
        for key, value in state.items():
            assert same(expected[key], value) and same(loaded[key], value), key
    assert torch.load(tmp_path / "torch_dist" / "common.pt", weights_only=True) == {"epoch": 3, "names": ["x", "y"]}
    rest = {"epoch": 0, "names": ["", ""]}
    dcp.load(rest, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert rest == {"epoch": 3, "names": ["x", "y"]}


class Pair:
    """A value that is no tensor and holds some: it is carried, not taken apart."""

    def __init__(self, *tensors):
        self.tensors = tensors

    def __reduce__(self):
        return slice, self.tensors


def test_values_with_tensors_in_big_endian_files(ckpt, tmp_path):
    floats, complex_, bytes_ = torch.arange(6.0), torch.complex(torch.arange(3.0), -torch.arange(3.0)), torch.arange(5, dtype=torch.uint8)
    big = of_a_big_endian_machine({"w": torch.ones(2), "pair": Pair(floats, complex_, bytes_)}, tmp_path)
    ckpt("convert", big, tmp_path / "out", "--to", "dcp")
    value = {"pair": None}
    dcp.load(value, checkpoint_id=tmp_path / "out", no_dist=True)
    for got, wanted in zip((value["pair"].start, value["pair"].stop, value["pair"].step), (floats, complex_, bytes_)):
        assert same(got, wanted)


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_sharded_tensor_of_fsdp1(ckpt, tmp_path, single_process, protocol):
    from torch.distributed._shard.sharded_tensor import Shard, init_from_local_shards

    whole = torch.arange(64.0).reshape(8, 8)
    torch.save({"w": init_from_local_shards([Shard.from_tensor_and_offsets(whole, [0, 0], 0)], 8, 8)}, tmp_path / "rank0.pt", pickle_protocol=protocol)
    ckpt("verify", tmp_path / "rank0.pt", "--strict")
    loaded = convert(ckpt, tmp_path / "rank0.pt", tmp_path / "out")
    assert loaded.keys() == {"w"} and same(loaded["w"], whole)


class Reaching:
    """getattr of what a sharded tensor has, beside the one class that its state names."""

    def __init__(self, *arguments):
        self.arguments = arguments

    def __reduce__(self):
        return getattr, self.arguments


@pytest.mark.parametrize("name", ["__init__", "_prepare_init", "local_shards", "ProcessGroupState.__init__"])
def test_getattr_of_a_sharded_tensor_is_dangerous(ckpt, tmp_path, name):
    from torch.distributed._shard.sharded_tensor import ShardedTensor

    torch.save({"w": torch.ones(2), "x": Reaching(ShardedTensor, "ProcessGroupState"), "y": Reaching(ShardedTensor, name)}, tmp_path / "x.pt")
    assert "getattr, which reaches into any object" in ckpt("verify", tmp_path / "x.pt", code=1).stdout
    assert "getattr" in ckpt("convert", tmp_path / "x.pt", tmp_path / "out", "--to", "torch_dist", code=1).stderr
    assert not (tmp_path / "out").exists()
