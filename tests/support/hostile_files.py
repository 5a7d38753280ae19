"""Checkpoints that mean harm, each small: what a reader must refuse, or get through within bounded time and memory.

`write_all(folder)` writes every one below `folder` and yields (name, path).
"""
import io
import json
import os
import pathlib
import struct
import zipfile
import zlib

DCP = "torch.distributed.checkpoint.metadata"
STORAGE = "torch.distributed.checkpoint.filesystem"
EVIL_NAMES = ["../evil", "/tmp/ckpt-evil", "a/../../evil", "..", ".", "", "nul\0byte", "\x1b]0;evil\x07", "line\nfeed", "x" * 300,
              "x" * 5000, "Name", "name", "NAME", "a\\b", "con", "\u202eevil", "a//b", "~/evil", "-rf", "$(touch evil)"]


# --- pickles ---------------------------------------------------------------------------------------------------------------
def text(value):
    raw = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(raw)) + raw


def number(value):
    if 0 <= value < 256:
        return b"K" + bytes([value])
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def numbers(values):
    return b"(" + b"".join(map(number, values)) + b"t"


def name(module, attribute):
    return b"c" + module.encode() + b"\n" + attribute.encode() + b"\n"


def record(module, attribute, **state):
    body = b"".join(text(key) + value for key, value in state.items())
    return name(module, attribute) + b")\x81}(" + body + b"ub"


def chunk(offsets, sizes):
    return record(DCP, "ChunkStorageMetadata", offsets=numbers(offsets), sizes=numbers(sizes))


def tensor(size, chunks):
    properties = name(DCP, "TensorProperties") + b")\x81(" + name("torch", "float32") + b"tb"
    return record(DCP, "TensorStorageMetadata", size=numbers(size), properties=properties, chunks=b"](" + b"".join(chunks) + b"e")


def place(path, offset=0, length=100):
    return record(STORAGE, "_StorageInfo", relative_path=text(path), offset=number(offset), length=number(length))


def index(key, offset):
    return record(DCP, "MetadataIndex", fqn=text(key), offset=numbers(offset))


def metadata(tensors, places):
    return (b"\x80\x02" + record(DCP, "Metadata", state_dict_metadata=b"}(" + b"".join(tensors) + b"u",
                                 storage_data=b"}(" + b"".join(places) + b"u") + b".")


def dcp(folder, pickle, data=b"\0" * 200):
    folder.mkdir()
    (folder / ".metadata").write_bytes(pickle)
    (folder / "__0_0.distcp").write_bytes(data)
    return folder


def one_tensor(size, chunks, path="__0_0.distcp", offset=0, length=100):
    return metadata([text("w") + tensor(size, [chunk(*c) for c in chunks])], [index("w", c[0]) + place(path, offset, length) for c in chunks])


def torch_tensor(shape, strides, count, key="0", offset=0):
    storage = b"(" + text("storage") + name("torch", "FloatStorage") + text(key) + text("cpu") + number(count) + b"tQ"
    return (name("torch._utils", "_rebuild_tensor_v2") + b"(" + storage + number(offset) + numbers(shape) + numbers(strides) + b"\x89" +
            name("collections", "OrderedDict") + b")RtR")


