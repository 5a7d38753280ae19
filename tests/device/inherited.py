#!/usr/bin/env python3
"""A GPU's memory in a child that was forked after the start of CUDA: check, dump and pre-dump refuse it in the same words, before
anything is held. In a mount namespace of its own, with a file as /dev/nvidia0. CKPT_BIN, CKPT_TARGETS and CKPT_STANDIN as
CMakeLists.txt sets them."""
import ctypes
import json
import os
import subprocess
import sys
import tempfile

import standin  # noqa: F401  (before harness)
from harness import Failure, Target, become_subreaper, ckpt, check_released, fingerprint, run_tests, wait_until

os.environ["CKPT_STANDIN_UNKIND"] = "nodes,stranger"
SCRIPT = """
import ctypes, mmap, os, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
context = ctypes.c_void_p()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
if sys.argv[1] == "forked" and os.fork() == 0:
    while True:
        time.sleep(1)
if sys.argv[1] == "spawned":
    os.posix_spawn("/bin/sleep", ["sleep", "600"], os.environ)
open(sys.argv[2], "w").close()
while True:
    time.sleep(1)
"""


def own_devices():
    """A /dev of this process's own, with everything that was there and a GPU."""
    if ctypes.CDLL(None, use_errno=True).unshare(0x20000) != 0:
        return False
    folder = tempfile.mkdtemp(prefix="ckpt-dev-")
    run = lambda *command: subprocess.run(command, check=True)  # noqa: E731
    run("mount", "--make-rprivate", "/")
    run("mount", "-t", "tmpfs", "none", folder)
    for name in os.listdir("/dev"):
        there, here = os.path.join("/dev", name), os.path.join(folder, name)
        if os.path.islink(there):
            os.symlink(os.readlink(there), here)
            continue
        if os.path.isdir(there):
            os.mkdir(here)
        else:
            open(here, "w", encoding="ascii").close()
        run("mount", "--rbind", there, here)
    with open(os.path.join(folder, "nvidia0"), "wb") as gpu:
        gpu.write(bytes(4096))
    run("mount", "--move", folder, "/dev")
    os.rmdir(folder)
    return True


def start(place, how):
    ready, quiet = os.path.join(place.path, f"ready-{how}"), subprocess.DEVNULL
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, how, ready], close_fds=True, stdin=quiet, stdout=quiet, stderr=quiet,
                               start_new_session=True)
    wait_until(lambda: os.path.exists(ready), "CUDA is started")
    return process


def end(process):
    os.killpg(process.pid, 9)
    process.wait()


def test_a_forked_child_keeps_its_parents_gpu(place):
    process = start(place, "forked")
    try:
        before = fingerprint(process.pid)
        done = ckpt("check", "-p", process.pid, "--json")
        blockers = json.loads(done.out)["blockers"]
        if done.code != 1 or len(blockers) != 1 or "/dev/nvidia0" not in blockers[0]["what"]:
            raise Failure(f"check: {done.code} {blockers}")
        for verb in (["dump"], ["dump", "-R"], ["pre-dump"]):
            done = ckpt(*verb, "-p", process.pid, "-f", os.path.join(place.path, "image"))
            if done.code != 6 or blockers[0]["what"] not in done.err or "running, untouched" not in done.err:
                raise Failure(f"{verb}: {done.code} {done.err}")
        check_released(process.pid, before)
    finally:
        end(process)


def test_a_spawned_child_has_nothing_of_it(place):
    process = start(place, "spawned")
    try:
        done = ckpt("check", "-p", process.pid)
        if done.code != 0:
            raise Failure(f"check: {done.code} {done.out} {done.err}")
        ckpt("dump", "-p", process.pid, "-f", os.path.join(place.path, "image"), "-R").expect(0)
    finally:
        end(process)


def test_the_files_come_back_with_the_process(place):
    target = Target("cuda_train", place.folder("train"))
    image = os.path.join(place.path, "train-image")
    ckpt("suspend", "-p", target.pid).expect(0)
    ckpt("resume", "-p", target.pid).expect(0)
    tree = target.tree()
    ckpt("dump", "-p", target.pid, "-f", image).expect(0)
    target.reap(tree)
    target.forget_answers()
    ckpt("restore", "-f", image, "-d").expect(0)
    target.adopt()
    target.check(None)


if __name__ == "__main__":
    if not own_devices():
        print("skipped: no mount namespace of its own")
        sys.exit(77)
    become_subreaper()
    sys.exit(run_tests(*[body for name, body in sorted(globals().items()) if name.startswith("test_")]))
