#!/usr/bin/env python3
"""ckpt convert at the prompt: exit codes, messages, and a destination that is complete or absent.

    convert.py CKPT_BINARY [TEST...]
"""
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

HERE = pathlib.Path(__file__).resolve().parent
CKPT = os.path.abspath(sys.argv.pop(1))
MAKER = HERE.parent / "support" / "make_megatron_zarr.py"
WEIGHT = "decoder.layers.mlp.linear_fc1.weight"


def make(folder, *options):
    subprocess.run([sys.executable, MAKER, folder, *options], check=True, stdout=subprocess.DEVNULL)


class Convert(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.base = pathlib.Path(tempfile.mkdtemp(prefix="ckpt-convert-"))
        cls.base.chmod(0o755)
        cls.source = cls.base / "source"
        make(cls.source, "--mib", "16")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.base)

    def setUp(self):
        self.work = pathlib.Path(tempfile.mkdtemp(dir=self.base))
        self.target = self.work / "out"

    def call(self, *args, code=0, **options):
        done = subprocess.run([CKPT, "convert", *map(str, args)], capture_output=True, text=True, **options)
        self.assertEqual(done.returncode, code, f"{args}\n{done.stdout}{done.stderr}")
        return done

    def refused(self, code, words, *args, **options):
        """Fails with this code and a message that holds the words; the destination's folder stays as it was."""
        before = sorted(os.listdir(self.work))
        done = self.call(*args, code=code, **options)
        for word in words:
            self.assertIn(word, done.stderr)
        self.assertEqual(sorted(os.listdir(self.work)), before)
        return done

    def copy(self):
        copy = self.work / "copy"
        shutil.copytree(self.source, copy)
        return copy

    def test_a_whole_checkpoint_gets_all_its_files_and_verifies(self):
        done = self.call(self.source, self.target, "--to", "torch_dist")
        self.assertEqual(done.stdout, "")
        self.assertIn("MiB", done.stderr)
        self.assertEqual(sorted(os.listdir(self.target)), [".metadata", "__0_0.distcp", "common.pt", "metadata.json"])
        self.assertEqual((self.target / "common.pt").read_bytes(), (self.source / "common.pt").read_bytes())
        self.assertEqual(json.loads((self.target / "metadata.json").read_text())["sharded_backend"], "torch_dist")
        self.assertEqual(os.listdir(self.work), ["out"])
        self.assertEqual(subprocess.run([CKPT, "verify", self.target], capture_output=True).returncode, 0)

    def test_json_is_one_line_with_what_was_written(self):
        done = self.call(self.source, self.target, "--to", "torch_dist", "--files", "3", "--json")
        report = json.loads(done.stdout)
        self.assertEqual(done.stdout.count("\n"), 1)
        self.assertEqual(report["schema"], "ckpt.convert/1")
        self.assertEqual(len(report["files"]), 3)
        for file in report["files"]:
            self.assertEqual(os.path.getsize(self.target / file["name"]), file["bytes"])
        self.assertEqual(report["total_bytes"], sum(p.stat().st_size for p in self.target.iterdir()))
        self.assertEqual((report["tensors"], report["objects"]), (32, 6))

    def test_a_dry_run_says_the_same_sizes_and_writes_nothing(self):
        report = json.loads(self.call(self.source, self.target, "--to", "torch_dist", "-n", "--json").stdout)
        self.assertEqual(os.listdir(self.work), [])
        self.assertTrue(report["dry_run"])
        written = json.loads(self.call(self.source, self.target, "--to", "torch_dist", "--json").stdout)
        self.assertEqual(report["files"], written["files"])
        self.assertGreaterEqual(report["total_bytes"], written["total_bytes"])
        self.assertIn("__0_0.distcp", self.call(self.source, self.work / "other", "--to", "torch_dist", "-n").stdout)

    def test_wrong_arguments_are_usage_errors(self):
        to = ["--to", "torch_dist"]
        for args in ([], [self.source], [self.source, self.target], [self.source, self.target, "--to", "hdf5"],
                     [self.source, self.target, *to, "--shard-size", "0"], [self.source, self.target, *to, "--shard-size", "many"],
                     [self.source, self.target, *to, "--files", "0"], [self.source, self.target, *to, "--frobnicate"],
                     [self.source, self.target, "extra", *to]):
            self.refused(2, ["ckpt:"], *args)

    def test_a_missing_source_is_not_found(self):
        self.refused(4, ["nowhere"], self.base / "nowhere", self.target, "--to", "torch_dist")

    def test_a_folder_that_is_no_checkpoint_is_unsupported(self):
        (self.work / "empty").mkdir()
        self.refused(6, ["empty"], self.work / "empty", self.target, "--to", "torch_dist")

    def test_an_unreadable_shard_is_a_permission_error(self):
        source = self.copy()
        (source / WEIGHT / "0.0.0").chmod(0)
        self.work.chmod(0o777)
        user = {"user": 65534, "group": 65534, "extra_groups": [], "env": {**os.environ, "HOME": "/"}} if os.geteuid() == 0 else {}
        self.refused(5, ["0.0.0", "Permission denied"], source, self.target, "--to", "torch_dist", **user)

    def test_damage_is_named_and_nothing_is_written(self):
        source = self.copy()
        shard = source / WEIGHT / "1.1.0"
        whole = shard.read_bytes()
        shard.write_bytes(whole[:-1])
        self.refused(1, ["1.1.0"], source, self.target, "--to", "torch_dist")
        shard.unlink()
        self.refused(1, ["1.1.0"], source, self.target, "--to", "torch_dist")
        shard.write_bytes(whole)
        thing = next((source / "rng_state").iterdir())
        thing.write_bytes(thing.read_bytes()[:-30])
        self.refused(1, ["rng_state"], source, self.target, "--to", "torch_dist")

    def test_a_legacy_object_is_refused_by_name_unless_it_is_left_out(self):
        source = self.copy()
        for thing in (source / "rng_state").iterdir():
            thing.write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03."
                              b"\x80\x02}q\x00.\x80\x02K\x01.\x80\x02]q\x00.")
        done = self.refused(6, ["rng_state", "legacy"], source, self.target, "--to", "torch_dist")
        self.assertNotIn("_extra_state", done.stderr)
        done = self.call(source, self.target, "--to", "torch_dist", "--exclude", "rng_state/**", "--json")
        self.assertEqual(json.loads(done.stdout)["excluded"], 2)

    def test_places_that_would_harm_the_source_are_refused(self):
        source = self.copy()
        for target in (source, source / "inside", self.work, self.base):
            self.refused(2, [], source, target, "--to", "torch_dist", "--force")
        self.assertTrue((source / "metadata.json").exists())

    def test_a_destination_that_is_not_empty_needs_force(self):
        self.target.mkdir()
        (self.target / "precious").write_text("x")
        self.refused(2, ["not empty", "--force"], self.source, self.target, "--to", "torch_dist")
        self.assertEqual(os.listdir(self.target), ["precious"])
        self.call(self.source, self.target, "--to", "torch_dist", "--force")
        self.assertNotIn("precious", os.listdir(self.target))
        self.assertEqual(os.listdir(self.work), ["out"])

    def on_tmpfs(self, options):
        room = self.work / "room"
        room.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", room], capture_output=True).returncode != 0:
            self.skipTest("a tmpfs cannot be mounted here")
        self.addCleanup(subprocess.run, ["umount", room], check=True)
        return room

    def test_a_full_disk_is_found_before_anything_is_written(self):
        room = self.on_tmpfs("size=1m")
        done = self.call(self.source, room / "out", "--to", "torch_dist", code=9)
        self.assertIn("free", done.stderr)
        self.assertEqual(os.listdir(room), [])

    def test_a_disk_that_fills_up_on_the_way_leaves_nothing_behind(self):
        room = self.on_tmpfs("size=256m,nr_inodes=6")
        self.call(self.source, room / "out", "--to", "torch_dist", "--files", "12", code=9)
        self.assertEqual(os.listdir(room), [])

    def test_an_interrupt_leaves_nothing_and_a_kill_only_what_the_next_run_removes(self):
        source = self.work / "source"
        make(source, "--mib", "256", "--tensors", "64")
        for stop, code in ((signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)):
            for delay in (0.05, 0.02, 0.01, 0.1, 0.005, 0.03):
                process = subprocess.Popen([CKPT, "convert", source, self.target, "--to", "torch_dist", "-j", "1"], stderr=subprocess.DEVNULL)
                time.sleep(delay)
                process.send_signal(stop)
                if process.wait() == code:
                    break
                shutil.rmtree(self.target, ignore_errors=True)
            self.assertEqual(process.returncode, code)
            self.assertFalse(self.target.exists())
            if code == 130:
                self.assertEqual(os.listdir(self.work), ["source"])
        self.call(source, self.target, "--to", "torch_dist", "--no-sync")
        self.assertEqual(sorted(os.listdir(self.work)), ["out", "source"])

    def test_memory_stays_bounded_while_a_large_shard_is_cut(self):
        source = self.work / "source"
        make(source, "--mib", "400", "--tensors", "1")
        process = subprocess.Popen([CKPT, "convert", source, self.target, "--to", "torch_dist", "--shard-size", "96MiB", "-j", "4",
                                    "--files", "4", "--no-sync"], stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(process.returncode, 0)
        self.assertLess(usage.ru_maxrss, 64 << 10)  # KiB

    def test_a_shard_too_large_for_one_worker_is_written_by_several_with_one_checksum(self):
        source = self.work / "source"
        make(source, "--mib", "400", "--tensors", "1")
        self.call(source, self.target, "--to", "torch_dist", "--files", "1", "-j", "3", "--no-sync", "--verify")
        done = subprocess.run([CKPT, "verify", "--strict", self.target], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        alone = self.work / "alone"
        self.call(source, alone, "--to", "torch_dist", "--files", "1", "-j", "1", "--no-sync")
        subprocess.run(["diff", "-r", self.target, alone], check=True)

    def test_a_checkpoint_without_tensors_converts(self):
        source = self.work / "source"
        source.mkdir()
        for name in ("metadata.json", "common.pt"):
            shutil.copy(self.source / name, source)
        self.call(source, self.target, "--to", "torch_dist")
        self.assertEqual(sorted(os.listdir(self.target)), [".metadata", "common.pt", "metadata.json"])


if __name__ == "__main__":
    unittest.main()
