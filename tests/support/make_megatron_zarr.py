#!/usr/bin/env python3
"""Writes a Megatron-Core distributed checkpoint (zarr backend) as a training run of a small GPT would leave it.

Needs python3 and numpy only: no torch, no zarr. The layout is that of Megatron-Core 0.13 (metadata.json, common.pt, one
folder per tensor with .zarray and a file per shard, ShardedObjects as torch.save files, .sync folders). Pickles and
torch.save archives are written by hand.

    make_megatron_zarr.py OUTDIR [--mib N] [--tensors N] [--seed N]

--tensors N replaces the model by N equal two-dimensional tensors: for measuring.
"""
import argparse
import io
import json
import os
import struct
import sys
import zipfile

import numpy as np

TP = 2  # tensor-parallel ranks: shards per weight


class Pickle:
    """Protocol 2, the opcodes that torch.save uses."""

    def __init__(self):
        self.out = io.BytesIO()
        self.out.write(b"\x80\x02")

    def value(self, v):
        w = self.out.write
        if v is None:
            w(b"N")
        elif v is True:
            w(b"\x88")
        elif v is False:
            w(b"\x89")
        elif isinstance(v, int):
            if 0 <= v < 256:
                w(b"K" + bytes([v]))
            elif -(2**31) <= v < 2**31:
                w(b"J" + struct.pack("<i", v))
            else:
                raw = v.to_bytes(v.bit_length() // 8 + 1, "little", signed=True)
                w(b"\x8a" + bytes([len(raw)]) + raw)
        elif isinstance(v, float):
            w(b"G" + struct.pack(">d", v))
        elif isinstance(v, str):
            raw = v.encode()
            w(b"X" + struct.pack("<I", len(raw)) + raw)
        elif isinstance(v, bytes):  # protocol 2 has no bytes: _codecs.encode(str, "latin1")
            self.call("_codecs", "encode", v.decode("latin1"), "latin1")
        elif isinstance(v, dict):
            w(b"}(")
            for key, item in v.items():
                self.value(key)
                self.value(item)
            w(b"u")
        elif isinstance(v, list):
            w(b"](")
            for item in v:
                self.value(item)
            w(b"e")
        elif isinstance(v, tuple):
            w(b"(")
            for item in v:
                self.value(item)
            w(b"t")
        else:
            v.pickle(self)

    def name(self, module, name):
        self.out.write(b"c" + module.encode() + b"\n" + name.encode() + b"\n")

    def call(self, module, name, *args):
        self.name(module, name)
        self.value(tuple(args))
        self.out.write(b"R")

    def finish(self):
        self.out.write(b".")
        return self.out.getvalue()


class Namespace:
    def __init__(self, **attributes):
        self.attributes = attributes

    def pickle(self, p):
        p.name("argparse", "Namespace")
        p.out.write(b")\x81")
        p.value(self.attributes)
        p.out.write(b"b")


class Name:
    """A global that is not called: torch.bfloat16."""

    def __init__(self, module, name):
        self.module, self.attribute = module, name

    def pickle(self, p):
        p.name(self.module, self.attribute)


class ByteTensor:
    def __init__(self, key, data):
        self.key, self.data = key, data

    def pickle(self, p):
        p.name("torch._utils", "_rebuild_tensor_v2")
        p.out.write(b"((")
        p.value("storage")
        p.name("torch", "ByteStorage")
        for part in (self.key, "cpu", len(self.data)):
            p.value(part)
        p.out.write(b"tQ")
        for part in (0, (len(self.data),), (1,), False):
            p.value(part)
        p.call("collections", "OrderedDict")
        p.out.write(b"tR")


class BytesIO:
    def __init__(self, data):
        self.data = data

    def pickle(self, p):
        p.name("_io", "BytesIO")
        p.out.write(b")\x81")
        p.value((self.data, len(self.data), None))
        p.out.write(b"b")


def save(path, value, tensors=()):
    """A torch.save file."""
    p = Pickle()
    p.value(value)
    top = os.path.basename(path).rsplit(".", 1)[0]
    records = [("data.pkl", p.finish()), ("byteorder", b"little")]
    records += [("data/" + t.key, t.data) for t in tensors] + [("version", b"3\n")]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in records:
            archive.writestr(zipfile.ZipInfo(f"{top}/{name}"), data)


class Checkpoint:
    def __init__(self, root, seed):
        self.root = root
        # One pool of random bits for all tensors: made once, cut at changing places, so that the disk is the limit.
        self.pool = np.random.default_rng(seed).standard_normal(1 << 22, dtype=np.float32)
        self.at = 0
        self.bytes = 0

    def random(self, count):
        parts = []
        while count > 0:
            part = self.pool[self.at : self.at + count]
            self.at = (self.at + len(part) + 977) % (len(self.pool) - 1)
            parts.append(part)
            count -= len(part)
        return np.concatenate(parts) if parts else self.pool[:0]

    def tensor(self, key, shape, chunks, dtype, synced=False):
        folder = os.path.join(self.root, key)
        os.mkdir(folder)
        described = {"bfloat16": "bfloat16", "float32": "<f4"}[dtype]
        with open(os.path.join(folder, ".zarray"), "w") as f:
            meta = {"chunks": chunks, "compressor": None, "dtype": described, "fill_value": None, "filters": None,
                    "order": "C", "shape": shape, "zarr_format": 2}
            json.dump(meta, f, indent=4)
        grid = [n // c for n, c in zip(shape, chunks)]
        for index in np.ndindex(*grid):
            values = self.random(int(np.prod(chunks)))
            # bfloat16 is the upper half of float32.
            raw = (values.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bfloat16" else values
            name = ".".join(map(str, index))
            raw.tofile(os.path.join(folder, name))
            self.bytes += raw.nbytes
            if synced:
                os.makedirs(folder + ".sync", exist_ok=True)
                open(os.path.join(folder + ".sync", name), "w").close()

    def parameter(self, key, shape, split):
        """A weight in bfloat16 and its three optimizer tensors in float32; `split`: the axis of tensor parallelism."""
        chunks = list(shape)
        if split is not None:
            chunks[split] //= TP
        if key.startswith("decoder.layers."):
            chunks[0] = 1
        self.tensor(key, list(shape), chunks, "bfloat16")
        for state in ("fp32_param", "exp_avg", "exp_avg_sq"):
            self.tensor(f"optimizer.state.{state}.{key}", list(shape), chunks, "float32", synced=True)

    def object(self, key, offset, shape, value, tensors=()):
        folder = os.path.join(self.root, key)
        os.makedirs(folder, exist_ok=True)
        name = "shard_%s_%s.pt" % (".".join(map(str, offset)), ".".join(map(str, shape)))
        save(os.path.join(folder, name), value, tensors)

    def common(self, extra):
        arguments = Namespace(num_layers=extra["layers"], hidden_size=extra["hidden"], tensor_model_parallel_size=TP, bf16=True,
                              params_dtype=Name("torch", "bfloat16"), lr=3e-4, dist_ckpt_format="zarr", data_path=["corpus"])
        group = {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "step": 100, "params": [0]}
        scheduler = {"max_lr": 3e-4, "num_steps": 25600}
        save(os.path.join(self.root, "common.pt"),
             {"args": arguments, "checkpoint_version": 3.0, "iteration": 100, "num_floating_point_operations_so_far": 10**18,
              "optimizer": {"optimizer": {"param_groups": [group]}, "param_state_sharding_type": "fully_sharded_model_space"},
              "opt_param_scheduler": scheduler})
        with open(os.path.join(self.root, "metadata.json"), "w") as f:
            json.dump({"sharded_backend": "zarr", "sharded_backend_version": 1, "common_backend": "torch",
                       "common_backend_version": 1}, f)


def model_bytes(layers, hidden, vocabulary):
    weights = layers * (12 * hidden * hidden + 2 * hidden) + vocabulary * hidden + hidden
    return weights * (2 + 3 * 4)


def write_model(c, mib):
    layers, vocabulary, hidden = 4, 4096, 64
    while model_bytes(layers, hidden + 64, vocabulary) <= mib << 20:
        hidden += 64
    c.parameter("embedding.word_embeddings.weight", (vocabulary, hidden), 0)
    c.parameter("decoder.layers.self_attention.linear_qkv.weight", (layers, 3 * hidden, hidden), 1)
    c.parameter("decoder.layers.self_attention.linear_qkv.layer_norm_weight", (layers, hidden), None)
    c.parameter("decoder.layers.self_attention.linear_proj.weight", (layers, hidden, hidden), 2)
    c.parameter("decoder.layers.mlp.linear_fc1.weight", (layers, 4 * hidden, hidden), 1)
    c.parameter("decoder.layers.mlp.linear_fc1.layer_norm_weight", (layers, hidden), None)
    c.parameter("decoder.layers.mlp.linear_fc2.weight", (layers, hidden, 4 * hidden), 2)
    c.parameter("decoder.final_layernorm.weight", (hidden,), None)
    for rank in range(TP):
        state = ByteTensor("0", bytes((i * 7 + rank) % 256 for i in range(5056)))
        c.object("rng_state", (0, rank), (1, TP), {"random_rng_state": (3, rank, None), "torch_rng_state": state}, [state])
    for layer in range(layers):
        c.object("decoder.layers.self_attention.core_attention._extra_state", (layer,), (layers,), BytesIO(b"\x80\x02}."))
    c.common({"layers": layers, "hidden": hidden})


def write_equal(c, mib, count):
    rows = max(TP, (mib << 20) // count // (1024 * 4) // TP * TP)
    for i in range(count):
        c.tensor(f"decoder.layers.{i}.mlp.linear_fc1.weight", [rows, 1024], [rows // TP, 1024], "float32")
    c.common({"layers": count, "hidden": 1024})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("outdir")
    parser.add_argument("--mib", type=int, default=256, help="about this size in all")
    parser.add_argument("--tensors", type=int, default=0, help="so many equal tensors instead of a model")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if os.path.exists(options.outdir) and os.listdir(options.outdir):
        sys.exit(f"{options.outdir}: exists and is not empty")
    os.makedirs(options.outdir, exist_ok=True)
    c = Checkpoint(options.outdir, options.seed)
    if options.tensors > 0:
        write_equal(c, options.mib, options.tensors)
    else:
        write_model(c, options.mib)
    print(f"{options.outdir}: {c.bytes / 2**20:.0f} MiB of tensors")


if __name__ == "__main__":
    main()
