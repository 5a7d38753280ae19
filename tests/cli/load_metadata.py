#!/usr/bin/env python3
"""ckpt load-metadata at the prompt: what it lists, and plans whose reads give the bytes that a rank has.

    load_metadata.py CKPT_BINARY [TEST...]
"""
import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import numpy

HERE = pathlib.Path(__file__).resolve().parent
CKPT = os.path.abspath(sys.argv.pop(1))
WEIGHT = "decoder.layers.mlp.linear_fc1.weight"


class LoadMetadata(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.base = pathlib.Path(tempfile.mkdtemp(prefix="ckpt-metadata-"))
        cls.megatron = cls.base / "megatron"
        subprocess.run([sys.executable, HERE.parent / "support" / "make_megatron_zarr.py", cls.megatron, "--mib", "16"], check=True,
                       stdout=subprocess.DEVNULL)
        cls.converted = cls.base / "converted"
        subprocess.run([CKPT, "convert", cls.megatron, cls.converted, "--to", "torch_dist", "--no-sync"], check=True, stderr=subprocess.DEVNULL)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.base)

    def call(self, *args, code=0):
        done = subprocess.run([CKPT, "load-metadata", *map(str, args)], capture_output=True, text=True)
        self.assertEqual(done.returncode, code, f"{args}\n{done.stdout}{done.stderr}")
        return json.loads(done.stdout) if code == 0 else done.stderr

    def test_an_interrupt_is_heard_in_the_middle_of_a_long_pickle(self):
        folder = self.base / "endless"
        folder.mkdir()
        (folder / ".metadata").write_bytes(b"\x80\x02" + b"(1" * (90 << 20))  # no STOP: read to its end it is damaged
        codes = []
        for delay in (0.2, 0.1, 0.3, 0.05, 0.5):
            process = subprocess.Popen([CKPT, "load-metadata", folder], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(delay)
            process.send_signal(signal.SIGINT)
            codes.append(process.wait())
            if codes[-1] == 130:
                break
        self.assertEqual(codes[-1], 130, codes)

    def layout(self, document):
        path = self.base / "layout.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return path

    def array(self, path, key):
        shape = self.call(path, "--key", key)["tensors"][0]["shape"]
        raw = subprocess.run([CKPT, "cat", path, key], capture_output=True, check=True).stdout
        return numpy.frombuffer(raw, "<u2").reshape(shape)

    def elements(self, path, box):
        """The elements of a box's reads, sorted."""
        out = b""
        for read in box["reads"]:
            data = (path / read["file"]).read_bytes()
            for steps in itertools.product(*(range(0, count * stride, stride) for count, stride in read.get("repeat", []))):
                at = read["offset"] + sum(steps)
                out += data[at : at + read["length"]]
        return numpy.sort(numpy.frombuffer(out, "<u2"))

    def test_tensors_objects_and_the_common_state_are_listed(self):
        document = self.call(self.converted, "--common")
        self.assertEqual((document["schema"], document["kind"], document["format"]), ("ckpt.load-metadata/1", "model", "torch_dist"))
        self.assertEqual((len(document["tensors"]), len(document["objects"])), (32, 6))
        self.assertEqual(document["common"]["iteration"], 100)

    def test_the_reads_of_a_plan_are_the_ranks_elements(self):
        for path in (self.megatron, self.converted):
            array = self.array(path, WEIGHT)
            plan = self.call(path, "--key", WEIGHT, "--plan", self.layout({"world": {"tp": 4, "pp": 2}, "tensors": {"decoder.**": [[0, "pp"], [1, "tp"]]}}))
            self.assertEqual((plan["kind"], plan["world"], plan["unmatched"]), ("plan", {"tp": 4, "pp": 2}, []))
            self.assertEqual([r["at"] for r in plan["ranks"]], [{"tp": n % 4, "pp": n // 4} for n in range(8)])
            layers, rows = array.shape[0] // 2, array.shape[1] // 4
            for rank in plan["ranks"]:
                pp, tp = rank["at"]["pp"], rank["at"]["tp"]
                wanted = array[pp * layers : (pp + 1) * layers, tp * rows : (tp + 1) * rows]
                box, = rank["tensors"][0]["boxes"]
                self.assertEqual(box["shape"], list(wanted.shape))
                self.assertTrue((self.elements(path, box) == numpy.sort(wanted.ravel())).all())
                self.assertEqual((rank["bytes"], rank["read"]), (wanted.nbytes, wanted.nbytes))

    def test_flattened_parts_follow_one_another(self):
        array = self.array(self.converted, WEIGHT)
        plan = self.call(self.converted, "--key", WEIGHT, "--plan", self.layout({"world": {"tp": 2, "dp": 7}, "tensors": {"**": {"cut": [[1, "tp"]], "flatten": "dp"}}}))
        half = array.shape[1] // 2
        for rank in plan["ranks"]:
            cell = array[:, rank["at"]["tp"] * half : (rank["at"]["tp"] + 1) * half].ravel()
            step = -(-len(cell) // 7)
            wanted = cell[rank["at"]["dp"] * step : (rank["at"]["dp"] + 1) * step]
            got = numpy.concatenate([self.elements(self.converted, box) for box in rank["tensors"][0]["boxes"]])
            self.assertTrue((numpy.sort(got) == numpy.sort(wanted)).all())

    def test_one_rank_and_what_no_rule_speaks_of(self):
        plan = self.call(self.converted, "--rank", "1", "--plan", self.layout({"world": 2, "tensors": {"embedding.**": [[0, "rank"]], "optimizer.**": None}}))
        self.assertEqual([r["rank"] for r in plan["ranks"]], [1])
        self.assertIn(WEIGHT, plan["unmatched"])
        self.assertFalse([t for t in plan["ranks"][0]["tensors"] if t["key"].startswith("optimizer.")])

    def test_wrong_layouts_are_refused_before_anything_is_printed(self):
        for text, word in (("{", "JSON"), ('{"world": 2, "tensors": {"**": [[0, "tp"]]}}', '"tp"'), ('{"world": 7, "tensors": {"**": [[1, "rank"]]}}', "axis 1")):
            self.assertIn(word, self.call(self.converted, "--plan", self.layout(text), code=2))
        self.call(self.converted, "--plan", self.base / "none.json", code=4)
        good = self.layout({"world": 2, "tensors": {}})
        self.call(self.converted, "--plan", good, "--rank", "2", code=2)
        self.call(self.converted, "--rank", "0", code=2)
        self.call(self.converted, "--plan", good, "--common", code=2)


if __name__ == "__main__":
    unittest.main()
