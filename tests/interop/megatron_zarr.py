"""A Megatron zarr checkpoint as Megatron-Core wrote it up to 0.15: zarr-python for the tensors, torch.save for the rest."""
import argparse
import io
import json
import os

import ml_dtypes  # noqa: F401  registers numpy's bfloat16
import numpy as np
import torch
import zarr

NUMPY = {torch.bool: "|b1", torch.uint8: "|u1", torch.int8: "|i1", torch.int16: "<i2", torch.int32: "<i4", torch.int64: "<i8",
         torch.float16: "<f2", torch.float32: "<f4", torch.float64: "<f8", torch.complex64: "<c8", torch.complex128: "<c16"}


def random_tensor(shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    count = int(np.prod(shape)) * torch.empty(0, dtype=dtype).element_size()
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (count,), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).reshape(shape)


def write_tensor(root, key, tensor, chunks, **options):
    """As Megatron's zarr strategy: bfloat16 goes in under NumPy's name and gets TensorStore's name in .zarray."""
    options.setdefault("compressor", None)
    if tensor.dtype == torch.bfloat16:
        values, dtype = tensor.view(torch.int16).numpy(), "<i2"
    else:
        values, dtype = tensor.numpy(), options.pop("stored", NUMPY[tensor.dtype])
    array = zarr.open_array(os.path.join(root, key), mode="w", shape=values.shape, chunks=chunks, dtype=dtype, fill_value=None,
                            write_empty_chunks=True, **options)
    array[:] = values
    if tensor.dtype == torch.bfloat16:
        path = os.path.join(root, key, ".zarray")
        with open(path) as f:
            text = f.read()
        with open(path, "w") as f:
            f.write(text.replace('"<i2"', '"bfloat16"'))


def write_object(root, key, offset, shape, value):
    folder = os.path.join(root, key)
    os.makedirs(folder, exist_ok=True)
    torch.save(value, os.path.join(folder, "shard_%s_%s.pt" % (".".join(map(str, offset)), ".".join(map(str, shape)))))


def common_state():
    args = argparse.Namespace(num_layers=3, params_dtype=torch.bfloat16, bf16=True, lr=1e-4, data_path=["a", "b"], seed=None)
    return {"args": args, "checkpoint_version": 3.0, "iteration": 1234, "num_floating_point_operations_so_far": 2**70,
            "optimizer": {"param_groups": [{"lr": 1e-4, "betas": (0.9, 0.95), "step": 7}], "param_state_sharding_type": "fully_sharded_model_space"},
            "content_metadata": {"distrib_optim_sharding_type": "fully_sharded_model_space"}}


def objects():
    extra = io.BytesIO()
    torch.save({"scale": torch.arange(4.0), "recipe": "delayed"}, extra)
    out = {}
    for rank in range(2):
        state = {"random_rng_state": (3, (1, 2, rank), None), "torch_rng_state": torch.get_rng_state() + 0, "tracker": {"default": rank}}
        out["rng_state", (0, rank), (1, 2)] = [state]
    for layer in range(3):
        out["decoder.layers._extra_state", (layer,), (3,)] = extra
    out["plain_tensor_object", (0,), (1,)] = torch.arange(1000, dtype=torch.float32).reshape(10, 100).t()
    return out


def write(root):
    """Returns the tensors by key; objects by (key, offset, shape); the common state."""
    os.makedirs(root)
    tensors = {}

    def add(key, shape, chunks, dtype, **options):
        tensors[key] = random_tensor(shape, dtype, len(tensors))
        write_tensor(root, key, tensors[key], chunks, **options)

    add("embedding.word_embeddings.weight", (64, 32), (32, 32), torch.bfloat16)
    add("decoder.layers.mlp.linear_fc1.weight", (3, 48, 32), (1, 24, 32), torch.bfloat16)
    add("decoder.layers.mlp.linear_fc2.weight", (3, 32, 48), (1, 32, 24), torch.float16)
    add("decoder.final_layernorm.weight", (32,), (32,), torch.float32)
    add("odd.edges", (33, 50), (16, 24), torch.float32)
    add("large.weight", (700, 1024), (350, 1024), torch.float32)
    for state in ("fp32_param", "exp_avg", "exp_avg_sq"):
        key = f"optimizer.state.{state}.embedding.word_embeddings.weight"
        add(key, (64, 32), (32, 32), torch.float32)
        os.makedirs(os.path.join(root, key + ".sync"))
        for name in (".zarray", "0.0", "1.0"):
            open(os.path.join(root, key + ".sync", name), "w").close()
    key = "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, torch.float32).bucket_idx_0.exp_avg"
    add(key, (4096,), (1024,), torch.float32)
    for dtype in NUMPY:
        add("dtypes." + str(dtype).split(".")[1], (5, 6), (3, 6), dtype)
    from numcodecs import GZip, LZ4, Blosc, Zlib, Zstd
    codecs = {"blosc": Blosc("lz4"), "blosc_zstd": Blosc("zstd", shuffle=Blosc.BITSHUFFLE), "zlib": Zlib(3), "gzip": GZip(3), "zstd": Zstd(3), "lz4": LZ4()}
    for name, codec in codecs.items():
        add("compressed." + name, (40, 30), (16, 30), torch.float32, compressor=codec)
    add("compressed.bfloat16", (40, 30), (16, 16), torch.bfloat16, compressor=Zstd(1))
    add("order.fortran", (20, 30), (8, 16), torch.float32, order="F")
    add("order.big_endian", (20, 30), (8, 30), torch.float32, stored=">f4")
    stored = objects()
    for (key, offset, shape), value in stored.items():
        write_object(root, key, offset, shape, value)
    torch.save(common_state(), os.path.join(root, "common.pt"))
    with open(os.path.join(root, "metadata.json"), "w") as f:
        json.dump({"sharded_backend": "zarr", "sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1}, f)
    return tensors, stored, common_state()
