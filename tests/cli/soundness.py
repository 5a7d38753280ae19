#!/usr/bin/env python3
"""What verify finds wrong, convert refuses to pass on; what cannot be read is named by all verbs, never passed over.

    soundness.py CKPT_BINARY [TEST...]
"""
import json
import lzma
import os
import pathlib
import pickle
import resource
import struct
import subprocess
import sys
import tempfile
import unittest
import zipfile
import zlib

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
from small_checkpoints import *  # noqa: E402

CKPT = os.path.abspath(sys.argv.pop(1))


class Bad:
    def __reduce__(self):
        return os.system, ("true",)


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ckpt-soundness-")
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, "/")
        os.chdir(folder.name)

    def call(self, code, *args):
        done = subprocess.run([CKPT, *map(str, args)], capture_output=True, text=True, errors="replace", timeout=100)
        self.assertEqual(done.returncode, code, f"{args}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def refused(self, code, words, *args):
        """Nothing is written, and what is printed holds the words."""
        before = sorted(os.listdir("."))
        text = self.call(code, *args)
        for word in words:
            self.assertIn(word, text)
        self.assertEqual(sorted(os.listdir(".")), before)
        return text

    def simple(self, path="s.safetensors"):
        safetensors(path, {"w": ("F32", [64, 64], floats(4096, 1.0)), "v": ("F32", [64, 64], floats(4096, 9.0))})
        return path


class Unreadable(Case):
    def sources(self):
        """(path, arguments that leave out what cannot be read)"""
        os.mkdir("z")
        zarr_array("z/kept", [4], [4], floats(4))
        zarr_array("z/lost", [4], [4], lzma.compress(floats(4)), {"id": "lzma"})
        yield "z"
        def gguf_text(s):
            return struct.pack("<Q", len(s)) + s.encode()
        head = b"GGUF" + struct.pack("<IQQ", 3, 2, 0)
        head += gguf_text("kept") + struct.pack("<IQIQ", 1, 8, 0, 0)
        head += gguf_text("lost") + struct.pack("<IQIQ", 1, 32, 99, 32)  # a type of the future
        head += b"\0" * (-len(head) % 32)
        pathlib.Path("m.gguf").write_bytes(head + floats(8) + b"\1" * 64)
        yield "m.gguf"
        npz("a.npz", {"kept": npy("<f4", [4], floats(4)), "lost": npy("<U1", [2], b"x\0\0\0y\0\0\0")})
        yield "a.npz"
        torch_save("m.pt", {"kept": tensor("0", [2, 2]), "lost": tensor("1", [2, 2], "_rebuild_tensor_v9")}, {"0": floats(4), "1": floats(4)})
        yield "m.pt"
        torch_save("s.pt", {"kept": tensor("0", [2, 2]), "lost": storage("1", 4)}, {"0": floats(4), "1": floats(4)})
        yield "s.pt"

    def test_it_is_named_by_every_verb_and_left_out_only_when_told(self):
        for source in self.sources():
            with self.subTest(source):
                self.refused(6, ["lost", "--skip-unreadable"], "convert", source, "out.safetensors", "--to", "safetensors", "--verify")
                self.assertIn("lost", self.call(6, "verify", source))
                self.assertIn("1 not checked", self.call(0, "verify", source, "--skip-unreadable"))
                done = json.loads(self.call(0, "--json", "-q", "convert", source, source + ".st.safetensors", "--to", "safetensors", "--skip-unreadable", "--tensors-only"))
                self.assertEqual([entry["key"] for entry in done["skipped"]], ["lost"])
                self.assertIn("lost", " ".join(done["notes"]))
                out = source + ".st.safetensors"
                self.call(0, "convert", source, source + ".x.safetensors", "--to", "safetensors", "--exclude", "lost", "--tensors-only", "--verify")
                for first, second in ((source, out), (out, source)):
                    self.assertIn("lost", self.call(1, "inspect", first, "--diff", second))
                    self.call(0, "inspect", first, "--diff", second, "--skip-unreadable")
                self.assertIn("lost: cannot be compared", self.call(1, "verify", out, "--against", source))
                self.call(0, "verify", out, "--against", source, "--skip-unreadable")
                self.assertIn("lost", self.call(6, "cat", source, "lost"))

    def test_one_rank_s_shards_are_read_as_parts(self):
        shards = [(tensor("0", [2, 8]), [4, 0], [2, 8])]
        torch_save("rank1.pt", {"w": sharded_tensor(shards, [8, 8])}, {"0": floats(16, 5)})
        self.assertIn("w._local_shards.0 at [4, 0]".replace("w.", ""), self.call(0, "convert", "rank1.pt", "out.safetensors", "--to", "safetensors"))
        self.assertEqual(subprocess.run([CKPT, "cat", "out.safetensors", "w._local_shards.0"], capture_output=True).stdout, floats(16, 5))
        torch_save("whole.pt", {"w": sharded_tensor([(tensor("0", [8, 8]), [0, 0], [8, 8])], [8, 8])}, {"0": floats(64)})
        self.call(0, "convert", "whole.pt", "whole.safetensors", "--to", "safetensors", "--verify")
        self.assertEqual(subprocess.run([CKPT, "cat", "whole.safetensors", "w"], capture_output=True).stdout, floats(64))
        torch_save("none.pt", {"w": sharded_tensor([], [8, 8]), "v": tensor("0", [2])}, {"0": floats(2)})
        self.assertIn("none of them", self.call(0, "inspect", "none.pt"))


class Damage(Case):
    def flip(self, path, data):
        raw = bytearray(pathlib.Path(path).read_bytes())
        at = raw.find(data)
        self.assertNotEqual(at, -1)
        raw[at + len(data) // 2] ^= 0x40
        pathlib.Path(path).write_bytes(raw)

    def test_a_crc_that_differs_is_damage_for_both_verbs_in_the_same_words(self):
        for form, out in (("torch", "a.pt"), ("dcp", "d"), ("torch_dist", "t"), ("npz", "n.npz")):
            with self.subTest(form):
                if form == "npz":
                    npz(out, {"w": npy("<f4", [64, 64], floats(4096, 1.0)), "v": npy("<f4", [64, 64], floats(4096, 9.0))})
                else:
                    self.call(0, "convert", self.simple(), out, "--to", form)
                self.call(0, "verify", out, "--strict")
                path = next(str(p) for p in sorted(pathlib.Path(out).glob("*.distcp"))) if os.path.isdir(out) else out
                self.flip(path, floats(4096, 1.0))
                found = self.call(1, "verify", out)
                sentence = next(line for line in found.splitlines() if "the CRC of record" in line).split(": ", 1)[1]
                sentence = sentence[sentence.index("the CRC"):]
                self.assertIn("w: the CRC" if form not in ("torch", "npz") else "the CRC", found)
                for to, target in (("safetensors", "x.safetensors"), ("torch_dist", "x"), ("zarr3", "y")):
                    self.refused(1, [sentence], "convert", out, target, "--to", to, "--tensors-only")
                # Cut anew, the record is not read front to back.
                self.refused(1, [sentence], "convert", out, "x", "--to", "dcp", "--shard-grid", "4x4", "--tensors-only")
                self.refused(1, [sentence], "convert", out, "x.safetensors", "--to", "safetensors", "--dtype", "**=float16", "--tensors-only")
                self.call(0, "convert", out, "kept-" + form + ".safetensors", "--to", "safetensors", "--tensors-only", "--exclude", "w", "--verify")
                self.assertIn(sentence, self.call(0, "convert", out, "told-" + form + ".safetensors", "--to", "safetensors", "--tensors-only", "--allow-damage"))

    def test_nothing_wrong_is_left_for_resume(self):
        self.call(0, "convert", self.simple(), "t", "--to", "torch_dist")
        path = next(pathlib.Path("t").glob("*.distcp"))
        self.flip(path, floats(4096, 1.0))
        for _ in range(2):
            self.assertIn("the CRC", self.call(1, "convert", "t", "out", "--to", "dcp", "--resume", "--tensors-only", "--files", "2"))
        self.assertFalse(os.path.exists("out"))

    def test_a_crc_that_was_not_computed_is_a_note(self):
        torch_save("m.pt", {"w": tensor("0", [4, 4])}, {"0": floats(16, 1.0)})
        raw = bytearray(pathlib.Path("m.pt").read_bytes())
        crc = struct.pack("<I", zlib.crc32(floats(16, 1.0)))
        while (at := raw.find(crc)) != -1:
            raw[at:at + 4] = bytes(4)
        pathlib.Path("m.pt").write_bytes(raw)
        self.assertIn("1 CRCs were not computed", self.call(0, "verify", "m.pt"))
        self.call(1, "verify", "m.pt", "--strict")
        self.assertIn("1 CRCs were not computed", self.call(0, "convert", "m.pt", "m.safetensors", "--to", "safetensors", "--verify"))

    def megatron(self):
        os.mkdir("z")
        pathlib.Path("z/metadata.json").write_text(json.dumps({"sharded_backend": "zarr", "sharded_backend_version": 1,
                                                               "common_backend": "torch", "common_backend_version": 1}))
        torch_save("z/common.pt", {"iteration": b"K\1"}, {})
        zarr_array("z/whole", [4], [4], floats(4))

    def test_an_object_that_lacks_parts_is_not_converted(self):
        self.megatron()
        os.mkdir("z/rng_state")
        torch_save("z/rng_state/shard_0_2.pt", {"seed": b"K\0"}, {})
        words = "1 of 2 shards of the object are there"
        self.assertIn(words, self.call(1, "verify", "z"))
        self.refused(1, [words], "convert", "z", "out", "--to", "torch_dist")
        self.assertIn(words, self.call(0, "convert", "z", "out", "--to", "torch_dist", "--allow-damage"))
        self.call(0, "convert", "z", "out2", "--to", "torch_dist", "--exclude", "rng_state/**")
        self.call(0, "verify", "out2")

    def test_metadata_is_shown_whatever_the_chunks_are(self):
        self.megatron()
        zarr_array("z/gap", [8], [4], {"0": floats(4)})
        words = "the chunk is missing"
        for verb in ("load-metadata", "inspect"):
            text = self.call(0, verb, "z")
            self.assertIn("whole", text)
            self.assertIn("gap", text)
            self.assertIn(words, text)
        self.assertIn(words, json.loads(self.call(0, "-q", "load-metadata", "z"))["damage"][0])
        self.assertIn(words, json.loads(self.call(0, "--json", "-q", "inspect", "z"))["damage"][0])
        self.call(1, "verify", "z")
        self.refused(1, [words], "convert", "z", "out", "--to", "torch_dist")
        self.call(0, "convert", "z", "out", "--to", "torch_dist", "--exclude", "gap", "--verify")


class Pickles(Case):
    def test_a_length_that_looks_like_an_opcode_is_no_pickle(self):
        for length in (0x80, 0x82, 0x83, 0x84):  # PROTO, EXT1, EXT2, EXT4
            header = json.dumps({"w": {"dtype": "F32", "shape": [200], "data_offsets": [0, 800]}}).ljust(length).encode()
            pathlib.Path("cut.safetensors").write_bytes(struct.pack("<Q", length) + header + bytes(500))
            self.assertIn("damaged: 1 finding", self.call(1, "verify", "cut.safetensors"))

    def test_an_array_of_objects_is_judged(self):
        body = pickle.dumps([Bad()], 2)
        pathlib.Path("o.npy").write_bytes(npy("|O", [1], body))
        npz("o.npz", {"o": npy("|O", [1], body)})
        npz("d.npz", {"o": npy("|O", [1], body)}, zipfile.ZIP_DEFLATED)
        for path in ("o.npy", "o.npz", "d.npz"):
            with self.subTest(path):
                self.assertRegex(self.call(1, "verify", path), r"at byte \d+: o: loading it imports posix.system, which runs commands")
        npz("plain.npz", {"o": npy("|O", [1], pickle.dumps([1, "two"], 2))})
        self.call(0, "verify", "plain.npz", "--skip-unreadable")

    def test_dangerous_ones_are_not_passed_on(self):
        with zipfile.ZipFile("os.pt", "w") as archive:
            archive.writestr("os/data.pkl", pickle.dumps({"x": Bad()}, 2))
            archive.writestr("os/version", "3\n")
        for to, target in (("torch", "x.pt"), ("torch_dist", "x")):
            self.refused(1, ["posix.system", "--trust-pickles"], "convert", "os.pt", target, "--to", to)
        self.assertIn("posix.system", self.call(0, "convert", "os.pt", "told.pt", "--to", "torch", "--trust-pickles"))


class Request(Case):
    def test_a_glob_that_fits_nothing_is_refused(self):
        self.simple()
        for option in (["--include", "nope**"], ["--exclude", "nope**"], ["--dtype", "nope**=float16"], ["--shape", "nope**=1x1"]):
            with self.subTest(option):
                self.refused(2, ["nope**"], "convert", "s.safetensors", "x.safetensors", "--to", "safetensors", *option)
        self.refused(2, ["nope**"], "convert", "s.safetensors", "x", "--to", "dcp", "--shard-grid", "nope**=2x2")
        self.refused(2, ["no tensor left"], "convert", "s.safetensors", "x.safetensors", "--to", "safetensors", "--exclude", "**")
        safetensors("empty.safetensors", {})
        self.call(0, "convert", "empty.safetensors", "x.safetensors", "--to", "safetensors")

    def test_files_beside_the_checkpoint_are_named_or_copied(self):
        self.call(0, "convert", self.simple(), "d", "--to", "dcp")
        for name in ("meta.pt", "run_config.yaml"):
            pathlib.Path("d", name).write_text("epoch: 3\n")
        os.mkdir("d/tokenizer")
        done = json.loads(self.call(0, "--json", "-q", "convert", "d", "out", "--to", "torch_dist"))
        self.assertEqual(done["siblings"], ["meta.pt", "run_config.yaml", "tokenizer/"])
        self.assertIn("meta.pt, run_config.yaml, tokenizer/", " ".join(done["notes"]))
        for option in ([], ["--resume"]):
            out = "out2" + "".join(option)
            self.assertIn("tokenizer/", self.call(0, "convert", "d", out, "--to", "torch_dist", "--copy-siblings", *option))
            self.assertEqual(pathlib.Path(out, "meta.pt").read_text(), "epoch: 3\n")
            self.call(0, "verify", out)
        pathlib.Path("d/common.pt.x").write_text("mine")
        pathlib.Path("d/metadata.json.x").write_text("mine")
        self.refused(2, ["--copy-siblings"], "convert", "d", "x.safetensors", "--to", "safetensors", "--copy-siblings")

    def test_a_folder_with_one_torch_save_file_is_that_file(self):
        self.call(0, "convert", self.simple(), "d", "--to", "torch", "--verify")
        self.call(0, "verify", "d")
        self.call(0, "inspect", self.simple(), "--diff", "d")
        pathlib.Path("d/config.json").write_text("{}")
        self.call(0, "inspect", "d")
        pathlib.Path("d/second.pt").write_bytes(pathlib.Path("d/model.pt").read_bytes())
        self.call(6, "inspect", "d")

    def test_the_common_state_that_is_not_there_is_null(self):
        self.assertIsNone(json.loads(self.call(0, "load-metadata", self.simple(), "--common"))["common"])

    def test_every_verb_takes_the_format(self):
        self.simple()
        for verb in (["inspect"], ["verify"], ["load-metadata"]):
            self.call(0, *verb, "s.safetensors", "--from", "safetensors")
            self.assertIn("is no gguf checkpoint", self.call(6, *verb, "s.safetensors", "--from", "gguf"))
        self.assertIn("is no gguf checkpoint", self.call(6, "cat", "s.safetensors", "w", "--from", "gguf"))

    def test_optimizer_state_has_a_flag_of_its_own(self):
        tensors = {}
        for key in ("a.weight", "b.weight"):
            tensors[key] = tensors["optimizer.state.exp_avg." + key] = ("F32", [4], floats(4))
        safetensors("s.safetensors", tensors)
        self.assertIn("warning: no parameter has the optimizer state exp_avg_sq", self.call(0, "verify", "s.safetensors", "--strict"))
        self.assertIn("damaged: no parameter has the optimizer state exp_avg_sq", self.call(1, "verify", "s.safetensors", "--optimizer"))


class Memory(Case):
    def test_a_chunk_that_is_too_large_is_refused_by_every_verb(self):
        size = 192 << 20
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        raw = b"".join(packer.compress(b"\0" * (16 << 20)) for _ in range(size // (16 << 20))) + packer.flush()
        zarr_array("z", [size // 4], [size // 4], raw, {"id": "gzip", "level": 9})
        for verb in (["verify", "z"], ["inspect", "z", "--stats"], ["inspect", "z", "--diff", "z"], ["verify", "z", "--against", "z"],
                     ["cat", "z", json.loads(self.call(0, "load-metadata", "z"))["tensors"][0]["key"]]):
            with self.subTest(verb):
                self.assertIn("--max-memory", self.call(9, *verb))
        self.assertLess(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, 128 << 10)
        self.call(0, "verify", "z", "--max-memory", "512MiB")

    def test_less_than_the_least_is_refused(self):
        self.refused(2, ["20.0 MiB"], "convert", self.simple(), "x.safetensors", "--to", "safetensors", "--max-memory", "1")
        self.call(0, "convert", "s.safetensors", "x.safetensors", "--to", "safetensors", "--max-memory", "20MiB")


unittest.main(verbosity=1)
