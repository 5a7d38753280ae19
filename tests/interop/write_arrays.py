"""Writes arrays with zarr-python 3, numpy and gguf, and beside each one what it should read as.

usage: write_arrays.py FOLDER. Makes FOLDER/<case>/ (the checkpoint) and FOLDER/<case>.json: {key: [dtype, shape, hex of the
row-major little-endian bytes]}.
"""
import json
import pathlib
import sys
import warnings

import ml_dtypes
import numcodecs
import numpy as np
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec
from zarr.codecs import numcodecs as zn

warnings.filterwarnings("ignore")
ROOT = pathlib.Path(sys.argv[1])
DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "complex64", "complex128"]
rng = np.random.default_rng(5)


def ramp(shape, dtype="float32"):
    n = int(np.prod(shape))
    if dtype == "bool":
        return (np.arange(n).reshape(shape) % 3 == 0)
    values = np.arange(n) % 100 if np.dtype(dtype).itemsize == 1 else np.arange(n) * 7
    out = values.astype(dtype).reshape(shape)
    return out * (1 + 2j) if np.dtype(dtype).kind == "c" else out


def little(array):
    array = np.ascontiguousarray(array)
    return array.astype(array.dtype.newbyteorder("<")).tobytes() if array.dtype.byteorder == ">" else array.tobytes()


def expect(case, arrays):
    rows = {key: [np.dtype(a.dtype).name, list(a.shape), little(a).hex()] for key, a in arrays.items()}
    (ROOT / f"{case}.json").write_text(json.dumps(rows))


