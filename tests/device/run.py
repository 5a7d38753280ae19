#!/usr/bin/env python3
"""Runs one driver-API program under every flavour of dump and restore, on the stand-in driver.

  run.py NAME [--flavours a,b] [--arguments ...] [--set NAME=VALUE ...]

The flavours are those of tests/kernel/run.py, and the ones below. CKPT_BIN is the ckpt to test, CKPT_TARGETS the folder of the
programs, CKPT_STANDIN the stand-in's libcuda.so.1; without the last the machine's own driver is used.
"""
import argparse
import ctypes
import glob
import importlib.util
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
# pylint: disable=wrong-import-position
from harness import CKPT, SKIPPED, Failure, Skip, become_subreaper, ckpt, ckpt_restore, tree_of, wait_until

_spec = importlib.util.spec_from_file_location("kernel_run", os.path.join(HERE, "..", "kernel", "run.py"))
kernel = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(kernel)

STANDIN = os.environ.get("CKPT_STANDIN", "")
RUNNING, LOCKED, CHECKPOINTED, FAILED = range(4)


class Driver:
    """The checkpoint calls, as a program of another process makes them."""

    def __init__(self):
        try:
            self.library = ctypes.CDLL(STANDIN or "libcuda.so.1")
        except OSError as missing:
            raise Skip(f"no driver: {missing}") from missing
        self.call("cuInit", 0)

    def call(self, name, *arguments, expect=0):
        code = getattr(self.library, name)(*arguments)
        if code != expect:
            raise Failure(f"{name}: {code}, not {expect}")

    def state(self, pid):
        out = ctypes.c_int(-1)
        self.call("cuCheckpointProcessGetState", pid, ctypes.byref(out))
        return out.value

    def lock(self, pid, timeout_ms=20000, expect=0):
        arguments = ctypes.create_string_buffer(timeout_ms.to_bytes(4, "little"), 64)
        self.call("cuCheckpointProcessLock", pid, arguments, expect=expect)

    def operate(self, name, pid, expect=0):
        self.call(f"cuCheckpointProcess{name}", pid, ctypes.create_string_buffer(64), expect=expect)

    def free(self, device=0):
        context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value


def has_option(verb, option):
    return option in ckpt(verb, "--help").out


def flavour_by_hand(target):
    """The driver's checkpoint made by us, ckpt's dump and restore of the process that is left, the driver's restore by us."""
    driver = Driver()
    members = tree_of(target.pid)
    for pid in members:
        driver.lock(pid)
    for pid in members:
        driver.operate("Checkpoint", pid)
    without = ["--gpu", "off"] if has_option("dump", "--gpu") else []
    tree = target.tree()
    ckpt("dump", "-p", target.pid, "-f", kernel.image(target, "image"), *without).expect(0)
    target.reap(tree)
    target.forget_answers()
    ckpt_restore("-f", kernel.image(target, "image"), "-d", *(["--gpu", "off"] if has_option("restore", "--gpu") else [])).expect(0)
    target.adopt()
    for pid in members:
        if driver.state(pid) != CHECKPOINTED:
            raise Failure(f"process {pid} is in state {driver.state(pid)} after the restore")
        driver.operate("Restore", pid)
    for pid in members:
        driver.operate("Unlock", pid)
    target.check(0)


def flavour_suspend(target):
    """The GPU is free while it is suspended; resumed it goes on."""
    driver = Driver()
    for _ in range(2):
        before = driver.free()
        ckpt("suspend", "-p", target.pid).expect(0)
        if driver.free() <= before:
            raise Failure("a suspended process still holds device memory")
        time.sleep(0.05)
        ckpt("resume", "-p", target.pid).expect(0)
        if STANDIN and driver.free() != before:
            raise Failure("a resumed process holds another amount of device memory")
    target.check(0)


def flavour_watched(target):
    """Images while it goes on, one after the other, each of what differs; the newest of them is as good as any."""
    folder = kernel.image(target, "images")
    watch = subprocess.Popen([CKPT, "watch", "-p", str(target.pid), "-f", folder, "--every", "50ms", "--gpu", "only"], stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: len(glob.glob(f"{folder}/*/manifest.json")) >= 2 or watch.poll() is not None, "two images")
        target.step()
        watch.terminate()  # after a last image
        _, said = watch.communicate(timeout=60)
    finally:
        watch.kill()
    if watch.returncode != 0:
        raise Failure(f"watch: exit {watch.returncode}: {said}")
    newest = sorted(os.listdir(folder))[-1]
    if "(needs 0" not in said:
        raise Failure(f"no image has a parent: {said}")
    target.check(1)
    kernel.restore_and_check(target, os.path.join("images", newest), 1)


def flavour_after_resume(target):
    """What was suspended and resumed can be saved, more than once."""
    for number in range(2):
        ckpt("suspend", "-p", target.pid).expect(0)
        ckpt("resume", "-p", target.pid).expect(0)
        target.step()
        kernel.pre_dump(target, f"image{number}")
    kernel.dump(target, "image")
    kernel.restore_and_check(target, "image", 2)


FLAVOURS = {name: kernel.FLAVOURS[name] for name in ("alone", "stopped")}
FLAVOURS["by_hand"] = flavour_by_hand


def add_those_of_the_binary():
    if has_option("dump", "--gpu"):
        for name in ("chain", "dump", "incremental", "leave_running", "lazy", "twice"):
            FLAVOURS[name] = kernel.FLAVOURS[name]
    if " suspend " in ckpt("--help").out:
        FLAVOURS["suspend"] = flavour_suspend
        FLAVOURS["after_resume"] = flavour_after_resume
    if has_option("watch", "--gpu"):
        FLAVOURS["watched"] = flavour_watched


def prepare(place, settings):
    if STANDIN:
        os.environ["CKPT_CUDA_DRIVER"] = STANDIN
        os.environ["LD_LIBRARY_PATH"] = os.path.dirname(STANDIN)
        os.environ["CKPT_CUDA_KERNELS"] = os.path.join(HERE, "driver", "ckpt_kernels.emu")
        os.environ["CKPT_STANDIN_DIR"] = place
        os.environ.setdefault("CKPT_STANDIN_SEED", "1")
    os.environ.update(settings)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--flavours")
    parser.add_argument("--arguments", nargs="*", default=[])
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()
    become_subreaper()
    failed = 0
    with kernel.Workplace(f"shared-{options.name}") as shared:
        prepare(shared.path, dict(each.split("=", 1) for each in options.set))
        try:
            add_those_of_the_binary()
            flavours = options.flavours.split(",") if options.flavours else list(FLAVOURS)
            kernel.FLAVOURS = FLAVOURS
            for flavour in flavours:  # one after the other: they share the GPUs, and free memory is looked at
                failed |= kernel.run_flavours(f"cuda_{options.name}", [flavour], options.arguments)
        except Skip as lacking:
            print(f"skipped {options.name}: {lacking}")
            return SKIPPED
    return failed


if __name__ == "__main__":
    sys.exit(main())
