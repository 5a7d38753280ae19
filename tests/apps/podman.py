#!/usr/bin/env python3
"""Containers of podman's (on runc), with ckpt as criu: a redis-server that clients have connections to, and a training loop that checks
itself. Checkpointed and left running, checkpointed and restored, in two steps (a pre-checkpoint), and by way of an archive.

Variants: `counter` (busybox), `terminal` (the same with a terminal), `redis`, `training` (python).
"""
import os
import shutil
import subprocess

from app import Skip, expect, find, install, main, wait_until
from container import Counted, busybox_root, call, environment

FLAGS = ["--runtime", "runc", "--cgroup-manager", "cgroupfs"]
RUN = ["--network", "none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000", "--security-opt", "seccomp=unconfined"]
TRAINING = r"""
import hashlib, time
import numpy
rng = numpy.random.default_rng(7)
data, weights = rng.standard_normal((256, 64)), numpy.zeros(64)
target = data @ numpy.arange(64.0)
check = hashlib.sha256()
for step in range(1, 1_000_000):
    gradient = data.T @ (data @ weights - target) / 256
    weights -= 0.01 * gradient
    check.update(weights.tobytes())
    again = numpy.zeros(64) if step == 1 else before
    before = weights.copy()
    if not numpy.array_equal(again - 0.01 * gradient, weights):
        print("WRONG at", step, flush=True)
    print("round", step, flush=True)
    time.sleep(0.02)
"""


def library_root(folder, *programs):
    """A root folder with programs of this machine's and the libraries that they load."""
    root = busybox_root(folder)
    for program in programs:
        for path in {program, *subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout.split()}:
            if path.startswith("/") and os.path.exists(path) and not os.path.exists(root + path):
                os.makedirs(os.path.dirname(root + path), exist_ok=True)
                shutil.copy(path, root + path)
    return root


def python_root(folder):
    """Python is this machine's, in a folder that is mounted from outside."""
    root = busybox_root(folder)
    for name in ("lib", "lib64"):
        os.symlink(f"usr/{name}", os.path.join(root, name))
    for name in ("usr", "etc/alternatives"):
        os.makedirs(os.path.join(root, name))
    return root, ["--volume", "/usr:/usr:ro", "--volume", "/etc/alternatives:/etc/alternatives:ro"]


class Container:
    def __init__(self, run, root, command, *flags, image=False):
        """`image`: made of the root folder; podman imports no archive of a container that has none."""
        self.folder, self.name = run.folder, f"ckpt-{run.variant}-{os.getpid()}"
        self.podman = [find("podman"), "--root", f"{run.folder}/storage", "--runroot", f"{run.folder}/run", "--storage-driver", "vfs", *FLAGS]
        place = ["--rootfs", root]
        if image:
            place = ["localhost/ckpt-test"]
            archive = os.path.join(run.folder, "root.tar")
            subprocess.run(["tar", "-C", root, "-cf", archive, "."], check=True)
            self.call("import", archive, *place)
        self.call("run", "--detach", "--name", self.name, *flags, *RUN, *place, *command)

    def call(self, *words):
        return call(self.folder, *self.podman, *words, logs_in=f"{self.folder}/storage")

    def output(self):
        return self.call("logs", self.name)

    def running(self):
        return self.call("inspect", "--format", "{{.State.Running}}", self.name).strip() == "true"

    def remove(self):
        subprocess.run([*self.podman, "rm", "--force", "--all", "--time", "0"], env=environment(self.folder), stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, timeout=120, check=False)


def rounds_of_checkpoints(container, goes_on, *flags):
    goes_on("before anything")
    container.call("container", "checkpoint", "--leave-running", *flags, container.name)
    expect(container.running(), True, "running after --leave-running")
    goes_on("left running")
    container.call("container", "checkpoint", "--pre-checkpoint", *flags, container.name)
    goes_on("after a pre-checkpoint")
    for turn in range(2):
        container.call("container", "checkpoint", *flags, container.name)
        expect(container.running(), False, "running after its checkpoint")
        container.call("container", "restore", *flags, container.name)
        goes_on(f"restored, turn {turn}")
    container.call("container", "checkpoint", "--pre-checkpoint", *flags, container.name)
    goes_on("after a pre-checkpoint")
    container.call("container", "checkpoint", "--with-previous", *flags, container.name)
    container.call("container", "restore", *flags, container.name)
    goes_on("restored from two")


def through_an_archive(container, goes_on, *flags):
    archive = os.path.join(container.folder, "archive.tar.gz")
    container.call("container", "checkpoint", "--export", archive, *flags, container.name)
    container.call("rm", container.name)
    container.call("container", "restore", "--import", archive, *flags)
    goes_on("imported")


class Redis:
    """By a socket in a folder that the container shares."""

    def __init__(self, container):
        self.container, self.number = container, 0

    def command(self, *words):
        return self.container.call("exec", self.container.name, "/usr/bin/redis-cli", "-s", "/tmp/redis.sock", *words).strip()

    def goes_on(self, what):
        for _ in range(3):
            self.number += 1
            expect(self.command("INCR", "rounds"), str(self.number), f"{what}: the counter")
            expect(self.command("RPUSH", "list", f"value {self.number}"), str(self.number), f"{what}: the list")
        expect(self.command("LRANGE", "list", "0", "-1").splitlines(), [f"value {i + 1}" for i in range(self.number)], f"{what}: the whole list")


def test(run):
    install(podman="podman", runc="runc", conmon="conmon")
    container = None
    try:
        if run.variant == "redis":
            install(redis_server="redis-server", redis_cli="redis-tools")
            root = library_root(run.folder, "/usr/bin/redis-server", "/usr/bin/redis-cli")
            container = Container(run, root, ["/usr/bin/redis-server", "--port", "6379", "--unixsocket", "/tmp/redis.sock", "--save", "", "--appendonly", "no"])
            redis = Redis(container)
            wait_until(lambda: "Ready to accept" in container.output(), "redis does not start", 30, 0.1)
            rounds_of_checkpoints(container, redis.goes_on, "--tcp-established", "--file-locks")
        elif run.variant == "training":
            install_numpy()
            root, volumes = python_root(run.folder)
            container = Container(run, root, ["/usr/bin/python3", "-c", TRAINING], *volumes)
            rounds_of_checkpoints(container, Counted(container.output).goes_on)
        else:
            flags = ["--tty"] if run.variant == "terminal" else []
            container = Container(run, busybox_root(run.folder), ["/bin/counter"], *flags, image=True)
            counted = Counted(container.output)
            rounds_of_checkpoints(container, counted.goes_on)
            through_an_archive(container, counted.goes_on)
    finally:
        if container is not None:
            container.remove()


def install_numpy():
    if subprocess.run(["/usr/bin/python3", "-c", "import numpy"], capture_output=True, check=False).returncode != 0:
        raise Skip("needs python3-numpy")


if __name__ == "__main__":
    main(test, variants=("counter", "terminal", "redis", "training"))
