#!/usr/bin/env python3
"""ckpt convert --part under real launchers: a Slurm of one machine (steps, a batch script, arrays, requeued tasks) and Open MPI.
On with CKPT_INTEROP=1; installs Debian's packages as root, else says what is missing.

    launchers.py CKPT_BINARY
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

if os.environ.get("CKPT_INTEROP") != "1":
    print("skipped: interop tests need CKPT_INTEROP=1")
    sys.exit(77)
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
from slurm import Slurm, check_programs

CKPT = os.path.abspath(sys.argv.pop(1))
check_programs()


class Launchers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.base = pathlib.Path(tempfile.mkdtemp(prefix="ckpt-launchers-"))
        cls.base.chmod(0o755)
        cls.addClassCleanup(shutil.rmtree, cls.base, True)
        cls.source = cls.base / "source"
        subprocess.run([sys.executable, HERE.parent / "support" / "make_megatron_zarr.py", cls.source, "--mib", "16"], check=True,
                       stdout=subprocess.DEVNULL)
        cls.slurm = Slurm(cls.base)
        cls.addClassCleanup(cls.slurm.stop)
        subprocess.run([CKPT, "convert", cls.source, cls.base / "whole", "--to", "torch_dist", "--files", "12"], check=True, capture_output=True)

    def setUp(self):
        self.work = pathlib.Path(tempfile.mkdtemp(dir=self.base))
        self.out = self.work / "out"
        self.command = [CKPT, "convert", str(self.source), str(self.out), "--to", "torch_dist", "--files", "12", "--part"]
        self.line = " ".join(self.command)

    def expect_whole(self):
        """Bit for bit what one process writes, and nothing beside it."""
        self.assertEqual(os.listdir(self.work), ["out"])
        subprocess.run(["diff", "-r", self.base / "whole", self.out], check=True)

    def call(self, *arguments, code=0):
        done = subprocess.run([*self.command, *arguments], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stderr

    def test_a_step_of_srun(self):
        done = subprocess.run(["srun", "-n", "4", *self.command, "auto"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        for part in range(4):
            self.assertIn(f"part {part} of 4, by SLURM_PROCID", done.stderr)
        self.expect_whole()

    def test_a_batch_script_is_no_step(self):
        job = self.slurm.batch(f"{self.line} auto; echo exit $?; srun {self.line} auto; echo exit $?\n", "-n", "2")
        said = self.slurm.output(job)
        self.assertIn("nothing in the environment says which part this is", said)
        self.assertIn("exit 2", said)
        self.assertIn("part 1 of 2, by SLURM_PROCID", said)
        self.expect_whole()

    def test_an_array_of_which_one_task_is_killed_and_one_runs_twice(self):
        # The task with number 6 dies by SIGKILL as soon as it has begun a file.
        victim = (f"{self.line} auto & pid=$!; while kill -0 $pid && ! ls {self.work}/.ckpt-convert-out-*/files/*.part; do :; done; "
                  "kill -9 $pid; wait $pid; exit 1")
        job = self.slurm.batch(f"if [ $SLURM_ARRAY_TASK_ID = 6 ]; then {victim}; fi\n{self.line} auto\n", "--array=2-6:2")
        self.assertIn("part 0 of 3, by SLURM_ARRAY_TASK_ID", self.slurm.output(job))
        if not self.out.exists():  # the victim may have been through already
            self.call("2/3")
        self.expect_whole()
        self.assertIn("is there already", self.call("2/3"))
        self.expect_whole()

    def test_mpirun(self):
        done = subprocess.run(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3", *self.command, "auto"],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("part 2 of 3, by OMPI_COMM_WORLD_RANK", done.stderr)
        self.expect_whole()

    def test_late_twice_and_with_other_options(self):
        self.assertIn("others are to come", self.call("0/2", code=3))
        self.assertFalse(self.out.exists())
        self.assertIn("another conversion", self.call("0/3", "--dtype", "**.weight=float32", code=7))
        self.assertIn("part 0 of 2 is done", self.call("0/2", code=3))
        self.call("1/2")
        self.expect_whole()
        self.assertIn("is there already", self.call("1/2"))
        self.expect_whole()


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
