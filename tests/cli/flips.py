#!/usr/bin/env python3
"""Single bits flipped in a checkpoint of every format: nothing crashes or hangs; where the format has checksums verify finds every
flip of a tensor's byte and convert refuses; what convert accepts all the same is read as it was.

    flips.py CKPT_BINARY [FLIPS [SEED]]      so many flips in each format (default 8; by hand: 500)
"""
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
from small_checkpoints import floats, npy, npz, safetensors, zarr_array  # noqa: E402

CKPT = os.path.abspath(sys.argv[1])
FLIPS = int(sys.argv[2]) if len(sys.argv) > 2 else 8
SEED = int(sys.argv[3]) if len(sys.argv) > 3 else 1
ANSWERS = {0, 1, 2, 4, 5, 6, 9}  # nothing of ckpt's own: no 70, no signal

problems = []


def call(*args):
    try:
        done = subprocess.run([CKPT, *map(str, args)], capture_output=True, timeout=100)
    except subprocess.TimeoutExpired:
        problems.append(f"hangs: {args}")
        return -1
    if done.returncode not in ANSWERS:
        problems.append(f"exit {done.returncode}: {args}: {done.stderr.decode(errors='replace')[-300:]}")
    return done.returncode


def make():
    """Checkpoints of the same two tensors: name -> (path, whether every byte of a tensor is under a checksum)"""
    safetensors("s.safetensors", {"a.w": ("F32", [40, 30], floats(1200, 1.0)), "b": ("F32", [7], floats(7, -3.0))})
    made = {"safetensors": ("s.safetensors", False)}
    for form, path, sums in (("torch", "t.pt", True), ("dcp", "dcp", True), ("torch_dist", "td", True), ("zarr3", "z3", False), ("npy", "npy", False)):
        options = ["--shard-grid", "2x2"] if form in ("dcp", "torch_dist", "zarr3") else []
        assert call("convert", "s.safetensors", path, "--to", form, *options) == 0, form
        made[form] = (path, sums)
    arrays = {"a.w": npy("<f4", [40, 30], floats(1200, 1.0)), "b": npy("<f4", [7], floats(7, -3.0))}
    npz("stored.npz", arrays)
    npz("deflated.npz", arrays, zipfile.ZIP_DEFLATED)
    made["npz"], made["npz, deflated"] = ("stored.npz", True), ("deflated.npz", True)
    os.mkdir("z2")
    zarr_array("z2/a.w", [40, 30], [20, 30], {"0.0": floats(600, 1.0), "1.0": floats(600, 601.0)})
    zarr_array("z2/b", [7], [7], floats(7, -3.0))
    made["zarr2"] = ("z2", False)
    return made


def tensor_bytes(path):
    """(file, first byte, bytes) of each shard"""
    document = json.loads(subprocess.run([CKPT, "--json", "-q", "inspect", path, "--shards", "**"], capture_output=True, check=True).stdout)
    return [(shard["file"], shard["begin"], shard["end"] - shard["begin"]) for tensor in document["tensors"] for shard in tensor["shards"]]


def choose(chance, path, shards):
    """(file relative to the checkpoint, byte, bit, whether it is one of a tensor)"""
    if chance.random() < 0.5:
        file, first, count = chance.choice(shards)
        return file, first + chance.randrange(count), chance.randrange(8), True
    files = sorted(p for p in path.rglob("*") if p.is_file() and p.stat().st_size) if path.is_dir() else [path]
    file = chance.choice(files)
    name = str(file.relative_to(path)) if path.is_dir() else file.name
    byte = chance.randrange(file.stat().st_size)
    return name, byte, chance.randrange(8), any(f == name and first <= byte < first + count for f, first, count in shards)


def flip_one(form, source, sums, chance, shards):
    bad = pathlib.Path("bad") / source.name
    shutil.rmtree("bad", ignore_errors=True)
    os.mkdir("bad")
    (shutil.copytree if source.is_dir() else shutil.copy)(source, bad)
    file, byte, bit, of_tensor = choose(chance, source, shards)
    at = bad / file if source.is_dir() else bad
    raw = bytearray(at.read_bytes())
    raw[byte] ^= 1 << bit
    at.write_bytes(raw)
    where = f"{form}: bit {bit} of byte {byte} of {file}"
    verified = call("verify", bad)
    shutil.rmtree("out", ignore_errors=True)
    converted = call("convert", bad, "out", "--to", "dcp", "--tensors-only")
    # Several deflate streams have one content: what a CRC covers is that, and below it is compared.
    same = form == "npz, deflated" and verified == 0 and converted == 0
    if sums and of_tensor and not same and (verified != 1 or converted == 0):
        problems.append(f"{where}, of a tensor: verify {verified}, convert {converted}")
    # Records and archives are whole under checksums; metadata files (.metadata, .json) and bare bytes are not.
    in_archive = sums and not file.endswith((".metadata", ".json"))
    if converted == 0 and in_archive and call("inspect", "out", "--diff", source) != 0:
        problems.append(f"{where}: verify {verified}, convert 0, and what it wrote is not what there was")
    return verified, converted


def main():
    chance = random.Random(SEED)
    for form, (name, sums) in make().items():
        source = pathlib.Path(name)
        shards = tensor_bytes(name)
        found = refused = 0
        for _ in range(FLIPS):
            verified, converted = flip_one(form, source, sums, chance, shards)
            found += verified != 0
            refused += converted != 0
        print(f"{form}: {FLIPS} flips, verify finds {found}, convert refuses {refused}")
    print("\n".join(problems))
    print(f"seed {SEED}, {len(problems)} problems")
    return 1 if problems else 0


with tempfile.TemporaryDirectory(prefix="ckpt-flips-") as folder:
    os.chdir(folder)
    status = main()
    os.chdir("/")
sys.exit(status)