def torch_zip(path, pickle, storages=None, method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("a/data.pkl", pickle)
        for key, data in (storages or {}).items():
            archive.writestr("a/data/" + key, data)
        archive.writestr("a/version", "3\n")
    return path


# --- one folder of cases a format --------------------------------------------------------------------------------------------
def dcp_cases(root):
    for i, path in enumerate(["../outside", "/etc/passwd", "a/../../b", "x\0y", "x\ny", "", "."]):
        yield f"dcp-path-{i}", dcp(root / f"dcp-path-{i}", one_tensor([4], [([0], [4])], path))
    huge = 1 << 62
    yield "dcp-shape-overflow", dcp(root / "a1", one_tensor([huge, huge], [([0, 0], [huge, huge])]))
    yield "dcp-shape-huge", dcp(root / "a2", one_tensor([1 << 40], [([0], [1 << 40])]))
    yield "dcp-negative", dcp(root / "a3", one_tensor([-4], [([0], [-4])]))
    yield "dcp-range-overflow", dcp(root / "a4", one_tensor([4], [([0], [4])], offset=(1 << 63) - 1, length=(1 << 63) - 1))
    yield "dcp-overlapping-chunks", dcp(root / "a5", one_tensor([4], [([0], [4]), ([1], [3])]))
    yield "dcp-many-axes", dcp(root / "a6", one_tensor([1] * 65, [([0] * 65, [1] * 65)]))
    shared = b"](" + chunk([0], [1]) * 1000 + b"eq\x07"
    first = record(DCP, "TensorStorageMetadata", size=numbers([4]), properties=b"N", chunks=shared)
    others = [text(f"k{i}") + first.replace(shared, b"h\x07") for i in range(2000)]
    yield "dcp-shared-chunks", dcp(root / "a7", metadata([text("first") + first] + others, []))
    for key in EVIL_NAMES:
        path = root / f"dcp-name-{EVIL_NAMES.index(key)}"
        yield path.name, dcp(path, metadata([text(key) + tensor([0], [chunk([0], [0])])], [index(key, [0]) + place("__0_0.distcp")]))
    yield "dcp-deep-tuples", dcp(root / "a8", b"\x80\x02" + b")" + b"\x85" * 2_000_000 + b".")
    yield "dcp-deep-marks", dcp(root / "a9", b"\x80\x02" + b"(" * 2_000_000 + b".")
    yield "dcp-long-name", dcp(root / "a10", b"\x80\x02" + text("m" * (4 << 20)) + b"q\x01" + b"0h\x01h\x01\x93" * 200_000 + b"N.")
    yield "dcp-doubling", dcp(root / "a11", b"\x80\x02]" + b"".join(b"q%c](h%ch%ce" % (i, i, i) for i in range(100)) + b".")
    wide = (name(DCP, "MetadataIndex") + b")\x81}(" + text("fqn") + text("k") + b"".join(b"J" + struct.pack("<i", i) + b"N" for i in range(40_000)) + b"ub")
    yield "dcp-wide-index-again", dcp(root / "a16", metadata([], [wide + b"q\x01" + place("__0_0.distcp") + b"q\x02" + b"h\x01h\x02" * 50_000]))
    yield "dcp-cut-off", dcp(root / "a12", one_tensor([4], [([0], [4])])[:-40])
    link = dcp(root / "a13", one_tensor([4], [([0], [4])], "link"))
    (link / "link").symlink_to("/etc/passwd")
    yield "dcp-link", link
    folder = dcp(root / "a14", one_tensor([4], [([0], [4])], "to/passwd"))
    (folder / "to").symlink_to("/etc")
    yield "dcp-linked-folder", folder
    fifo = dcp(root / "a15", one_tensor([4], [([0], [4])], "pipe"))
    os.mkfifo(fifo / "pipe")
    yield "dcp-pipe", fifo


def torch_cases(root):
    good = b"\x80\x02}" + text("w") + torch_tensor([4], [1], 4) + b"s."
    data = {"0": b"\0" * 16}
    yield "pt-deflated", torch_zip(root / "deflated.pt", good, {"0": b"\0" * (64 << 20)}, zipfile.ZIP_DEFLATED)
    for i, (shape, strides, count) in enumerate([([1 << 62, 4], [1, 1], 4), ([1 << 40], [0], 4), ([4], [1 << 62], 4), ([4, 4], [-1, 1], 4),
                                                 ([4], [1], 1 << 60), ([100], [1], 4)]):
        yield f"pt-extent-{i}", torch_zip(root / f"extent{i}.pt", b"\x80\x02}" + text("w") + torch_tensor(shape, strides, count) + b"s.", data)
    yield "pt-cycle", torch_zip(root / "cycle.pt", b"\x80\x02]q\0h\0ah\0a.", data)
    doubling = b"\x80\x02]q\0" + b"".join(b"](h%ch%ceq%c" % (i, i, i + 1) for i in range(60)) + b"0" * 59 + b"."
    yield "pt-doubling", torch_zip(root / "doubling.pt", doubling, data)
    many = b"\x80\x02](" + torch_tensor([4], [1], 4) + b"q\x01" + b"h\x01" * 200_000 + b"e."
    yield "pt-repeated", torch_zip(root / "repeated.pt", many, data)
    bomb = b"(" + b"N" * 300 + b"tq\0" + b"".join(b"0(" + (b"h" + bytes([i - 1])) * 300 + b"tq" + bytes([i]) for i in range(1, 4))
    yield "pt-key-of-keys", torch_zip(root / "bomb.pt", b"\x80\x02}(" + bomb + b"K\x01u.", data)
    numbered = b"}(" + b"".join(b"J" + struct.pack("<i", i + 1000) + b"K\x01" for i in range(20_000)) + b"u"
    for size in (4000, 1 << 20):
        yield f"pt-key-of-{size}", torch_zip(root / f"key{size}.pt", b"\x80\x02}(" + text("a" * size) + numbered + b"u.", data)
    wide = b"]q\x01(" + b"](" + torch_tensor([4], [1], 4) + b"N" * 100_000 + b"eq\x02" + b"h\x02" * 100_000 + b"e"
    yield "pt-wide-list-again", torch_zip(root / "wide.pt", b"\x80\x02" + wide + b".", data)
    state = name("a", "B") + b")\x81}q\x01(" + text("w") + torch_tensor([4], [1], 4) + b"".join(b"J" + struct.pack("<i", i) + b"N" for i in range(50_000)) + b"ub"
    again = (name("a", "B") + b")\x81h\x01b") * 50_000
    yield "pt-wide-state-again", torch_zip(root / "state.pt", b"\x80\x02](" + state + again + b"e.", data)
    yield "pt-deep-lists", torch_zip(root / "lists.pt", b"\x80\x02" + b"]" * 300_000 + torch_tensor([4], [1], 4) + b"a" * 300_000 + b".", data)
    for i, key in enumerate(EVIL_NAMES):
        yield f"pt-name-{i}", torch_zip(root / f"name{i}.pt", b"\x80\x02}" + text(key) + torch_tensor([4], [1], 4) + b"s.", data)
    cased = b"\x80\x02}(" + b"".join(text(key) + torch_tensor([4], [1], 4) for key in ("Name", "name", "NAME")) + b"u."
    yield "pt-names-by-case", torch_zip(root / "cased.pt", cased, data)
    yield "pt-runs-a-command", torch_zip(root / "evil.pt", b"\x80\x02cos\nsystem\n" + text("touch evil") + b"\x85R.", data)
    twice = root / "twice.pt"
    with zipfile.ZipFile(twice, "w") as archive:
        for _ in range(2):
            archive.writestr("a/data.pkl", good)
    yield "pt-two-records-of-a-name", twice
    whole = torch_zip(root / "whole.pt", good, data).read_bytes()
    end = whole.rindex(b"PK\x05\x06")
    for i, (at, value) in enumerate([(end + 8, b"\xff\xff\xff\xff"), (end + 12, b"\xff\xff\xff\x7f"), (end + 16, b"\xff\xff\xff\x7f"), (6, b"\x01")]):
        path = root / f"zip{i}.pt"
        path.write_bytes(whole[:at] + value + whole[at + len(value):])
        yield f"pt-zip-{i}", path
    legacy = root / "legacy.pt"
    magic = b"\x80\x02\x8a\x0a" + (0x1950A86A20F9469CFC6C).to_bytes(10, "little") + b"."
    legacy.write_bytes(magic + b"\x80\x02M\xe9\x03." + b"\x80\x02}." + b"\x80\x02" + b")" + b"\x85" * 1_000_000 + b"." + b"\x80\x02].")
    yield "pt-legacy-deep", legacy


def safetensors_file(path, header, data=b"", length=None):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + data)
    return path


