#!/usr/bin/env python3
"""A program as a place (cmd:): a store, checkpoints that are read, and programs that misbehave.

    programs.py CKPT_BINARY

With rclone where it is installed, or named by CKPT_RCLONE."""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from small_checkpoints import safetensors  # noqa: E402

CKPT = os.path.abspath(sys.argv.pop(1))
PROGRAM = pathlib.Path(__file__).resolve().parent / "program.py"
PYTHON = sys.executable
RCLONE = os.environ.get("CKPT_RCLONE") or shutil.which("rclone")


class Programs(unittest.TestCase):
    def setUp(self):
        self.base = pathlib.Path(tempfile.mkdtemp(prefix="ckpt-programs-"))
        self.addCleanup(shutil.rmtree, self.base)
        self.there = self.base / "there"
        self.there.mkdir()
        safetensors(self.base / "model.safetensors", {"w": ("U8", [300_000], os.urandom(300_000))})
        self.env = {**os.environ, "HOME": str(self.base), "PROGRAM_LOG": str(self.base / "log"), "RCLONE_CONFIG": str(self.base / "rclone.conf")}

    def place(self, inner="", mode=""):
        return f"cmd:{PYTHON} {PROGRAM} {'--mode ' + mode if mode else ''} {self.there}{inner}"

    def ckpt(self, *arguments, code=0):
        result = subprocess.run([CKPT, *map(str, arguments)], env=self.env, cwd=self.base, text=True, capture_output=True, check=False, timeout=100)
        self.assertEqual(result.returncode, code, (arguments, result.stderr))
        return result.stdout + result.stderr

    def store(self, place):
        self.ckpt("push", "model.safetensors", "--store", place)
        self.ckpt("push", "model.safetensors", "--store", place, code=2)
        self.ckpt("push", "model.safetensors", "--store", place, "--force")
        self.assertIn("model.safetensors", self.ckpt("list", "--store", place))
        self.ckpt("pull", "model.safetensors", "--store", place, "--dir", "back")
        self.assertEqual((self.base / "back" / "model.safetensors").read_bytes(), (self.base / "model.safetensors").read_bytes())
        self.assertIn("is sound", self.ckpt("verify", "--store", place))
        self.ckpt("rm", "model.safetensors", "--store", place)
        self.ckpt("gc", "--store", place)
        self.assertEqual([path for path in (self.there / "st").rglob("*") if path.is_file() and path.parent.name != "index"], [self.there / "st" / "config"])
        self.ckpt("list", "--store", place + "-not", code=4)

    def reading(self, place):
        """Below `place`: a single file, and a folder."""
        shutil.copy(self.base / "model.safetensors", self.there)
        (self.there / "folder").mkdir()
        shutil.copy(self.base / "model.safetensors", self.there / "folder")
        for inner in ("/model.safetensors", "/folder", "/folder/"):
            self.assertIn("300000", self.ckpt("load-metadata", place(inner)))
            self.ckpt("verify", place(inner), "--against", "model.safetensors")
        self.ckpt("load-metadata", place("/nowhere"), code=4)

    def test_a_store(self):
        self.store(self.place("/st"))

    def test_checkpoints_are_read(self):
        self.reading(self.place)

    def test_there_is_no_shell(self):
        self.ckpt("load-metadata", f"cmd:{PYTHON} {PROGRAM} {self.there}/$(touch${{IFS}}{self.base}/oops);`id`", code=4)
        self.assertFalse((self.base / "oops").exists())
        self.assertIn("$(touch", (self.base / "log").read_text())
        for wrong in ("cmd:", "cmd:prog", "cmd:prog --option", "cmd:prog a\nb"):
            self.ckpt("load-metadata", wrong, code=2)
        self.assertIn("cannot be started", self.ckpt("load-metadata", "cmd:no-such-program-here place", code=6))

    def test_what_it_says_is_told(self):
        said = self.ckpt("push", "model.safetensors", "--store", self.place("/st", "fails-to-create"), code=8)
        self.assertIn("ended with 17: first line; the disk is on fire", said)
        said = self.ckpt("load-metadata", self.place("", "fails-to-list"), code=8)
        self.assertIn("the disk is on fire", said)

    def test_what_it_claims_is_checked(self):
        shutil.copy(self.base / "model.safetensors", self.there)
        place = "/model.safetensors"
        self.assertIn("no size and name", self.ckpt("load-metadata", self.place(place, "lists-nonsense"), code=1))
        self.assertIn("goes on", self.ckpt("load-metadata", self.place("", "lists-on"), code=8))
        self.assert_all_ended()
        self.assertIn("leads elsewhere", self.ckpt("load-metadata", self.place(place, "lists-paths"), code=1))
        self.assertIn("more bytes than", self.ckpt("load-metadata", self.place(place, "long"), code=1))
        self.assertIn("came with 1 of", self.ckpt("load-metadata", self.place(place, "short"), code=1))

    def test_what_it_leaves_running_is_ended(self):
        shutil.copy(self.base / "model.safetensors", self.there)
        started = time.monotonic()
        self.ckpt("load-metadata", self.place("/model.safetensors", "leaves"))
        self.assertLess(time.monotonic() - started, 60)
        self.assert_all_ended()

    def written(self, place):
        """Files that are put once they are finished, and those that wait for the others."""
        safetensors(self.base / "large.safetensors", {f"w{i}": ("U8", [9 << 20], os.urandom(9 << 20)) for i in range(3)})
        for to, name, more in (("dcp", "/dcp", ["--files", "3"]), ("safetensors", "/one.safetensors", []), ("safetensors", "/many", ["--file-size", "10MB"])):
            self.ckpt("convert", "large.safetensors", place(name), "--to", to, *more, "--verify")
            self.ckpt("convert", "large.safetensors", self.base / "here" / name[1:], "--to", to, *more)
            self.assertIn("is there already", self.ckpt("convert", "large.safetensors", place(name), "--to", to, *more, code=2))
            self.ckpt("convert", "large.safetensors", place(name), "--to", to, *more, "--force")
            self.assertEqual(self.files(self.there / name[1:]), self.files(self.base / "here" / name[1:]))
        self.assertIn("--resume", self.ckpt("convert", "large.safetensors", place("/x"), "--to", "dcp", "--resume", code=6))

    @staticmethod
    def files(place):
        return {str(path.relative_to(place)): path.read_bytes() for path in ([place] if place.is_file() else place.rglob("*")) if path.is_file()}

    def test_checkpoints_are_written(self):
        self.written(self.place)

    def test_what_fails_to_be_written_leaves_nothing(self):
        safetensors(self.base / "large.safetensors", {f"w{i}": ("U8", [9 << 20], os.urandom(9 << 20)) for i in range(3)})
        self.ckpt("convert", "large.safetensors", self.place("/x", "fails-to-create"), "--to", "dcp", "--files", "3", code=8)
        self.assertEqual(self.files(self.there), {})
        small = self.base / "small"
        small.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "ckpt-small", small], check=False, capture_output=True).returncode == 0:
            self.addCleanup(subprocess.run, ["umount", "-l", small], check=False)
            self.env["TMPDIR"] = str(small)
            self.assertIn("TMPDIR", self.ckpt("convert", "large.safetensors", self.place("/x"), "--to", "dcp", code=9))
            self.assertEqual((self.files(self.there), os.listdir(small)), ({}, []))

    @unittest.skipUnless(os.geteuid() == 0, "needs root")
    def test_images_are_written(self):
        program = "import os\ndata = os.urandom(20 << 20)\nprint(flush=True)\nos.read(0, 1)\n"
        with subprocess.Popen([PYTHON, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
            process.stdout.readline()
            self.ckpt("pre-dump", "-p", process.pid, "-f", self.place("/run/a"), "--external-pipes", "null")
            self.ckpt("dump", "-p", process.pid, "-f", self.place("/run/b"), "--prev", self.place("/run/a"), "--external-pipes", "null")
        self.ckpt("verify", self.place("/run/b"))
        size = {name: sum(len(data) for file, data in self.files(self.there / "run" / name).items() if file.startswith("pages")) for name in "ab"}
        self.assertGreater(size["a"], 20 << 20)
        self.assertLess(size["b"], 5 << 20)

    def test_a_program_ends_with_a_killed_ckpt(self):
        """What gives a push its name would do so when the collection that comes next has removed what it needs."""
        push = subprocess.Popen([CKPT, "push", "model.safetensors", "--store", self.place("/st", "dawdles-at-a-name")], env=self.env, cwd=self.base,
                                stderr=subprocess.PIPE)
        for _ in range(400):
            if (self.base / "log").exists() and any("'create'" in line and "/images/" in line for line in (self.base / "log").read_text().splitlines()):
                break
            time.sleep(0.05)
        push.kill()
        push.communicate()
        self.ckpt("gc", "--store", self.place("/st"))
        self.assert_all_ended()
        time.sleep(1.6)
        self.assertEqual(list((self.there / "st" / "images").glob("*")), [])
        self.assertIn("is sound", self.ckpt("verify", "--store", self.place("/st")))

    def running(self):
        found = subprocess.run(["pgrep", "-f", str(self.there)], capture_output=True, text=True, check=False).stdout.split()
        states = [subprocess.run(["ps", "-o", "stat=", "-p", pid], capture_output=True, text=True, check=False).stdout for pid in found]
        return [state for state in states if state and "Z" not in state]

    def assert_all_ended(self):
        for _ in range(200):  # a kill takes a moment
            if not self.running():
                return
            time.sleep(0.05)
        self.fail("what it has started goes on")

    def test_an_interrupt_ends_it(self):
        ckpt = subprocess.Popen([CKPT, "load-metadata", self.place("", "silent")], env=self.env, stderr=subprocess.PIPE)
        for _ in range(200):
            if (self.base / "log").exists():
                break
            time.sleep(0.05)
        ckpt.send_signal(signal.SIGINT)
        ckpt.communicate(timeout=30)
        self.assertEqual(ckpt.returncode, 130)
        self.assert_all_ended()

    @unittest.skipUnless(RCLONE, "rclone is not installed")
    def test_rclone(self):
        def place(inner=""):
            return f"cmd:{RCLONE} --local-no-check-updated {self.there}{inner}"
        self.store(place("/st"))
        self.reading(place)
        self.written(place)


if __name__ == "__main__":
    unittest.main()
