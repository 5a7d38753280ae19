#!/usr/bin/env python3
"""ckpt load-metadata and inspect of a `.metadata` of many tensors, against torch's own reader of the same file.

    bench.py [--tensors 100000] [--shards 2] [--rounds 5] [--folder DIR]

Every way is a process of its own, its start included: torch's takes most of its time to import torch. `pickle.load` is the
same without torch's reader around it: it imports what the pickle names. The last row is the floor of any Python way, torch
already imported: pickle.load alone, timed inside its process. Each round runs every way once, in turn; the median counts.
Ratios against torch's reader, by wall clock and by processor time. Never fails on a time.
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
TESTS = HERE.parents[1]
CKPT = os.environ.get("CKPT_BIN", str(TESTS.parent / "build" / "ckpt"))

MAKE = """
import pickle, sys, torch
from torch.distributed.checkpoint.metadata import (ChunkStorageMetadata, Metadata, MetadataIndex, StorageMeta, TensorProperties,
                                                   TensorStorageMetadata)
from torch.distributed.checkpoint.filesystem import _StorageInfo
tensors, shards = int(sys.argv[1]), int(sys.argv[2])
state, storage, paths = {}, {}, {}
for i in range(tensors):
    key = f"model.layers.{i // 10}.block.{i % 10}.weight"
    chunks = [ChunkStorageMetadata(torch.Size((rank * 512, 0)), torch.Size((512, 1024))) for rank in range(shards)]
    state[key] = TensorStorageMetadata(TensorProperties(dtype=torch.bfloat16), torch.Size((512 * shards, 1024)), chunks)
    paths[key] = tuple(key.split("."))
for rank in range(shards):  # as torch does: tensor by tensor above, rank by rank here
    for i, (key, tensor) in enumerate(state.items()):
        storage[MetadataIndex(key, tensor.chunks[rank].offsets, rank)] = _StorageInfo(f"__{rank}_0.distcp", i * 1049000, 1049000)
with open(sys.argv[3] + "/.metadata", "wb") as f:
    pickle.dump(Metadata(state, paths, storage, StorageMeta(save_id="bench")), f)
"""
TORCH = "import sys; from torch.distributed.checkpoint import FileSystemReader; FileSystemReader(sys.argv[1]).read_metadata()"
PICKLE = "import pickle, sys; pickle.load(open(sys.argv[1] + '/.metadata', 'rb'))"
INSIDE = ("import pickle, sys, time, torch.distributed.checkpoint; t = time.monotonic(); c = time.process_time();"
          "pickle.load(open(sys.argv[1] + '/.metadata', 'rb')); print(time.monotonic() - t, time.process_time() - c)")


def run(command, inside):
    """Wall seconds, processor seconds, peak memory in MiB, and stdout where it holds the times taken inside."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE if inside else subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    out = process.stdout.read().decode() if inside else ""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - start
    if process.returncode != 0:
        sys.exit(f"{command}: exit {process.returncode}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tensors", type=int, default=100_000)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where to work (default: a temporary folder)")
    options = parser.parse_args()
    made = subprocess.run([TESTS / "interop" / "make_env.sh"], check=True, capture_output=True, text=True)
    python = made.stdout.strip()

    with tempfile.TemporaryDirectory(dir=options.folder, prefix="ckpt-bench-") as work:
        subprocess.run([python, "-c", MAKE, str(options.tensors), str(options.shards), work], check=True)
        size = os.stat(work + "/.metadata").st_size
        print(f".metadata of {size / 2**20:.0f} MiB: {options.tensors} tensors of {options.shards} shards, {os.cpu_count()} cores, "
              f"median of {options.rounds}")
        ways = {
            "torch's reader": [python, "-c", TORCH, work], "pickle.load": [python, "-c", PICKLE, work],
            "ckpt load-metadata": [CKPT, "load-metadata", work], "ckpt inspect": [CKPT, "inspect", work],
            "(torch imported)": [python, "-c", INSIDE, work],
        }
        took = {name: [] for name in ways}
        for _ in range(options.rounds):
            for name, command in ways.items():
                inside = name.startswith("(")
                wall, cpu, memory, out = run(command, inside)
                if inside:
                    wall, cpu = map(float, out.split())
                took[name].append((wall, cpu, memory))
        middle = {name: [statistics.median(column) for column in zip(*rounds)] for name, rounds in took.items()}
        base = middle["torch's reader"]
        print(f"{'':20}{'seconds':>9}{'cpu':>7}{'peak MiB':>10}{'of torch':>10}{'by cpu':>8}   rounds")
        for name, (wall, cpu, memory) in middle.items():
            print(f"{name:20}{wall:9.2f}{cpu:7.2f}{memory:10.0f}{base[0] / wall:9.1f}x{base[1] / cpu:7.1f}x   "
                  + " ".join(f"{r[0]:.2f}" for r in took[name]))


if __name__ == "__main__":
    main()
