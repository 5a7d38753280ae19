#!/usr/bin/env python3
"""ckpt under a Slurm of one machine: a job's members that srun has started are dumped together by another step, which PMIx connects, all of
it ended, and restored together by a third one; and a batch job that makes way, is queued again by ckpt guard, and goes on.
By hand, with CKPT_LONG=1 (a restored step did not always go on in time on a busy machine); installs Debian's packages as root, else says what is missing.

    slurm_jobs.py CKPT_BINARY
"""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

if os.environ.get("CKPT_LONG") != "1":
    print("skipped: long, and for runs by hand (CKPT_LONG=1)")
    sys.exit(77)
HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE.parent / "support"), str(HERE.parent / "cli")]
from slurm import Slurm, check_programs, two_free_ports

CKPT = os.path.abspath(sys.argv[1])
from counting_job import COUNTER

PEER = os.path.join(os.path.dirname(CKPT), "together_peer")
check_programs()
if not os.path.exists(os.path.join(os.path.dirname(CKPT), "libckpt-openmpi.so")) or "pmix" not in Slurm.ask("sh", "-c", "ls /usr/lib/*/slurm-wlm"):
    print("skipped: no Open MPI to connect the members with, or no PMIx in this Slurm")
    sys.exit(77)


class SlurmJobs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.base = pathlib.Path(tempfile.mkdtemp(prefix="ckpt-slurm-"))
        cls.addClassCleanup(shutil.rmtree, cls.base, True)
        cls.base.chmod(0o755)
        cls.slurm = Slurm(cls.base)
        cls.addClassCleanup(cls.slurm.stop)

    def setUp(self):
        self.pids = []
        os.chdir(tempfile.mkdtemp(dir=self.base))
        self.addCleanup(os.chdir, "/")
        self.addCleanup(self.end_all)

    def end_all(self):
        for pid in self.pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def step(self, script, *options):
        """A step of two tasks, each with words of the shell. Their output is a file that each has opened itself: no connection to srun."""
        with open("srun.out", "ab") as out:
            step = subprocess.Popen(["srun", "-n", "2", "--input=none", "--output=out.%t", "--open-mode=append", *options, "sh", "-c", script],
                                    stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        self.addCleanup(step.wait, 60)
        self.addCleanup(step.terminate)
        return step

    @staticmethod
    def said():
        return "".join(path.read_text() for path in sorted(pathlib.Path().glob("*out*")) if path.is_file())

    def together(self, verb, folder, *words, code=0):
        step = self.step(f"exec {CKPT} {verb} --together -f {folder} {' '.join(words)}", "--mpi=pmix", "--kill-on-bad-exit=1")
        self.assertEqual(step.wait(60), code, self.said())

    def counts(self):
        """Received and sent, of both ends."""
        states = [pathlib.Path(name).read_text(encoding="ascii").split() for name in ("s0", "s1") if os.path.exists(name)]
        for state in states:
            if state:
                self.assertEqual(state[0], "well", self.said())
        return [int(number) for state in states for number in state[1:]]

    def go_on(self):
        before = self.counts()
        self.slurm.wait(lambda: len(self.counts()) == 4 and all(now > then for now, then in zip(self.counts(), before or [0] * 4)), 30)

    def test_members_of_a_step_are_dumped_and_restored_by_others(self):
        port = two_free_ports()
        job = self.step(f"echo $$ > pid.$SLURM_PROCID; set -- listen connect; shift $SLURM_PROCID; exec {PEER} $1 127.0.0.1 {port} s$SLURM_PROCID")
        self.go_on()
        self.pids = [int(pathlib.Path(f"pid.{rank}").read_text(encoding="ascii")) for rank in range(2)]
        whose = "-p $(cat pid.$SLURM_PROCID)"
        self.together("pre-dump", "before", whose)
        self.go_on()
        self.together("dump", "refused", "-p $(test $SLURM_PROCID = 1 && echo 999999999 || cat pid.0)", code=4)
        self.assertEqual(self.said().count("999999999"), 1, self.said())
        self.assertFalse(os.path.exists("refused"))
        self.go_on()
        self.together("dump", "now", whose)
        self.assertNotEqual(job.wait(60), 0)  # its tasks were ended
        parts = json.loads(pathlib.Path("now/job.json").read_text(encoding="ascii"))["parts"]
        self.assertEqual([part["connections"] for part in parts], [1, 1])
        again = self.step(f"exec {CKPT} restore --together -f now", "--mpi=pmix", "--kill-on-bad-exit=1")
        self.go_on()
        self.together("dump", "later", "-R", whose)
        self.go_on()
        self.end_all()
        self.assertNotEqual(again.wait(60), 0)
        self.assertEqual([name for name in os.listdir() if name.startswith(".ckpt")], [])

    @unittest.skipIf(os.path.exists(os.path.join(os.path.dirname(CKPT), "libckpt-mpich.so")), "MPICH would connect them")
    def test_a_step_of_another_protocol_is_told_which_one_would_do(self):
        step = self.step(f"exec {CKPT} restore --together -f nowhere", "--mpi=pmi2")
        self.assertEqual(step.wait(60), 6, self.said())
        self.assertIn("libckpt-mpich.so: is not installed", self.said())
        self.assertIn("srun --mpi=pmix", self.said())

    def test_a_batch_job_that_makes_way_is_queued_again_and_goes_on(self):
        pathlib.Path("program.py").write_text(COUNTER, encoding="ascii")
        pathlib.Path("job.sh").write_text(f"#!/bin/sh\nexec {CKPT} guard -f images --requeue --json -- /bin/sh -c 'exec {sys.executable} program.py "
                                          ">job.log 2>&1 </dev/null'\n", encoding="ascii")
        job = self.slurm.ask("sbatch", "--parsable", "--requeue", "--open-mode=append", "-o", "guard.out", "job.sh").strip()

        def events(name):
            lines = pathlib.Path("guard.out").read_text(encoding="utf-8").splitlines() if os.path.exists("guard.out") else []
            return [json.loads(line) for line in lines if line.startswith("{") and json.loads(line)["event"] == name]

        def count():
            return int(pathlib.Path("count").read_text(encoding="ascii") or 0) if os.path.exists("count") else 0

        self.slurm.wait(lambda: count() > 3)
        self.slurm.ask("scancel", "--batch", "--signal=USR1", job)
        self.slurm.wait(lambda: events("checkpointed"))
        at = count()
        self.slurm.wait(lambda: events("restored") and count() > at + 3)
        self.assertIn("Restarts=1", self.slurm.ask("scontrol", "show", "job", job))
        self.assertEqual(len(list(pathlib.Path().glob("starts.*"))), 1)
        pathlib.Path("stop").write_text("0", encoding="ascii")
        self.slurm.wait(lambda: not self.slurm.ask("squeue", "-h", "-j", job).strip())
        self.assertEqual(events("ended")[-1]["checkpointed"], False)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