def safetensors_cases(root):
    entry = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
    yield "st-length", safetensors_file(root / "length.safetensors", b"{}", length=(1 << 63) + 1)
    yield "st-deep", safetensors_file(root / "deep.safetensors", b'{"a":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}")
    yield "st-overflow", safetensors_file(root / "overflow.safetensors", {"w": {**entry, "shape": [1 << 62, 1 << 62]}}, b"\0" * 16)
    yield "st-overlap", safetensors_file(root / "overlap.safetensors", {"v": entry, "w": entry}, b"\0" * 16)
    for i, key in enumerate(EVIL_NAMES):
        yield f"st-name-{i}", safetensors_file(root / f"name{i}.safetensors", {key: entry}, b"\0" * 16)
    cased = {key: {**entry, "data_offsets": [16 * i, 16 * i + 16]} for i, key in enumerate(("Name", "name", "NAME"))}
    yield "st-names-by-case", safetensors_file(root / "cased.safetensors", cased, b"\0" * 48)
    info = '{"w": {"saved_offsets": %s}}' % ("[" * 100_000 + "]" * 100_000)
    yield "st-sharding-deep", safetensors_file(root / "sharding.safetensors", {"__metadata__": {"DCP_SHARDING_INFO": info}, "w": entry}, b"\0" * 16)
    far = json.dumps({"w": {"saved_offsets": [(1 << 63) - 1]}})
    yield "st-sharding-far", safetensors_file(root / "far.safetensors", {"__metadata__": {"DCP_SHARDING_INFO": far}, "w": entry}, b"\0" * 16)
    for i, path in enumerate(("../outside.safetensors", "/etc/passwd", "x" * 5000)):
        folder = root / f"index{i}"
        folder.mkdir()
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": path}}))
        yield f"st-index-{i}", folder


def zarr_array(folder, stored=None, **members):
    folder.mkdir(parents=True)
    base = {"zarr_format": 2, "shape": [16], "chunks": [16], "dtype": "<f4", "compressor": None, "fill_value": 0, "filters": None, "order": "C"}
    (folder / ".zarray").write_text(json.dumps({**base, **members}))
    for key, data in (stored or {}).items():
        (folder / key).write_bytes(data)
    return folder


def zarr_cases(root):
    yield "zarr-count", zarr_array(root / "z1", shape=[1 << 62], chunks=[1])
    yield "zarr-overflow", zarr_array(root / "z2", shape=[1 << 40, 1 << 40], chunks=[1 << 40, 1 << 40])
    yield "zarr-zero-chunk", zarr_array(root / "z3", shape=[16], chunks=[0])
    for i in range(200):
        zarr_array(root / "z4" / f"a{i}", shape=[900_000], chunks=[1])
    yield "zarr-many-absent", root / "z4"
    bomb = zlib.compress(b"\0" * (32 << 20), 9)
    yield "zarr-bomb", zarr_array(root / "z5", {"0": bomb}, compressor={"id": "zlib", "level": 9})
    yield "zarr-chunk-huge", zarr_array(root / "z6", {"0": bomb}, shape=[1 << 45], chunks=[1 << 45], compressor={"id": "zlib", "level": 9})
    blosc = bytes([2, 1, 0x21, 4]) + struct.pack("<III", 0x7FFFFFFF, 64, 0x7FFFFFFF) + b"\xff" * 48
    yield "zarr-blosc", zarr_array(root / "z7", {"0": blosc}, compressor={"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1})
    yield "zarr-zstd", zarr_array(root / "z8", {"0": b"\x28\xb5\x2f\xfd\xe0" + b"\xff" * 64}, compressor={"id": "zstd", "level": 1})
    yield "zarr-deep", zarr_array(root / "z9", fill_value=None, attributes=json.loads("[" * 900 + "]" * 900))
    linked = zarr_array(root / "z10")
    (linked / "0").symlink_to("/etc/passwd")
    yield "zarr-link", linked
    piped = zarr_array(root / "z11")
    os.mkfifo(piped / "0")
    yield "zarr-pipe", piped
    folder = root / "z12"
    folder.mkdir()
    os.mkfifo(folder / ".zarray")
    yield "zarr-pipe-for-metadata", folder
    folder = root / "z13"
    folder.mkdir()
    v3 = {"zarr_format": 3, "node_type": "array", "shape": [1 << 62], "data_type": "float32", "fill_value": 0,
          "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}},
          "chunk_key_encoding": {"name": "default"}, "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]}
    (folder / "zarr.json").write_text(json.dumps(v3))
    yield "zarr3-count", folder
    folder = root / "z14"
    folder.mkdir()
    (folder / "zarr.json").write_text('{"zarr_format": 3, "attributes": ' + "[" * 500_000 + "]" * 500_000 + "}")
    yield "zarr3-deep", folder


def megatron_cases(root):
    def megatron(label, backend="zarr", extra="", **files):
        folder = root / label
        folder.mkdir()
        (folder / "metadata.json").write_text('{"sharded_backend": "%s", "sharded_backend_version": 1%s}' % (backend, extra))
        for key, data in files.items():
            (folder / key.replace("__", ".")).write_bytes(data)
        return folder
    yield "megatron-deep", megatron("m1", extra=', "x": ' + "[" * 200_000 + "]" * 200_000)
    yield "megatron-torch-dist-deep", megatron("m2", "torch_dist", ', "x": ' + "[" * 200_000 + "]" * 200_000)
    folder = root / "m3"
    folder.mkdir()
    os.mkfifo(folder / "metadata.json")
    yield "megatron-pipe", folder
    folder = root / "m4"
    folder.mkdir()
    (folder / ".metadata").symlink_to("/dev/zero")
    yield "dcp-device", folder
    folder = megatron("m5", "torch_dist", common__pt=torch_zip(root / "c.pt", b"\x80\x02}.").read_bytes())
    (folder / ".metadata").write_bytes(one_tensor([4], [([0], [4])]))
    (folder / "integrity.json").write_text('{"algorithm": "sha256", "files": {"../../../etc/passwd": "00", "x": %s}}' % ("[" * 100_000 + "]" * 100_000))
    yield "megatron-integrity", folder
    folder = megatron("m6", common__pt=torch_zip(root / "d.pt", b"\x80\x02}.").read_bytes())
    os.mkfifo(folder / "integrity.json")
    yield "megatron-integrity-pipe", folder
    folder = megatron("m7", common__pt=torch_zip(root / "e.pt", b"\x80\x02cposix\nsystem\n" + text("touch evil") + b"\x85R.").read_bytes())
    (folder / "ckpt.manifest.json").write_text('{"schema": "ckpt.manifest/1", "hash": "xxh3-128", "files": {"../x": {"size": 1, "hashes": []}}}')
    yield "megatron-manifest", folder
    folder = root / "m8"
    folder.mkdir()
    (folder / "latest_checkpointed_iteration.txt").write_text("../../../../etc")
    yield "megatron-latest", folder


def numpy_cases(root):
    def npy(path, header, data=b"", length=None, version=b"\x01\0"):
        raw = header.encode()
        size = struct.pack("<H" if version[0] == 1 else "<I", len(raw) if length is None else length)
        path.write_bytes(b"\x93NUMPY" + version + size + raw + data)
        return path
    head = "{'descr': '%s', 'fortran_order': False, 'shape': %s, }\n"
    yield "npy-overflow", npy(root / "a.npy", head % ("<f8", "(%d, %d)" % (1 << 62, 1 << 62)))
    yield "npy-huge", npy(root / "b.npy", head % ("<f8", "(%d,)" % (1 << 50)))
    yield "npy-object", npy(root / "c.npy", head % ("|O", "(1,)"), b"\x80\x02cos\nsystem\n.")
    yield "npy-length", npy(root / "d.npy", head % ("<f8", "(1,)"), length=0xFFFFFFFF, version=b"\x02\0")
    yield "npy-deep", npy(root / "e.npy", "(" * 60_000)
    zeros = io.BytesIO()
    zeros.write(b"\x93NUMPY\x01\0" + struct.pack("<H", 64) + (head % ("<f4", "(4,)")).encode().ljust(64) + b"\0" * (64 << 20))
    with zipfile.ZipFile(root / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("w.npy", zeros.getvalue())
    yield "npz-bomb", root / "bomb.npz"
    with zipfile.ZipFile(root / "names.npz", "w") as archive:
        for i, key in enumerate(EVIL_NAMES):
            archive.writestr((key.replace("\0", "") or "empty") + ".npy", npy(root / f"n{i}.npy", head % ("<f4", "(1,)"), b"\0\0\0\0").read_bytes())
    yield "npz-names", root / "names.npz"


def gguf_cases(root):
    def gguf(path, tensors, pairs, body=b""):
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, tensors, pairs) + body)
        return path
    yield "gguf-tensors", gguf(root / "a.gguf", 1 << 60, 0)
    yield "gguf-pairs", gguf(root / "b.gguf", 0, 1 << 60)
    yield "gguf-string", gguf(root / "c.gguf", 0, 1, struct.pack("<Q", 1 << 62))
    nested = struct.pack("<Q", 1) + b"k" + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 100_000
    yield "gguf-deep", gguf(root / "d.gguf", 0, 1, nested)
    shape = struct.pack("<Q", 1) + b"w" + struct.pack("<IQQ", 2, 1 << 62, 1 << 62) + struct.pack("<IQ", 0, 0)
    yield "gguf-overflow", gguf(root / "e.gguf", 1, 0, shape)


def write_all(folder):
    for cases in (dcp_cases, torch_cases, safetensors_cases, zarr_cases, megatron_cases, numpy_cases, gguf_cases):
        root = pathlib.Path(folder) / cases.__name__.removesuffix("_cases")
        root.mkdir()
        yield from cases(root)
