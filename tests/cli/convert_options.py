#!/usr/bin/env python3
"""ckpt convert's options at the prompt: what is written, under which names, as which types, in which shapes; going on after a kill.

    convert_options.py CKPT_BINARY [TEST...]
"""
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
CKPT = os.path.abspath(sys.argv.pop(1))
MAKER = HERE.parent / "support" / "make_megatron_zarr.py"
TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "U8": "|u1"}


def write_safetensors(path, tensors, metadata=None):
    header, at = {"__metadata__": metadata} if metadata else {}, 0
    for name, array in tensors.items():
        kind = next(k for k, v in TYPES.items() if np.dtype(v) == array.dtype and k != "BF16")
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(a.tobytes() for a in tensors.values()))


def read_safetensors(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    metadata = header.pop("__metadata__", {})
    out = {}
    for name, entry in header.items():
        begin, end = (8 + size + at for at in entry["data_offsets"])
        out[name] = np.frombuffer(data[begin:end], TYPES[entry["dtype"]]).reshape(entry["shape"])
    return out, metadata


class Options(unittest.TestCase):
    def setUp(self):
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="ckpt-convert-options-"))
        self.addCleanup(shutil.rmtree, self.work)
        self.random = np.random.default_rng(5)
        self.tensors = {"layer.0.weight": self.random.standard_normal((6, 8)).astype("f4"), "layer.1.weight": self.random.standard_normal((6, 8)).astype("f4"),
                        "layer.1.count": np.arange(5, dtype="i8"), "optimizer.exp_avg": np.ones(3, "f4")}
        self.source = self.work / "source.safetensors"
        write_safetensors(self.source, self.tensors)
        self.target = self.work / "out.safetensors"

    def test_metadata_of_the_whole_goes_along_or_is_named(self):
        metadata = {"format": "tf", "license": "MIT", "arguments": '{"lr": 1}'}
        write_safetensors(self.source, self.tensors, metadata)
        self.assertNotIn("metadata", self.call().stderr)
        self.assertEqual(read_safetensors(self.target)[1], metadata)
        self.call("--files", 2, target=self.work / "two")
        self.assertEqual([read_safetensors(path)[1] for path in sorted((self.work / "two").glob("*.safetensors"))], [metadata] * 2)
        for form in ("torch", "npy", "zarr3", "dcp"):
            self.assertIn(f"3 entries of the source's metadata have no place in {form}", self.call(to=form, target=self.work / form).stderr)
        write_safetensors(self.source, self.tensors, {"license": "MIT"})
        self.call("--force")
        self.assertEqual(read_safetensors(self.target)[1], {"format": "pt", "license": "MIT"})
        write_safetensors(self.source, self.tensors, {"format": "pt"})
        self.assertNotIn("metadata", self.call(to="npy", target=self.work / "bare").stderr)
        group = self.work / "zarr3" / "zarr.json"
        group.write_text(json.dumps({**json.loads(group.read_text()), "attributes": {"origin": "here"}}))
        self.assertIn("1 entry of the source's metadata has no place", self.call("--force", source=self.work / "zarr3").stderr)

    def test_metadata_of_gguf_is_named(self):
        word = lambda text: struct.pack("<Q", len(text)) + text
        content = b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + word(b"general.architecture") + struct.pack("<I", 8) + word(b"llama")
        content += word(b"t") + struct.pack("<IQIQ", 1, 4, 0, 0)
        (self.work / "m.gguf").write_bytes(content + b"\0" * (-len(content) % 32 + 16))
        self.assertIn("1 entry of the source's metadata has no place in safetensors", self.call(source=self.work / "m.gguf").stderr)

    def test_keys_of_many_parts_are_folders_that_are_read(self):
        key = "/".join(f"d{i}" for i in range(40))
        write_safetensors(self.source, {key: self.tensors["layer.0.weight"]})
        for form in ("npy", "zarr3"):
            self.call("--verify", to=form, target=self.work / form)
            self.call("--force", source=self.work / form)
            self.assertEqual(list(read_safetensors(self.target)[0]), [key])

    def call(self, *args, code=0, source=None, target=None, to="safetensors"):
        done = subprocess.run([CKPT, "convert", source or self.source, target or self.target, "--to", to, *map(str, args)], capture_output=True, text=True)
        self.assertEqual(done.returncode, code, f"{args}\n{done.stdout}{done.stderr}")
        if code != 0:
            self.assertFalse((target or self.target).exists())
        return done

    def test_a_single_file_appears_whole_and_is_not_replaced_unasked(self):
        self.call("--verify")
        out, metadata = read_safetensors(self.target)
        self.assertEqual(metadata, {"format": "pt"})
        self.assertEqual(set(out), set(self.tensors))
        for name, array in self.tensors.items():
            np.testing.assert_array_equal(out[name], array)
        self.assertEqual(sorted(os.listdir(self.work)), ["out.safetensors", "source.safetensors"])
        done = subprocess.run([CKPT, "convert", self.source, self.target, "--to", "safetensors"], capture_output=True, text=True)
        self.assertEqual((done.returncode, "--force" in done.stderr), (2, True))
        self.call("--force", "--include", "layer.**")
        self.assertEqual(len(read_safetensors(self.target)[0]), 3)

    def test_missing_folders_above_are_made_and_not_left_where_it_fails(self):
        self.call("--dry-run", target=self.work / "a" / "b" / "planned.safetensors")
        self.call("--include", "no.such.key", code=2, target=self.work / "a" / "b" / "none.safetensors")
        self.assertFalse((self.work / "a").exists())
        self.call(target=self.work / "a" / "b" / "whole.safetensors")
        self.call("--resume", target=self.work / "c" / "d" / "resumed.safetensors")
        self.assertEqual((self.work / "a" / "b" / "whole.safetensors").read_bytes(), (self.work / "c" / "d" / "resumed.safetensors").read_bytes())
        self.call(code=2, target=self.source / "below" / "out.safetensors")

    def test_names_are_chosen_mapped_and_renamed(self):
        mapping = self.work / "map.json"
        mapping.write_text(json.dumps({"layer.1.count": "counter"}))
        self.call("--no-optimizer", "--map", mapping, "--rename", r"layer\.(\d+)=h.\1", "--rename", "weight$=w")
        self.assertEqual(set(read_safetensors(self.target)[0]), {"h.0.w", "h.1.w", "counter"})
        self.target.unlink()
        self.assertIn("would both be", self.call("--rename", r"layer\.\d=same", code=2).stderr)
        self.assertIn("no key of the source", self.call("--rename", "absent=x", code=2).stderr)
        self.call("--rename", "(=x", code=2)
        self.call("--map", self.work / "absent", code=4)
        self.assertIn("absent.**", self.call("--include", "absent.**", code=2).stderr)

    def test_types_are_converted_or_refused_with_the_value(self):
        self.call("--dtype", "**.weight=float16", "--dtype", "**.count=int64", "--dtype", "bfloat16")
        out, _ = read_safetensors(self.target)
        np.testing.assert_array_equal(out["layer.0.weight"], self.tensors["layer.0.weight"].astype("f2"))
        np.testing.assert_array_equal(out["optimizer.exp_avg"], np.full(3, 0x3F80, "u2"))
        self.target.unlink()
        self.assertIn("fractions", self.call("--dtype", "**.weight=int64", code=2).stderr)
        self.call("--dtype", "**=float", code=2)
        self.tensors["layer.0.weight"][2, 3] = 1e6
        write_safetensors(self.source, self.tensors)
        done = self.call("--dtype", "**.weight=float16", code=1)
        self.assertIn("layer.0.weight", done.stderr)
        self.assertIn("1000000", done.stderr)

    def test_shapes_change_only_with_leave_and_each_is_told(self):
        self.assertIn("--allow-shape-mismatch", self.call("--shape", "layer.0.weight=8x_", code=2).stderr)
        done = self.call("--shape", "layer.0.weight=8x_", "--shape", "layer.1.weight=4x10", "--allow-shape-mismatch", "--verify")
        self.assertIn("layer.0.weight: 6x8 became 8x8", done.stderr)
        out, _ = read_safetensors(self.target)
        padded = np.zeros((8, 8), "f4")
        padded[:6] = self.tensors["layer.0.weight"]
        np.testing.assert_array_equal(out["layer.0.weight"], padded)
        other = np.zeros((4, 10), "f4")
        other[:, :8] = self.tensors["layer.1.weight"][:4]
        np.testing.assert_array_equal(out["layer.1.weight"], other)

    def test_a_grid_of_ranks_becomes_another_and_comes_back(self):
        grid = lambda n: ["--shard-grid", f"**.weight={n}", "--verify"]
        first, second = self.work / "2x1", self.work / "1x4"
        self.call(*grid("2x1"), target=first, to="torch_dist")
        self.call(*grid("1x4"), source=first, target=second, to="torch_dist")
        shown = subprocess.run([CKPT, "load-metadata", second], capture_output=True, text=True, check=True).stdout
        shards = next(t for t in json.loads(shown)["tensors"] if t["key"] == "layer.0.weight")["shards"]
        self.assertEqual([(s["offset"], s["shape"]) for s in shards], [([0, at], [6, 2]) for at in (0, 2, 4, 6)])
        self.call(source=second)
        for name, array in self.tensors.items():
            np.testing.assert_array_equal(read_safetensors(self.target)[0][name], array)
        self.target.unlink()
        self.call("--shard-grid", "2x2", code=2)  # safetensors has no pieces
        self.call("--shard-grid", "**=x", code=2, target=self.work / "no", to="torch_dist")

    def test_any_grid_of_ranks_becomes_any_other(self):
        """Megatron's guide saves 128 elements at W ranks and loads them at V; then grids drawn by chance, along all axes."""
        cases = [({"x": np.arange(128, dtype="f4")}, f"{w}", f"{v}") for w in (1, 2, 4, 8) for v in (1, 2, 4, 8) if w != v]
        for _ in range(12):
            shape = tuple(self.random.integers(1, 12, self.random.integers(1, 4)))
            first, second = ("x".join(str(self.random.integers(1, n + 2)) for n in shape) for _ in range(2))
            cases.append(({"x": self.random.standard_normal(shape).astype("f4")}, first, second))
        for tensors, first, second in cases:
            write_safetensors(self.source, tensors)
            for target, source, grid in ((self.work / "w", self.source, first), (self.work / "v", self.work / "w", second)):
                self.call("--shard-grid", grid, "--force", source=source, target=target, to="dcp")
            self.call("--force", source=self.work / "v")
            np.testing.assert_array_equal(read_safetensors(self.target)[0]["x"], tensors["x"], f"{first} to {second}")

    def test_shards_have_an_index_and_stay_below_the_size(self):
        folder = self.work / "folder"
        self.call("--file-size", "300B", target=folder)
        files = sorted(os.listdir(folder))
        self.assertEqual(files[0], "model-00001-of-00002.safetensors")
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        self.assertEqual(index["metadata"]["total_size"], sum(a.nbytes for a in self.tensors.values()))
        for name, file in index["weight_map"].items():
            np.testing.assert_array_equal(read_safetensors(folder / file)[0][name], self.tensors[name])

    def test_what_a_format_has_no_place_for_is_named(self):
        source = self.work / "megatron"
        subprocess.run([sys.executable, MAKER, source, "--mib", "4"], check=True, stdout=subprocess.DEVNULL)
        done = self.call(source=source, code=2)
        for words in ("common state", "rng_state/", "--tensors-only"):
            self.assertIn(words, done.stderr)
        report = json.loads(self.call("--tensors-only", "--no-optimizer", "--json", source=source).stdout)
        self.assertEqual(report["objects"], 0)
        self.assertFalse(any(name.startswith("optimizer") for name in read_safetensors(self.target)[0]))

    def test_a_conversion_that_was_killed_goes_on_file_by_file(self):
        source, target = self.work / "megatron", self.work / "out"
        subprocess.run([sys.executable, MAKER, source, "--mib", "128", "--tensors", "64"], check=True, stdout=subprocess.DEVNULL)
        arguments = [CKPT, "convert", source, target, "--to", "torch_dist", "--files", "32", "-j", "1", "--resume"]
        workspace = []
        for _ in range(20):
            process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL)
            while process.poll() is None:
                workspace = list(self.work.glob(".ckpt-convert-out-*"))
                if workspace and len(list((workspace[0] / "files").glob("*.distcp"))) >= 2:
                    process.send_signal(signal.SIGKILL)
                    break
            if process.wait() == -9:
                break
            shutil.rmtree(target)  # it was faster
        self.assertEqual(process.returncode, -9)
        self.assertFalse(target.exists())
        done = {path.name: path.stat().st_mtime_ns for path in (workspace[0] / "files").glob("*.distcp")}
        time.sleep(0.02)
        report = json.loads(self.call("--files", "32", "--resume", "--verify", "--json", source=source, target=target, to="torch_dist").stdout)
        self.assertGreaterEqual(report["kept_files"], 2)
        for name, when in done.items():
            self.assertEqual((target / name).stat().st_mtime_ns, when)
        self.assertEqual(sorted(os.listdir(self.work)), ["megatron", "out", "source.safetensors"])
        whole = self.work / "whole"
        self.call("--files", "32", source=source, target=whole, to="torch_dist")
        subprocess.run(["diff", "-r", target, whole], check=True)

    def test_the_source_must_be_what_the_user_says(self):
        self.call("--from", "safetensors")
        self.target.unlink()
        self.assertIn("torch_dist", self.call("--from", "torch_dist", code=6).stderr)
        self.call("--from", "hdf5", code=2)


if __name__ == "__main__":
    unittest.main()
