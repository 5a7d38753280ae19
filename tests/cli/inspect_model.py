#!/usr/bin/env python3
"""ckpt inspect of model checkpoints at the prompt: statistics as numpy's, differences, trees, files, shards, groups.

    inspect_model.py CKPT_BINARY [TEST...]
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

import numpy

HERE = pathlib.Path(__file__).resolve().parent
CKPT = os.path.abspath(sys.argv.pop(1))
TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1", "U8": "|u1", "BOOL": "|b1"}


def write_safetensors(path, arrays):
    """`arrays`: name -> (safetensors' dtype, array)."""
    header, body, at = {}, [], 0
    for name, (dtype, array) in arrays.items():
        raw = array.tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [at, at + len(raw)]}
        body.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(body))


def floats(*names):
    return {name: ("F32", numpy.arange(4, dtype="<f4")) for name in names}


class Inspect(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.base = pathlib.Path(tempfile.mkdtemp(prefix="ckpt-inspect-"))
        cls.megatron = cls.base / "megatron"
        subprocess.run([sys.executable, HERE.parent / "support" / "make_megatron_zarr.py", cls.megatron, "--mib", "16"], check=True,
                       stdout=subprocess.DEVNULL)
        cls.converted = cls.base / "converted"
        subprocess.run([CKPT, "convert", cls.megatron, cls.converted, "--to", "torch_dist", "--shard-size", "100KiB", "--files", "3", "--no-sync"],
                       check=True, stderr=subprocess.DEVNULL)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.base)

    def setUp(self):
        self.work = pathlib.Path(tempfile.mkdtemp(dir=self.base))

    def file(self, arrays, name="x.safetensors"):
        write_safetensors(self.work / name, arrays)
        return self.work / name

    def call(self, *args, code=0):
        done = subprocess.run([CKPT, "inspect", *map(str, args)], capture_output=True, text=True)
        self.assertEqual(done.returncode, code, f"{args}\n{done.stdout}{done.stderr}")
        return done

    def json(self, *args, code=0):
        document = json.loads(self.call(*args, "--json", code=code).stdout)
        self.assertEqual((document["schema"], document["kind"]), ("ckpt.inspect/1", "model"))
        return document

    def test_statistics_are_numpys(self):
        random = numpy.random.default_rng(7)
        arrays = {}
        for name, kind in TYPES.items():
            values = random.integers(0, 2, 70_001) if name == "BOOL" else random.normal(3, 20, 70_001).clip(0 if name == "U8" else -128, 127)
            arrays[name] = (name, values.astype(kind))
        hostile = random.normal(0, 1, 5000).astype("<f4")
        hostile[::7], hostile[3::11], hostile[5::13] = numpy.nan, numpy.inf, -numpy.inf
        arrays["hostile"] = ("F32", hostile)
        arrays["BF16"] = ("BF16", (random.normal(0, 1, 999).astype("<f4").view("<u4") >> 16).astype("<u2"))
        arrays["C64"] = ("C64", (random.normal(0, 1, 77) + 1j * random.normal(0, 1, 77)).astype("<c8"))
        arrays["none"] = ("F32", numpy.zeros((0, 3), "<f4"))
        arrays["all nan"] = ("F32", numpy.full(3, numpy.nan, "<f4"))
        for tensor in self.json(self.file(arrays), "--stats")["tensors"]:
            key, stats = tensor["key"], tensor["stats"]
            kind, array = arrays[key]
            values = {"BF16": lambda a: (a.astype("<u4") << 16).view("<f4"), "C64": numpy.abs}.get(kind, lambda a: a)(array).astype("<f8")
            finite = values[numpy.isfinite(values)]
            counts = int(numpy.isnan(values).sum()), int(numpy.isinf(values).sum()), int((values == 0).sum())
            self.assertEqual((stats["nan"], stats["inf"], stats["zeros"]), counts, key)
            if len(finite) == 0:
                self.assertEqual([stats[k] for k in ("min", "max", "mean", "std")], [None] * 4)
                continue
            numpy.testing.assert_allclose([stats["min"], stats["max"]], [finite.min(), finite.max()], rtol=1e-6 if kind == "C64" else 0, err_msg=key)
            numpy.testing.assert_allclose([stats["mean"], stats["std"]], [finite.mean(), finite.std()], rtol=1e-6 if kind == "C64" else 1e-12)

    def test_statistics_do_not_depend_on_shards_and_format(self):
        one, two = (self.json(path, "--stats")["tensors"] for path in (self.megatron, self.converted))
        for a, b in zip(one, two):
            self.assertEqual(a["key"], b["key"])
            for name, value in a["stats"].items():
                self.assertTrue(value == b["stats"][name] or abs(value - b["stats"][name]) <= 1e-9 * abs(value), (a["key"], name))
        self.assertIn("MEAN", self.call(self.megatron, "--stats").stdout)

    def test_sorting_and_columns(self):
        path = self.file({"b": ("F32", numpy.zeros(2, "<f4")), "a.10": ("I64", numpy.ones(5, "<i8")), "a.2": ("U8", numpy.zeros(3, "|u1"))})
        keys = lambda *options: [t["key"] for t in self.json(path, *options)["tensors"]]
        self.assertEqual(keys(), ["a.2", "a.10", "b"])
        self.assertEqual(keys("--reverse"), ["b", "a.10", "a.2"])
        self.assertEqual(keys("--sort", "size"), ["a.10", "b", "a.2"])
        self.assertEqual(keys("--sort", "dtype"), ["b", "a.10", "a.2"])
        self.assertEqual(keys("--stats", "--sort", "mean", "--reverse")[-1], "a.10")
        lines = self.call(path, "--columns", "bytes,key,grid,file").stdout.splitlines()
        self.assertEqual(lines[0].split(), ["BYTES", "TENSOR", "GRID", "FILE"])
        self.assertEqual(lines[1].split(), ["3", "a.2", "-", "x.safetensors"])
        self.call(path, "--columns", "colour", code=2)
        self.assertIn("--stats", self.call(path, "--sort", "mean", code=2).stderr)

    def test_views_that_exclude_each_other_are_refused(self):
        path = self.file(floats("a"))
        for options in (["--tree", "--files"], ["--tree", "--stats"], ["--common", "--shards", "a"], ["--tolerance", "1"],
                        ["--group-by", "colour"], ["--diff", path, "--tree"], ["--depth", "x"]):
            self.call(path, *options, code=2)

    def test_the_tree_rolls_sizes_up(self):
        path = self.file(floats("m.l.10.w", "m.l.2.w", "m.l.2.b", "z"))
        rows = [line.split()[:4] for line in self.call(path, "--tree").stdout.splitlines()[1:6]]
        self.assertEqual(rows[0][:2] + rows[1][:2] + rows[2][:2], ["m.l", "48", "2", "32", "b", "16"])
        nodes = self.json(path, "--tree", "--depth", "1")["tree"]
        self.assertEqual([(n["name"], n["bytes"], n["tensors"], n.get("cut")) for n in nodes], [("m.l", 48, 3, True), ("z", 16, 1, None)])
        self.assertIn("m.l.**", self.call(path, "--tree", "--depth", "1").stdout)
        whole = self.json(self.megatron, "--tree", "--depth", "0")["tree"]
        self.assertEqual(sum("key" in n for n in whole), 32)
        self.assertEqual(sum(n["bytes"] for n in whole if n["depth"] == 1), self.json(self.megatron)["totals"]["bytes"])

    def test_another_format_and_other_shards_are_equal(self):
        done = self.call(self.megatron, "--diff", self.converted)
        self.assertIn("32 tensors in both: 32 equal, 0 different", done.stdout)
        self.assertTrue(self.json(self.converted, "--diff", self.megatron)["equal"])

    def test_differences_are_found_named_and_exit_with_1(self):
        a = self.file({**floats("same", "gone", "value"), "shape": ("F32", numpy.zeros((2, 3), "<f4")), "type": ("F32", numpy.ones(3, "<f4"))}, "a.safetensors")
        value = numpy.arange(4, dtype="<f4")
        value[2] += 0.125
        b = self.file({**floats("same", "new"), "value": ("F32", value), "shape": ("F32", numpy.zeros((3, 2), "<f4")),
                       "type": ("F64", numpy.ones(3, "<f8"))}, "b.safetensors")
        document = self.json(a, "--diff", b, code=1)
        found = {d["key"]: d for d in document["diff"]}
        self.assertEqual(set(found), {"gone", "new", "value", "shape", "type"})
        self.assertEqual((found["value"]["different"], found["value"]["max_abs"], found["value"]["first"]), (1, 0.125, [2]))
        self.assertNotIn("b", found["gone"])
        self.assertEqual(found["type"]["different"], 0)
        done = self.call(a, "--diff", b, code=1)
        self.assertIn("1 of 4", done.stdout)
        self.assertIn("is different from", done.stderr)
        self.call(a, "value", "--diff", b, "--tolerance", "0.1", code=1)
        self.call(a, "value", "--diff", b, "--tolerance", "0.2")
        self.call(a, "value", "--diff", b, "--tolerance", "0,0.1")
        self.call(a, "same", "--diff", b)
        self.call(a, "nothing.like.this", "--diff", b, code=4)
        for bad in ("x", "-1", "1,", "1,2,3", "nan"):
            self.call(a, "--diff", b, "--tolerance", bad, code=2)
        self.call(a, "--diff", self.work / "none", code=4)

    def test_a_damaged_shard_is_a_difference_of_its_tensor_only(self):
        copy = self.work / "copy"
        shutil.copytree(self.megatron, copy)
        key = "decoder.layers.mlp.linear_fc1.weight"
        (copy / key / "0.0.0").unlink()
        document = self.json(self.megatron, "--diff", copy, code=1)
        self.assertEqual([d["key"] for d in document["diff"]], [key])
        self.assertIn("unreadable", document["diff"][0])
        self.assertIn(key, self.call(copy, "--stats", code=1).stderr)
        self.call(copy, "decoder.layers.mlp.linear_fc2.*", "--stats")

    def test_shards_are_where_they_are_said_to_be(self):
        key = "decoder.layers.mlp.linear_fc1.weight"
        for path in (self.megatron, self.converted):
            tensor, = self.json(path, "--shards", key)["tensors"]
            self.assertIsNotNone(tensor["grid"])
            whole = subprocess.run([CKPT, "cat", path, key], capture_output=True, check=True).stdout
            array = numpy.frombuffer(whole, "<u2").reshape(tensor["shape"])
            for shard in tensor["shards"]:
                box = tuple(slice(o, o + n) for o, n in zip(shard["offset"], shard["shape"]))
                raw = (path / shard["file"]).read_bytes()[shard["begin"] : shard["end"]]
                self.assertEqual(raw, array[box].tobytes())
        self.assertIn("grid", self.call(self.converted, "--shards", key).stdout)
        self.call(self.converted, "--shards", "nothing", code=4)

    def test_files_are_accounted_for(self):
        copy = self.work / "copy"
        shutil.copytree(self.converted, copy)
        (copy / "left-over.bin").write_bytes(b"12345")
        files = {f["file"]: f for f in self.json(copy, "--files")["files"]}
        self.assertEqual(set(files), {p.name for p in copy.iterdir()})
        self.assertEqual((files["left-over.bin"]["bytes"], files["left-over.bin"]["other"], files["left-over.bin"]["listed"]), (5, 5, False))
        for name, file in files.items():
            self.assertEqual(file["bytes"], (copy / name).stat().st_size)
            if name.endswith(".distcp"):
                self.assertGreater(file["tensors"], 0)
                self.assertEqual(file["referred"] + file["other"], file["bytes"])
                self.assertLess(file["other"], file["bytes"] // 100)  # padding
        (copy / "__0_0.distcp").unlink()
        self.assertIn("missing", self.call(copy, "--files").stdout)
        self.call(self.megatron, "--files")

    def test_parameters_are_grouped_with_their_moments(self):
        state = "optimizer.state."
        path = self.file(floats("a", "b", "c", *(state + s + k for s in ("exp_avg.", "exp_avg_sq.") for k in "ab"), state + "exp_avg.c", state + "exp_avg.gone"))
        document = self.json(path, "--group-by", "param")
        groups = {g["name"]: g for g in document["groups"]}
        self.assertEqual(groups["a"]["states"], {"exp_avg": state + "exp_avg.a", "exp_avg_sq": state + "exp_avg_sq.a"})
        self.assertEqual(groups["c"]["missing"], ["exp_avg_sq"])
        self.assertIsNone(groups["gone"]["param"])
        self.assertEqual({f["key"] for f in document["findings"]}, {"c", state + "exp_avg.gone"})
        text = self.call(path, "--group-by", "param").stdout
        self.assertIn("lacks exp_avg_sq", text)
        self.assertIn("no such parameter", text)

    def test_names_drive_no_terminal(self):
        path = self.file(floats("a\x1b[31m.b", "x\n.y"))
        for options in ([], ["--tree"], ["--stats"], ["--shards", "**"], ["--group-by", "param"], ["--diff", self.file(floats("z\x1b"), "z.safetensors")]):
            done = self.call(path, *options, code=1 if "--diff" in options else 0)
            self.assertNotIn("\x1b", done.stdout + done.stderr, options)

    def test_100_000_tensors_are_shown_every_way(self):
        path = self.file({f"decoder.layers.{i // 10}.part{i % 10}.weight": ("F32", numpy.zeros(1, "<f4")) for i in range(100_000)})
        for options in ([], ["--tree"], ["--files"], ["--group-by", "param"], ["--stats"], ["--diff", path], ["--sort", "shape"]):
            start = time.monotonic()
            self.assertIn("100000", self.call(path, *options).stdout)
            print(f"100,000 tensors, {' '.join(map(str, options[:1])) or 'table'}: {time.monotonic() - start:.2f} s", file=sys.stderr)


if __name__ == "__main__":
    unittest.main()
