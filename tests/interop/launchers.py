#!/usr/bin/env python3
"""ckpt convert --part under real launchers: a Slurm of one machine (steps, a batch script, arrays, requeued tasks) and Open MPI.
On with CKPT_INTEROP=1; installs Debian's packages as root, else says what is missing.

    launchers.py CKPT_BINARY
"""
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

if os.environ.get("CKPT_INTEROP") != "1":
    print("skipped: interop tests need CKPT_INTEROP=1")
    sys.exit(77)
HERE = pathlib.Path(__file__).resolve().parent
CKPT = os.path.abspath(sys.argv.pop(1))
PROGRAMS = {"slurmctld": "slurm-wlm", "srun": "slurm-client", "munged": "munge", "mpirun": "openmpi-bin"}
os.environ["PATH"] += ":/usr/sbin:/sbin"
missing = sorted({package for program, package in PROGRAMS.items() if shutil.which(program) is None})
if missing and os.geteuid() == 0 and shutil.which("apt-get"):
    quiet = dict(env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    subprocess.run(["apt-get", "-qq", "update"], **quiet)
    subprocess.run(["apt-get", "-qq", "-y", "--no-install-recommends", "install", *missing], **quiet)
    missing = sorted({package for program, package in PROGRAMS.items() if shutil.which(program) is None})
if missing or os.geteuid() != 0:
    print(f"skipped: needs root and the Debian packages {' '.join(missing)}")
    sys.exit(77)

CONFIGURATION = """ClusterName=ckpt
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmdPort={next_port}
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={base}/munge/socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={base}/state
SlurmdSpoolDir={base}/spool
SlurmctldPidFile={base}/slurmctld.pid
SlurmdPidFile={base}/slurmd.pid
SlurmctldLogFile={base}/slurmctld.log
SlurmdLogFile={base}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def two_free_ports():
    """The first of two that follow each other, below those that the kernel gives out."""
    for port in range(20000 + os.getpid() % 5000 * 2, 32000, 2):
        with socket.socket() as first, socket.socket() as second:
            try:
                first.bind(("", port))
                second.bind(("", port + 1))
                return port
            except OSError:
                continue
    raise OSError("no two ports are free")


class Slurm:
    """slurmctld, slurmd and munged with files of their own, beside any that the machine has."""

    def __init__(self, base):
        self.base, self.daemons = base, []
        host, port = os.uname().nodename.split(".")[0], two_free_ports()
        for folder in ("munge", "state", "spool"):
            (base / folder).mkdir()
        (base / "munge" / "key").write_bytes(os.urandom(1024))
        for path in (base / "munge", base / "munge" / "key"):
            shutil.chown(path, "munge")
            path.chmod(0o711 if path.is_dir() else 0o400)
        (base / "slurm.conf").write_text(CONFIGURATION.format(host=host, port=port, next_port=port + 1, base=base))
        os.environ["SLURM_CONF"] = str(base / "slurm.conf")
        munge = [f"--{what}={base}/munge/{name}" for what, name in
                 (("key-file", "key"), ("socket", "socket"), ("log-file", "log"), ("pid-file", "pid"), ("seed-file", "seed"))]
        self.start("runuser", "-u", "munge", "--", "munged", "-F", *munge)
        self.wait(lambda: (base / "munge" / "socket").exists())
        self.start("slurmctld", "-D", "-c")
        self.start("slurmd", "-D", "-c")
        self.wait(lambda: "idle" in self.ask("sinfo", "-h", "-o", "%t"))

    def start(self, *command):
        with open(self.base / f"{command[0]}.out", "ab") as log:
            self.daemons.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True))

    @staticmethod
    def ask(*command):
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    @staticmethod
    def wait(done, seconds=60):
        for _ in range(seconds * 10):
            if done():
                return
            time.sleep(0.1)
        raise AssertionError("the cluster did not get there in time")

    def batch(self, script, *options):
        """Runs a batch job to its end; its job id."""
        path = self.base / "job.sh"
        path.write_text("#!/bin/sh\n" + script)
        job = self.ask("sbatch", "--parsable", "-o", f"{self.base}/out.%A.%a", *options, path).strip()
        assert job, "sbatch took no job"
        self.wait(lambda: not self.ask("squeue", "-h", "-j", job).strip(), 120)
        return job

    def output(self, job):
        return "".join(path.read_text() for path in sorted(self.base.glob(f"out.{job}.*")))

    def stop(self):
        for daemon in reversed(self.daemons):
            try:
                os.killpg(daemon.pid, signal.SIGTERM)
                daemon.wait(20)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                daemon.kill()


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