def zarr_v2():
    path = ROOT / "zarr_v2"
    group = zarr.open_group(path, mode="w", zarr_format=2)
    arrays = {}

    def put(key, data, **options):
        options.setdefault("chunks", tuple(max(1, (n + 1) // 2) for n in data.shape))
        array = group.create_array(key, shape=data.shape, dtype=data.dtype, **options)
        array[...] = data
        arrays[key] = data

    for dtype in DTYPES:
        put(f"types.{dtype}", ramp((5, 3), dtype))
        if np.dtype(dtype).itemsize > 1:
            put(f"big.{dtype}", ramp((5, 3), dtype).astype(np.dtype(dtype).newbyteorder(">")))
    for name, codec in {"blosc_lz4": numcodecs.Blosc("lz4"), "blosc_zstd": numcodecs.Blosc("zstd", shuffle=2), "blosc_zlib": numcodecs.Blosc("zlib", shuffle=0),
                        "zstd": numcodecs.Zstd(), "zstd_checksum": numcodecs.Zstd(level=3, checksum=True), "lz4": numcodecs.LZ4(),
                        "gzip": numcodecs.GZip(), "zlib": numcodecs.Zlib(), "bz2": numcodecs.BZ2(), "none": None}.items():
        put(f"codec/{name}", ramp((33, 17)), compressors=codec)
        put(f"codec/{name}_F", ramp((9, 8, 7), "int16"), compressors=codec, order="F")
    put("nested/deep/slash", ramp((6, 4)), chunk_key_encoding={"name": "v2", "separator": "/"})
    put("scalar", np.array(2.5), chunks=())
    put("edges", ramp((7, 5)), chunks=(3, 4))
    filters = {
        "delta": ([numcodecs.Delta("<i4")], "int32"),
        "delta_narrow": ([numcodecs.Delta("<i4", "<i2")], "int32"),
        "delta_float": ([numcodecs.Delta("<f4")], "float32"),
        "delta_big": ([numcodecs.Delta(">i4")], ">i4"),
        "shuffle": ([numcodecs.Shuffle(4)], "float32"),
        "scale": ([numcodecs.FixedScaleOffset(offset=3, scale=10, dtype="<f8", astype="<i4")], "float64"),
        "scale_float": ([numcodecs.FixedScaleOffset(offset=1.5, scale=0.5, dtype="<f4", astype="<f4")], "float32"),
        "crc32": ([numcodecs.CRC32()], "float32"),
        "crc32c": ([numcodecs.CRC32C()], "float32"),
        "adler32": ([numcodecs.Adler32()], "float32"),
        "zstd_inside": ([numcodecs.Zstd()], "float32"),
        "bitround": ([numcodecs.BitRound(10)], "float32"),
    }
    for name, (chain, dtype) in filters.items():
        for order in "CF":
            data = np.asarray(ramp((12, 5), np.dtype(dtype).newbyteorder("=").name), dtype=dtype)
            put(f"filter/{name}_{order}", data, filters=chain, compressors=numcodecs.Zlib() if name != "zstd_inside" else numcodecs.Blosc(), order=order)
            arrays[f"filter/{name}_{order}"] = group[f"filter/{name}_{order}"][...]
    fills = {"nan": ("float32", np.nan), "inf": ("float64", np.inf), "int": ("int16", -7), "complex": ("complex64", 1 - 2j), "true": ("bool", True)}
    for name, (dtype, value) in fills.items():
        array = group.create_array(f"fill/{name}", shape=(4, 6), chunks=(2, 3), dtype=dtype, fill_value=value)
        array[:2, :3] = 1
        arrays[f"fill/{name}"] = array[...]
    expect("zarr_v2", arrays)
    expect("zarr_v2_consolidated", arrays)
    import shutil
    shutil.copytree(path, ROOT / "zarr_v2_consolidated")
    zarr.consolidate_metadata(ROOT / "zarr_v2_consolidated", zarr_format=2)
    for document in (ROOT / "zarr_v2_consolidated").rglob("*/.zarray"):
        document.unlink()


def zarr_v3():
    path = ROOT / "zarr_v3"
    group = zarr.open_group(path, mode="w", zarr_format=3)
    arrays = {}

    def put(key, data, **options):
        options.setdefault("chunks", tuple(max(1, (n + 1) // 2) for n in data.shape))
        array = group.create_array(key, shape=data.shape, dtype=data.dtype, **options)
        array[...] = data
        arrays[key] = data

    for dtype in DTYPES:
        put(f"types.{dtype}", ramp((5, 3), dtype))
        put(f"big.{dtype}", ramp((5, 3), dtype), serializer=BytesCodec(endian="big"))
    codecs = {"none": None, "gzip": GzipCodec(level=3), "zstd": ZstdCodec(level=3), "zstd_checksum": ZstdCodec(level=1, checksum=True),
              "blosc": BloscCodec(cname="lz4"), "blosc_bit": BloscCodec(cname="zstd", shuffle="bitshuffle"), "blosc_zlib": BloscCodec(cname="zlib", shuffle="noshuffle"),
              "crc": [Crc32cCodec()], "zstd_crc": [ZstdCodec(), Crc32cCodec()], "crc_gzip": [Crc32cCodec(), GzipCodec()],
              "lz4": zn.LZ4(), "bz2": zn.BZ2(), "zlib": zn.Zlib(), "shuffle": [zn.Shuffle(elementsize=4), zn.Zstd()], "blosc_of_numcodecs": zn.Blosc(),
              "crc32": [zn.CRC32()], "adler32": [zn.Adler32()]}
    for name, chain in codecs.items():
        put(f"codec/{name}", ramp((33, 17)), compressors=chain)
    put("filter/delta", ramp((12, 5), "int32"), filters=[zn.Delta(dtype="<i4", astype="<i2")])
    put("filter/scale", ramp((12, 5), "float64"), filters=[zn.FixedScaleOffset(offset=2, scale=4, dtype="<f8", astype="<i4")])
    for order in [(1, 0, 2), (2, 1, 0), (1, 2, 0), (0, 2, 1)]:
        put("transpose/" + "".join(map(str, order)), ramp((5, 6, 7), "int16"), filters=[TransposeCodec(order=order)])
    put("transpose/twice", ramp((5, 6, 7), "int16"), filters=[TransposeCodec(order=(1, 2, 0)), TransposeCodec(order=(1, 0, 2))], serializer=BytesCodec(endian="big"))
    put("names/v2", ramp((6, 4)), chunk_key_encoding={"name": "v2", "separator": "."})
    put("names/v2_slash", ramp((6, 4)), chunk_key_encoding={"name": "v2", "separator": "/"})
    put("names/dot", ramp((6, 4)), chunk_key_encoding={"name": "default", "separator": "."})
    put("scalar", np.array(2.5), chunks=())
    put("scalar_v2", np.array(3.5), chunks=(), chunk_key_encoding={"name": "v2", "separator": "."})
    put("edges", ramp((7, 5)), chunks=(3, 4))
    put("large", rng.standard_normal((700, 1000)).astype("float32"), chunks=(300, 512), shards=(600, 1024))
    for where in ("start", "end"):
        shard = lambda **more: ShardingCodec(chunk_shape=(2, 3), index_location=where, **more)
        put(f"shard/{where}", ramp((10, 9)), chunks=(4, 6), serializer=shard(), compressors=None)
        put(f"shard/{where}_raw", ramp((10, 9)), chunks=(4, 6), serializer=shard(codecs=[BytesCodec()]), compressors=None)
        put(f"shard/{where}_crc", ramp((10, 9)), chunks=(4, 6), serializer=shard(codecs=[BytesCodec(endian="big"), ZstdCodec(), Crc32cCodec()]), compressors=None)
        put(f"shard/{where}_transposed", ramp((10, 9)), chunks=(4, 6), serializer=shard(codecs=[TransposeCodec(order=(1, 0)), BytesCodec()]), compressors=None)
        put(f"shard/{where}_index_plain", ramp((10, 9)), chunks=(4, 6), serializer=shard(index_codecs=[BytesCodec(endian="big")]), compressors=None)
        put(f"shard/{where}_nested", ramp((16, 24)) + 1, chunks=(8, 12), compressors=None,
            serializer=ShardingCodec(chunk_shape=(4, 6), codecs=[shard(codecs=[BytesCodec(), GzipCodec()])], index_location="end"))
    put("shard/around_transposed", ramp((8, 16)) + 1, chunks=(4, 8), filters=[TransposeCodec(order=(1, 0))], compressors=None,
        serializer=ShardingCodec(chunk_shape=(4, 2), codecs=[TransposeCodec(order=(1, 0)), BytesCodec()]))
    fills = {"nan": ("float32", np.nan), "inf": ("float64", -np.inf), "int": ("int16", -7), "complex": ("complex64", complex(1, np.nan)), "true": ("bool", True), "half": ("float16", 0.1), "big": ("uint64", 2**64 - 1)}
    for name, (dtype, value) in fills.items():
        array = group.create_array(f"fill/{name}", shape=(8, 6), chunks=(2, 3), shards=(4, 6), dtype=dtype, fill_value=value)
        array[:2, :3] = 1
        arrays[f"fill/{name}"] = array[...]
    expect("zarr_v3", arrays)
    expect("zarr_v3_consolidated", arrays)
    import shutil
    shutil.copytree(path, ROOT / "zarr_v3_consolidated")
    zarr.consolidate_metadata(ROOT / "zarr_v3_consolidated", zarr_format=3)
    for document in list((ROOT / "zarr_v3_consolidated").rglob("zarr.json")):
        if document.parent != ROOT / "zarr_v3_consolidated":
            document.unlink()


def numpy_arrays():
    """Every plain dtype, either byte order, either order of axes; all that is not at the beginning of a file."""
    out = {}
    for dtype in DTYPES:
        out[f"types.{dtype}"] = ramp((5, 3), dtype)
        out[f"columns.{dtype}"] = np.asfortranarray(ramp((4, 5, 6), dtype))
        if np.dtype(dtype).itemsize > 1:
            out[f"big.{dtype}"] = ramp((5, 3), dtype).astype(np.dtype(dtype).newbyteorder(">"))
    out["scalar"] = np.array(2.5)
    out["empty"] = np.zeros((0, 3), "float32")
    out["vector"] = np.asfortranarray(ramp((7,)))
    out["large"] = np.asfortranarray(rng.standard_normal((2500, 1000)).astype(">f8"))
    return out


def npy():
    arrays = numpy_arrays()
    folder = ROOT / "npy"
    (folder / "sub").mkdir(parents=True)
    for key, array in arrays.items():
        np.save(folder / f"{key}.npy", array)
    np.save(folder / "sub" / "deep.npy", ramp((2, 2)))
    half = ramp((4, 3)).astype(ml_dtypes.bfloat16)
    np.save(folder / "bfloat16.npy", half)
    with open(folder / "version2.npy", "wb") as file:
        np.lib.format.write_array(file, ramp((2, 3)), version=(2, 0))
    with open(folder / "version3.npy", "wb") as file:
        np.lib.format.write_array(file, ramp((2, 3)), version=(3, 0))
    expect("npy", {**arrays, "sub/deep": ramp((2, 2)), "bfloat16": half, "version2": ramp((2, 3)), "version3": ramp((2, 3))})
    np.savez(ROOT / "npz.npz", **arrays)
    np.savez_compressed(ROOT / "npz_deflated.npz", **arrays)
    for case in ("npz", "npz_deflated"):
        expect(case, arrays)


def gguf():
    import gguf as package
    from gguf.quants import quantize

    writer = package.GGUFWriter(ROOT / "gguf.gguf", "llama")
    writer.add_string("general.name", "tiny \u00e9")
    writer.add_array("tokenizer.ggml.tokens", [f"t{i}" for i in range(5000)])
    writer.add_array("tokenizer.ggml.scores", [0.5] * 5000)
    writer.add_float64("x", 0.25)
    arrays = {}
    for dtype in ("float32", "float16", "float64", "int8", "int16", "int32", "int64"):
        arrays[f"types.{dtype}"] = ramp((5, 3, 2), dtype)
        writer.add_tensor(f"types.{dtype}", arrays[f"types.{dtype}"])
    half = ramp((4, 8)).astype(ml_dtypes.bfloat16)
    writer.add_tensor("types.bfloat16", half.view(np.uint8), raw_dtype=package.GGMLQuantizationType.BF16)
    arrays["types.bfloat16"] = half
    for kind in ("Q4_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K", "TQ1_0", "MXFP4"):
        kind = package.GGMLQuantizationType[kind]
        block, size = package.GGML_QUANT_SIZES[kind]
        rows = np.frombuffer(rng.bytes(3 * 2 * 2 * size), np.uint8).reshape(3, 2, 2 * size)
        if kind.name in ("Q4_0", "Q8_0"):
            rows = quantize(rng.standard_normal((3, 2, 2 * block)).astype("float32"), kind)
        arrays[f"blk.{kind.name}"] = rows
        writer.add_tensor(f"blk.{kind.name}", rows, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    for tensor in package.GGUFReader(ROOT / "gguf.gguf").tensors:
        if tensor.name != "types.bfloat16":
            assert np.array_equal(tensor.data, arrays[tensor.name]), tensor.name
    expect("gguf", arrays)
    sizes = {kind.value: [kind.name, *package.GGML_QUANT_SIZES[kind]] for kind in package.GGML_QUANT_SIZES}
    (ROOT / "gguf_types.json").write_text(json.dumps(sizes))


for writer in (zarr_v2, zarr_v3, npy, gguf):
    writer()
