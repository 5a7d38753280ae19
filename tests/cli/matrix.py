#!/usr/bin/env python3
"""Every reader to every writer: which pairs work, and that the tensors come out equal bit for bit.

    matrix.py CKPT_BINARY

A source of each format is made (by numpy, by hand, or by ckpt out of those), converted to each format that can be written, read
back, and compared with its source by `inspect --diff`, which knows no formats, and with --verify. Prints the table.
"""
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
CKPT = os.path.abspath(sys.argv[1])
FIXTURES = pathlib.Path(os.environ.get("CKPT_FIXTURES", HERE.parents[2] / "shared" / "fixtures"))
GGML = {"<f4": 0, "<f2": 1, "|i1": 24, "<i2": 25, "<i4": 26, "<i8": 27, "<f8": 28}
TYPES = {"BOOL": "|b1", "U8": "|u1", "I8": "|i1", "I16": "<i2", "I32": "<i4", "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8"}
SUFFIX = {"safetensors": ".safetensors", "torch": ".pt"}
# What a format lacks, said by name: a refusal that these words are in is right.
KNOWN_GAPS = ["has no type for", "cannot hold"]


def tensors():
    """Every type that all of numpy, torch and safetensors have; scalars, empty ones, names with dots."""
    random = np.random.default_rng(7)
    out = {f"types.{name}": random.integers(0, 2, (3, 5)).astype(dtype) if name == "BOOL" else
           (random.standard_normal((3, 5)) * 50).astype(dtype) for name, dtype in TYPES.items() if name not in ("U8", "C64")}
    out["types.U8"] = random.integers(0, 256, (3, 5)).astype("|u1")
    out["types.C64"] = (random.standard_normal((3, 5)) + 1j).astype("<c8")
    out["shapes.scalar"] = np.array(3.5, "<f4")
    out["shapes.empty"] = np.zeros((0, 4), "<f4")
    out["shapes.vector"] = np.arange(1000, dtype="<i8")
    out["shapes.cube"] = random.standard_normal((7, 6, 5)).astype("<f4")
    out["layer.0.weight"] = random.standard_normal((130, 70)).astype("<f4")
    return out


def write_safetensors(path, arrays):
    header, data = {}, b""
    for name, array in arrays.items():
        kind = next(k for k, v in TYPES.items() if np.dtype(v) == array.dtype)
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    header["types.BF16"] = {"dtype": "BF16", "shape": [2, 4], "data_offsets": [len(data), len(data) + 16]}
    header["types.F8"] = {"dtype": "F8_E4M3", "shape": [16], "data_offsets": [len(data) + 16, len(data) + 32]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data + bytes(range(32)))


def write_gguf(path, arrays):
    """Version 3, without metadata: names, shapes (innermost first), types, offsets; the data at multiples of 32."""
    blocks = {"types.Q8_0": (8, (4, 64), bytes(range(68)) * 4)}  # 34 bytes for 32 numbers
    for name, array in arrays.items():
        if array.dtype.str in GGML and array.ndim != 0 and array.size != 0:
            blocks[name] = (GGML[array.dtype.str], array.shape, array.tobytes())
    infos, data = b"", b""
    for name, (kind, shape, content) in blocks.items():
        infos += struct.pack("<Q", len(name)) + name.encode() + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, len(data))
        data += content + bytes(-len(content) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(blocks), 0) + infos
    path.write_bytes(head + bytes(-len(head) % 32) + data)


def call(*arguments):
    return subprocess.run([CKPT, *map(str, arguments)], capture_output=True, text=True, check=False)


def sources(work, writers):
    """Name to path of a checkpoint of each format."""
    base = work / "base.safetensors"
    write_safetensors(base, tensors())
    out = {"safetensors": base}
    for writer in writers:
        target = work / f"source-{writer}{SUFFIX.get(writer, '')}"
        done = call("convert", base, target, "--to", writer, "--shard-grid", "2x2") if writer in ("torch_dist", "dcp", "zarr3") else \
            call("convert", base, target, "--to", writer)
        assert done.returncode == 0, f"{writer}: {done.stderr}"
        out[writer] = target
    np.savez(work / "archive.npz", **{k: v for k, v in tensors().items()})
    np.savez_compressed(work / "deflated.npz", **{k: v for k, v in tensors().items()})
    out["npz"], out["npz deflated"] = work / "archive.npz", work / "deflated.npz"
    np.save(work / "fortran.npy", np.asfortranarray(tensors()["shapes.cube"]))
    out["npy in F order"] = work / "fortran.npy"
    write_gguf(work / "model.gguf", tensors())
    out["gguf"] = work / "model.gguf"
    subprocess.run([sys.executable, HERE.parent / "support" / "make_megatron_zarr.py", work / "zarr", "--mib", "4"], check=True, stdout=subprocess.DEVNULL)
    out["zarr of Megatron"] = work / "zarr"
    for name, path in {"zarr v2, foreign": "zarrs-v2", "torch_dist 0.9": "generated-megatron/mcore-0.9.0_dcp-2.2.2",
                       "torch_dist 0.19": "generated-megatron/mcore-0.19.0_dcp-2.9.1", "dcp of torch 2.9": "generated-dcp/dcp-2.9.1",
                       "dcp, zstd": "generated-dcp/dcp-2.9.1-zstd", "torch.save views": "generated-torch-save/legacy_views.pt",
                       "torch.save zip": "generated-torch-save/zip_state_dict.pt", "torch.save legacy": "generated-torch-save/legacy_state_dict.pt"}.items():
        if (FIXTURES / path).exists() and call("inspect", FIXTURES / path).returncode == 0:
            out[name] = FIXTURES / path
    return out


def main():
    writers = call("convert", "-h").stdout.split("The format to write:")[1].split("--from")[0].replace(",", " ").split()
    problems = []
    with tempfile.TemporaryDirectory(prefix="ckpt-matrix-") as folder:
        work = pathlib.Path(folder)
        found = sources(work, writers)
        width = max(map(len, found))
        print(" " * width, *(f"{w:>11}" for w in writers))
        for name, source in found.items():
            cells = []
            for writer in writers:
                target = work / f"target{SUFFIX.get(writer, '')}"
                done = call("convert", source, target, "--to", writer, "--tensors-only", "--verify", "--no-sync", "--force")
                if done.returncode in (2, 6) and any(words in done.stderr for words in KNOWN_GAPS):
                    cells.append("lacks types")
                    continue
                equal = call("inspect", "--diff", target, source) if done.returncode == 0 else done
                cells.append("equal" if equal.returncode == 0 else f"exit {equal.returncode}")
                if equal.returncode != 0:
                    problems.append(f"{name} to {writer}: {equal.stdout[-500:]}{equal.stderr[-500:]}")
            print(name.ljust(width), *(f"{cell:>11}" for cell in cells))
    print("\n".join(problems))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
