"""Checkpoints of a few tensors, made with the standard library alone."""
import json
import os
import struct
import zipfile


def floats(count, first=0.0):
    return struct.pack(f"<{count}f", *[first + i for i in range(count)])


def safetensors(path, tensors):
    """tensors: name -> (dtype as in the header, shape, bytes)"""
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text + data)


def zarr_array(folder, shape, chunks, raw, compressor=None):
    """A Zarr 2 array of <f4 in one chunk file, or in those that `raw` (a dict) names."""
    os.makedirs(folder)
    with open(os.path.join(folder, ".zarray"), "w") as stream:
        json.dump({"zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": "<f4", "compressor": compressor,
                   "filters": None, "fill_value": None, "order": "C"}, stream)
    for name, data in (raw if isinstance(raw, dict) else {".".join("0" * len(shape)): raw}).items():
        with open(os.path.join(folder, name), "wb") as stream:
            stream.write(data)


def npy(descr, shape, body):
    head = repr({"descr": descr, "fortran_order": False, "shape": tuple(shape)}).encode()
    head += b" " * (-(len(head) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + body


def npz(path, arrays, method=zipfile.ZIP_STORED):
    """arrays: name -> content of a .npy file"""
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in arrays.items():
            archive.writestr(name + ".npy", content)


# --- pickles as torch.save writes them, protocol 2 -----------------------------------------------------------------------
def name(module, attribute):
    return b"c" + module.encode() + b"\n" + attribute.encode() + b"\n"


def text(value):
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def numbers(values):
    return b"(" + b"".join(b"J" + struct.pack("<i", n) for n in values) + b"t"


def pairs(entries):
    """A dict of text to pickled values."""
    return b"}(" + b"".join(text(key) + value for key, value in entries.items()) + b"u"


def storage(key, count):
    return b"(" + text("storage") + name("torch", "FloatStorage") + text(key) + text("cpu") + b"J" + struct.pack("<i", count) + b"tQ"


def tensor(key, shape, function="_rebuild_tensor_v2", offset=0):
    """A row-major float32 tensor over a storage of its own."""
    count, stride = 1, []
    for length in reversed(shape):
        stride.insert(0, count)
        count *= length
    return (name("torch._utils", function) + b"(" + storage(key, count) + b"J" + struct.pack("<i", offset) + numbers(shape) + numbers(stride) +
            b"\x89" + name("collections", "OrderedDict") + b")RtR")


def torch_save(path, state, storages):
    """state: name -> pickled value; storages: key -> bytes"""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + pairs(state) + b".")
        for key, raw in storages.items():
            archive.writestr("archive/data/" + key, raw)
        archive.writestr("archive/version", "3\n")


def sharded_tensor(shards, shape):
    """FSDP1's ShardedTensor. shards: (pickled tensor, offsets, sizes) of this rank."""
    api = "torch.distributed._shard.sharded_tensor"
    def object_of(module, attribute, state):
        return name(module, attribute) + b")\x81" + state + b"b"
    def slots(entries):
        return b"(N" + pairs(entries) + b"t"
    def shard(value, offsets, sizes):
        place = object_of("torch.distributed._shard.metadata", "ShardMetadata", slots({"shard_offsets": numbers(offsets), "shard_sizes": numbers(sizes)}))
        return object_of(api + ".shard", "Shard", slots({"tensor": value, "metadata": place}))
    local = b"](" + b"".join(shard(*one) for one in shards) + b"e"
    whole = object_of(api + ".metadata", "ShardedTensorMetadata", pairs({"size": numbers(shape)}))
    state = b"(" + local + whole + b"NNNt"
    return (name("torch._tensor", "_rebuild_from_type_v2") + b"(" + name("torch._utils", "_rebuild_wrapper_subclass") +
            name(api + ".api", "ShardedTensor") + b"(t" + state + b"tR")
