"""A Slurm of one machine, in a folder of its own."""
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

PROGRAMS = {"slurmctld": "slurm-wlm", "srun": "slurm-client", "munged": "munge", "mpirun": "openmpi-bin"}


def check_programs():
    """Installs what is missing, as root; or the test is skipped."""
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


CREDENTIAL_S = 5  # also how long a job that is queued again waits
CONFIGURATION = """ClusterName=ckpt
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmdPort={next_port}
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={base}/munge/socket,cred_expire={lease}
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
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=100000
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
        (base / "slurm.conf").write_text(CONFIGURATION.format(host=host, port=port, next_port=port + 1, base=base, lease=CREDENTIAL_S))
        os.environ["SLURM_CONF"] = str(base / "slurm.conf")
        munge = [f"--{what}={base}/munge/{name}" for what, name in
                 (("key-file", "key"), ("socket", "socket"), ("log-file", "log"), ("pid-file", "pid"), ("seed-file", "seed"))]
        self.start("runuser", "-u", "munge", "--", "munged", "-F", *munge)
        self.wait(lambda: (base / "munge" / "socket").exists())
        self.start("slurmctld", "-D", "-c")
        self.start("slurmd", "-D", "-c")
        try:
            self.wait(lambda: "idle" in self.ask("sinfo", "-h", "-o", "%t"))
        except AssertionError:
            self.stop()
            raise

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
