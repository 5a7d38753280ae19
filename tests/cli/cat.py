#!/usr/bin/env python3
"""ckpt cat at the prompt: numpy reads what it prints, and cuts as it does.

    cat.py CKPT_BINARY [TEST...]
"""
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import numpy

HERE = pathlib.Path(__file__).resolve().parent
CKPT = os.path.abspath(sys.argv.pop(1))
TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1", "U8": "|u1", "BOOL": "|b1"}


def write_safetensors(path, arrays):
    """`arrays`: name -> (safetensors' dtype, array)."""
    header, body = {}, b""
    for name, (dtype, array) in arrays.items():
        raw = array.tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


class Cat(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.base = pathlib.Path(tempfile.mkdtemp(prefix="ckpt-cat-"))
        random = numpy.random.default_rng(1)
        cls.arrays = {name: (name, random.integers(0, 2 if name == "BOOL" else 100, (3, 4, 5)).astype(kind)) for name, kind in TYPES.items()}
        cls.arrays |= {"BF16": ("BF16", random.integers(0, 65536, (6, 2)).astype("<u2")), "fp8": ("F8_E4M3", numpy.arange(256, dtype="|u1")),
                       "scalar": ("F32", numpy.array(2.5, "<f4")), "none": ("F32", numpy.zeros((0, 7), "<f4"))}
        cls.file = cls.base / "x.safetensors"
        write_safetensors(cls.file, cls.arrays)
        cls.megatron = cls.base / "megatron"
        subprocess.run([sys.executable, HERE.parent / "support" / "make_megatron_zarr.py", cls.megatron, "--mib", "16"], check=True,
                       stdout=subprocess.DEVNULL)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.base)

    def cat(self, *args, code=0, **options):
        options.setdefault("stdout", subprocess.PIPE)
        done = subprocess.run([CKPT, "cat", *map(str, args)], stderr=subprocess.PIPE, **options)
        self.assertEqual(done.returncode, code, f"{args}: {done.stderr}")
        return done.stdout if code == 0 else done.stderr.decode()

    def npy(self, *args):
        return numpy.load(io.BytesIO(self.cat(*args, "--npy")))

    def test_numpy_reads_every_dtype(self):
        for name, (kind, array) in self.arrays.items():
            self.assertEqual(self.cat(self.file, name), array.tobytes(), name)
            loaded = self.npy(self.file, name)
            self.assertEqual(loaded.shape, array.shape, name)
            self.assertEqual(loaded.tobytes(), array.tobytes(), name)
            self.assertEqual(loaded.dtype.str, {"BF16": "|V2", "F8_E4M3": "|V1"}.get(kind, array.dtype.str), name)

    def test_the_header_is_what_numpy_writes(self):
        for name in (*TYPES, "none", "scalar"):
            wanted = io.BytesIO()
            numpy.save(wanted, self.arrays[name][1])
            self.assertEqual(self.cat(self.file, name, "--npy"), wanted.getvalue(), name)

    def test_slices_are_numpys(self):
        array = self.arrays["I32"][1]
        for text in ("0:2,:,3", "-1", "-1,0", "-2:,-1", "...", "...,1:-1", "1,2,3", "5:", "2:1", ":,-2:", "[0, ..., 4]", "0:1,0:1,0:1", ""):
            wanted = eval(f"array[{text.strip('[]') or '...'}]")  # pylint: disable=eval-used
            got = self.npy(self.file, "I32", "--slice", text)
            self.assertEqual(got.shape, wanted.shape, text)
            self.assertTrue((got == wanted).all(), text)
            self.assertEqual(self.cat(self.file, "I32", "--slice", text), wanted.tobytes())

    def test_shards_make_no_difference(self):
        key = "decoder.layers.mlp.linear_fc1.weight"
        layout = json.loads((self.megatron / key / ".zarray").read_text())
        whole = numpy.zeros(layout["shape"], "<u2")
        for chunk in (self.megatron / key).glob("[0-9]*"):
            at = [int(i) for i in chunk.name.split(".")]
            box = tuple(slice(i * n, (i + 1) * n) for i, n in zip(at, layout["chunks"]))
            whole[box] = numpy.frombuffer(chunk.read_bytes(), "<u2").reshape(layout["chunks"])
        self.assertEqual(self.cat(self.megatron, key), whole.tobytes())
        self.assertEqual(self.cat(self.megatron, key, "--slice", ":,5:-3,7"), whole[:, 5:-3, 7].tobytes())

    def test_an_object_comes_as_it_is_stored(self):
        name = next(p.name for p in (self.megatron / "rng_state").iterdir())
        key = "rng_state/" + name.removesuffix(".pt")
        self.assertEqual(self.cat(self.megatron, key), (self.megatron / "rng_state" / name).read_bytes())
        self.assertIn("object", self.cat(self.megatron, key, "--npy", code=2))
        self.assertIn("object", self.cat(self.megatron, key, "--slice", "0", code=2))

    def test_what_is_not_there_or_does_not_fit_is_said(self):
        self.assertIn("nothing of the name", self.cat(self.file, "I33", code=4))
        self.assertIn("none.safetensors", self.cat(self.base / "none.safetensors", "I32", code=4))
        for text in ("7", "0,0,0,0", "::2", "x"):
            self.cat(self.file, "I32", "--slice", text, code=2)

    def test_a_terminal_is_refused_unless_forced(self):
        leader, follower = os.openpty()
        self.assertIn("--force", self.cat(self.file, "scalar", code=2, stdout=follower))
        self.cat(self.file, "scalar", "--force", stdout=follower)
        self.assertEqual(os.read(leader, 100), self.arrays["scalar"][1].tobytes())
        os.close(leader)
        os.close(follower)

    def test_a_closed_pipe_ends_it_quietly(self):
        process = subprocess.Popen([CKPT, "cat", self.megatron, "embedding.word_embeddings.weight"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdout.read(10)
        process.stdout.close()
        self.assertEqual(process.stderr.read(), b"")
        process.stderr.close()
        self.assertEqual(process.wait(), 0)

    def test_damage_elsewhere_does_not_matter_and_its_own_is_named(self):
        copy = self.base / "damaged"
        shutil.copytree(self.megatron, copy)
        key = "decoder.layers.mlp.linear_fc1.weight"
        (copy / key / "0.0.0").unlink()
        self.assertIn(key, self.cat(copy, key, code=1))
        self.cat(copy, "decoder.layers.mlp.linear_fc2.weight")


if __name__ == "__main__":
    unittest.main()
