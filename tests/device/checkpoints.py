#!/usr/bin/env python3
"""What is special about processes with a GPU: suspend and resume, memory that others took, locks that time out, calls of the driver
that fail, ckpt killed at any moment, other GPUs. CKPT_BIN, CKPT_TARGETS and CKPT_STANDIN as CMakeLists.txt sets them."""
import contextlib
import functools
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time

import standin  # noqa: F401  (before harness)
import harness
from harness import (CKPT, Failure, Target, Workplace, become_subreaper, check_released, ckpt, differences, fingerprint, read_text, reap_strays,
                     run_tests, wait_until)

MIB = 1 << 20
NOT_READY, OUT_OF_MEMORY, UNKNOWN = 600, 2, 999
rng = random.Random(7)


@contextlib.contextmanager
def environment(**values):
    """For the ckpt that is started meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def expect(condition, what):
    if not condition:
        raise Failure(what)


def train(place, name, mib=4, **popen):
    """A training loop with two arrays of `mib` MiB on the GPU."""
    return Target("cuda_train", place.folder(name), str(mib * MIB // 4), **popen)


def image(target, name="image"):
    return os.path.join(os.path.dirname(target.folder), name)


def state_of(target):
    """What `resume` says there is to do, without doing it: nothing for one that runs."""
    done = ckpt("check", "-p", target.pid, "--json")
    return json.loads(done.out)["gpu_processes"]


def runs(target, steps=None):
    """The GPU state is there, and the program finds it right."""
    target.check(steps)


def test_an_image_says_what_it_took(place):
    target = train(place, "image", 8)
    report = json.loads(ckpt("dump", "-p", target.pid, "-f", image(target), "-R", "--json").expect(0).out)
    expect({"gpu_checkpoint", "gpu_restore"} <= report["phases_us"].keys(), f"phases {report['phases_us']}")
    with open(os.path.join(image(target), "manifest.json")) as stream:
        tree = json.load(stream)["tree"]
    expect("CUDA 13.0" in tree["gpu"]["driver"], tree["gpu"])
    expect(sum(use["bytes"] for use in tree["gpu"]["used"]) >= 16 * MIB, tree["gpu"])
    expect("CUDA 13.0" in ckpt("inspect", image(target)).expect(0).out, "inspect does not tell of the GPU")
    expect(json.loads(ckpt("inspect", image(target), "--json").expect(0).out)["gpu"]["used"] == tree["gpu"]["used"], "inspect tells otherwise")
    expect(tree["processes"][0]["gpu_thread"] in [t["tid"] for t in tree["processes"][0]["threads"]], "the restore thread is none of its threads")
    ckpt("dump", "-p", target.pid, "-f", image(target, "off"), "-R", "--gpu=only").expect(0)
    expect(state_of(target) == [target.pid], "check does not name the process")
    runs(target)


def test_a_process_without_a_gpu(place):
    quiet = subprocess.DEVNULL
    target = subprocess.Popen(["sleep", "60"], close_fds=True, stdin=quiet, stdout=quiet, stderr=quiet)
    try:
        done = ckpt("dump", "-p", target.pid, "-f", os.path.join(place.folder("plain"), "image"), "-R", "--gpu=only")
        expect(done.code == 2 and "no GPU state" in done.err, done.err)
        done = ckpt("suspend", "-p", target.pid)
        expect(done.code == 4 and "no GPU state" in done.err, done.err)
        ckpt("resume", "-p", target.pid).expect(0)
        expect(ckpt("suspend", "-p", 2**22 + 1).code == 4, "no such process is not told")
    finally:
        target.kill()
        target.wait()


def test_suspend_frees_the_gpu_and_resume_gives_it_back(place):
    with environment(CKPT_STANDIN_CAPACITY=str(260 * MIB)):
        first = train(place, "first", 60)
        report = json.loads(ckpt("suspend", "-p", first.pid, "--json").expect(0).out)
        expect(report["target_state"] == "suspended" and sum(f["bytes"] for f in report["freed"]) >= 120 * MIB, report)
        second = train(place, "second", 100)  # takes the room
        before = fingerprint(first.pid)
        done = ckpt("resume", "-p", first.pid)
        expect(done.code == 9 and "free" in done.err and "suspended, as it was" in done.err, done.err)
        expect(not list(differences(before, fingerprint(first.pid))), "a refused resume has changed the process")
        check_released(first.pid, before)
        second.kill()
        report = json.loads(ckpt("resume", "-p", first.pid, "--json").expect(0).out)
        expect(report["pids"] == [first.pid], report)
        expect(json.loads(ckpt("resume", "-p", first.pid, "--json").expect(0).out)["pids"] == [], "resumed twice")
        runs(first)


def gpu_of(pid):
    """What check says of one process."""
    return next(iter(process for process in json.loads(ckpt("check", "-p", pid, "--json").out)["gpu"] if process["pid"] == pid), None)


def test_several_are_suspended_together_and_told(place):
    first = train(place, "first", 8)
    with under_run():
        second = train(place, "second", 8)
    told = gpu_of(first.pid)
    expect((told["state"], told["agent"], told["contexts"]) == ("running", "none", []), told)
    expect(sum(use["bytes"] for use in told["memory"]) >= 16 * MIB, told)
    told = gpu_of(second.pid)
    expect((told["state"], told["agent"], told["contexts"]) == ("running", "there", [0]) and told["owned_bytes"] >= 16 * MIB, told)
    report = json.loads(ckpt("suspend", "-p", first.pid, "-p", second.pid, "--json").expect(0).out)
    expect(sorted(report["pids"]) == sorted([first.pid, second.pid]), report)
    expect(sum(use["bytes"] for use in report["freed"]) >= 32 * MIB, report)
    told = json.loads(ckpt("list", "--gpu", "--json").expect(0).out)["processes"]
    expect({first.pid: "suspended", second.pid: "suspended"}.items() <= {one["pid"]: one["state"] for one in told}.items(), told)
    expect("suspended" in ckpt("check", "-p", first.pid).out, "check does not say that it is suspended")
    done = ckpt("unlock", "-p", first.pid)
    expect(done.code == 2 and "is suspended" in done.err, done.err)
    ckpt("resume", "-p", first.pid, "-p", second.pid).expect(0)
    expect(gpu_of(first.pid)["state"] == "running", "it is not running")
    for target in (first, second):
        runs(target)


def test_lock_and_unlock_alone(place):
    target = train(place, "locked", 4)
    report = json.loads(ckpt("lock", "-p", target.pid, "--json").expect(0).out)
    expect((report["pids"], report["target_state"]) == ([target.pid], "locked"), report)
    expect(gpu_of(target.pid)["state"] == "locked", "it is not locked")
    done = ckpt("dump", "-p", target.pid, "-f", image(target), "-R")
    expect(done.code == 7 and "locked already" in done.err, done.err)
    expect(json.loads(ckpt("unlock", "-p", target.pid, "--json").expect(0).out)["pids"] == [target.pid], "not unlocked")
    expect(json.loads(ckpt("unlock", "-p", target.pid, "--json").expect(0).out)["pids"] == [], "unlocked twice")
    runs(target)


def test_what_would_find_no_room_in_host_memory_is_refused(place):
    """Memory that nobody has written: its size alone counts."""
    with open("/proc/meminfo", encoding="ascii") as stream:
        available = next(int(line.split()[1]) << 10 for line in stream if line.startswith("MemAvailable"))
    script = """
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(int(sys.argv[2]))) == 0
open(sys.argv[1], "w").close()
time.sleep(600)
"""
    ready, quiet = os.path.join(place.path, "ready"), subprocess.DEVNULL
    with environment(CKPT_STANDIN_CAPACITY=str(4 * available)):
        process = subprocess.Popen([sys.executable, "-c", script, ready, str(2 * available)], close_fds=True, stdin=quiet, stdout=quiet, stderr=quiet)
        try:
            wait_until(lambda: os.path.exists(ready), "the memory is there")
            before = fingerprint(process.pid)
            for verb in (["suspend"], ["dump", "-R", "-f", os.path.join(place.path, "image")], ["dump", "-n", "-f", os.path.join(place.path, "image")]):
                done = ckpt(*verb, "-p", process.pid)
                expect(done.code == 9 and "MemAvailable" in done.err, f"{verb}: {done.code} {done.err}")
            done = ckpt("check", "-p", process.pid)
            expect(done.code == 1 and "MemAvailable" in done.out, done.out)
            check_released(process.pid, before)
        finally:
            process.kill()
            process.wait()


def test_a_lock_that_takes_longer_than_the_lease(place):
    """The agent stays silent, and no socket of it is in the image."""
    with under_run(), environment(CKPT_STANDIN_LOCK_MS="2500"):
        target = train(place, "slow", 8)
    ckpt("dump", "-p", target.pid, "-f", image(target), "-R").expect(0)
    with open(os.path.join(image(target), "manifest.json"), encoding="utf-8") as stream:
        expect("ckpt-agent-" not in stream.read(), "the agent's socket is in the image")
    runs(target)


def test_time_slices(place):
    """Two jobs that do not fit side by side take turns."""
    with environment(CKPT_STANDIN_CAPACITY=str(128 * MIB)):
        jobs = [train(place, "a", 30)]
        ckpt("suspend", "-p", jobs[0].pid).expect(0)
        jobs.append(train(place, "b", 30))
        for turn in range(4):
            ckpt("suspend", "-p", jobs[1 - turn % 2].pid).expect(0)
            ckpt("resume", "-p", jobs[turn % 2].pid).expect(0)
            jobs[turn % 2].step()
        ckpt("suspend", "-p", jobs[1].pid).expect(0)
        ckpt("resume", "-p", jobs[0].pid).expect(0)
        runs(jobs[0])
        ckpt("resume", "-p", jobs[1].pid).expect(0)
        runs(jobs[1])


def test_timeslice(place):
    """They take turns until one is left, which has its GPU; interrupted it resumes what fits and names the rest."""
    with environment(CKPT_STANDIN_CAPACITY=str(128 * MIB)):
        jobs = [train(place, "a", 30)]
        ckpt("suspend", "-p", jobs[0].pid).expect(0)
        jobs.append(train(place, "b", 30))
        command = [CKPT, "timeslice", str(jobs[1].pid), str(jobs[0].pid), "--quantum", "100ms", "--json"]
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with environment(CKPT_STANDIN_CAPACITY=str(100 * MIB)):  # as ckpt sees it: no room for both
            slicing = subprocess.Popen(command, close_fds=True, **pipe)
        turns = [json.loads(slicing.stdout.readline())["pid"] for _ in range(5)]
        expect(turns == [jobs[1].pid, jobs[0].pid] * 2 + [jobs[1].pid], turns)
        slicing.send_signal(signal.SIGINT)
        _, said = slicing.communicate(timeout=60)
        expect(slicing.returncode == 130 and f"ckpt resume -p {jobs[0].pid}" in said, f"{slicing.returncode} {said}")
        expect([gpu_of(job.pid)["state"] for job in jobs] == ["suspended", "running"], "not one of them runs")
        slicing = subprocess.Popen(command, close_fds=True, **pipe)
        slicing.stdout.readline()
        runs(jobs[1])
        _, said = slicing.communicate(timeout=60)
        expect(slicing.returncode == 0, f"{slicing.returncode} {said}")
        expect(gpu_of(jobs[0].pid)["state"] == "running", "the last one has not its GPU")
        runs(jobs[0])


def test_suspend_after_memory_was_parked(place):
    """What another process has held the driver would not checkpoint: it is made the program's own again."""
    with under_run():
        target = train(place, "offloaded", 8)
    ckpt("dump", "-p", target.pid, "-f", image(target), "-R").expect(0)
    for _ in range(2):
        report = json.loads(ckpt("suspend", "-p", target.pid, "--json").expect(0).out)
        expect(sum(f["bytes"] for f in report["freed"]) >= 16 * MIB, report)
        ckpt("resume", "-p", target.pid).expect(0)
    target.step()
    runs(target)


def test_resume_after_another_process(place):
    target = train(place, "after")
    ckpt("suspend", "-p", target.pid).expect(0)
    other = subprocess.Popen(["sleep", "60"], close_fds=True)
    waiting = subprocess.Popen([CKPT, "resume", "-p", str(target.pid), "--after", str(other.pid)], close_fds=True, stderr=subprocess.DEVNULL)
    time.sleep(0.2)
    expect(waiting.poll() is None, "did not wait")
    other.kill()
    other.wait()
    expect(waiting.wait(30) == 0, "did not resume")
    runs(target)


def test_a_suspended_process_is_dumped_and_comes_back_suspended(place):
    target = train(place, "suspended")
    ckpt("suspend", "-p", target.pid).expect(0)
    tree = target.tree()
    ckpt("dump", "-p", target.pid, "-f", image(target)).expect(0)
    target.reap(tree)
    target.forget_answers()
    ckpt("restore", "-f", image(target), "-d").expect(0)
    target.adopt()
    expect(state_of(target) == [], "it runs")
    expect(json.loads(ckpt("resume", "-p", target.pid, "--json").expect(0).out)["pids"] == [target.pid], "it was not suspended")
    runs(target)


def test_restore_leaves_it_to_resume(place):
    target = train(place, "off")
    tree = target.tree()
    ckpt("dump", "-p", target.pid, "-f", image(target)).expect(0)
    target.reap(tree)
    target.forget_answers()
    ckpt("restore", "-f", image(target), "-d", "--gpu=off").expect(0)
    target.adopt()
    ckpt("resume", "-p", target.pid).expect(0)
    runs(target)


def refused(target, what):
    """Named by check, refused by the other verbs before anything stands still."""
    before = fingerprint(target.pid)
    done = ckpt("check", "-p", target.pid, "--json")
    blockers = json.loads(done.out)["blockers"]
    expect(done.code == 1 and any(what in b["what"] for b in blockers), f"check: {done.code} {blockers}")
    for verb in (["dump"], ["dump", "-R"], ["pre-dump"], ["suspend"]):
        done = ckpt(*verb, "-p", target.pid, *([] if verb == ["suspend"] else ["-f", image(target, "refused")]))
        expect(done.code == 6 and what in done.err, f"{verb}: {done.code} {done.err}")
    expect(not os.path.exists(image(target, "refused")), "an image is there")
    check_released(target.pid, before)


def test_what_the_driver_cannot_carry_is_named(place):
    with under_run():
        for kind, what in (("managed", "managed memory"),):
            target = Target("cuda_refused", place.folder(kind), kind)
            refused(target, what)
            target.kill()
    target = Target("cuda_train", place.folder("mps"), env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": place.path})
    with open(os.path.join(place.path, "control"), "w"):
        refused(target, "MPS")
    os.unlink(os.path.join(place.path, "control"))
    runs(target)
    target.kill()
    for variable in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        target = Target("cuda_train", place.folder(f"mig-{variable}"), env={**os.environ, variable: "MIG-6d3c1a52-0f4e-5d43-9e0c-0a86b7d1c1aa"})
        refused(target, "a MIG instance")
        target.kill()
    target = Target("cuda_train", place.folder("profiler"), env={**os.environ, "CUDA_INJECTION64_PATH": "/opt/profiler.so"})
    refused(target, "an injected profiler (CUDA_INJECTION64_PATH=/opt/profiler.so)")
    target.kill()


def test_a_process_that_another_program_is_moving(place):
    target = train(place, "moved")
    for state, code in ((4, 7), (5, 7), (6, 6)):
        for verb in (["dump", "-f", image(target)], ["suspend"]):
            with environment(CKPT_STANDIN_STATE=str(state)):
                done = ckpt(*verb, "-p", target.pid)
            expect(done.code == code, f"{verb}, state {state}: {done.code} {done.err}")
    runs(target)


def test_an_nccl_communicator_is_named(place):
    """By the names of its threads: the library alone is no obstacle."""
    script = """
import ctypes, os, sys, threading, time
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
def serve():
    ctypes.CDLL(None).prctl(15, b"NCCL Service 0", 0, 0, 0)
    open(sys.argv[1], "w").close()
    time.sleep(600)
threading.Thread(target=serve, daemon=True).start()
time.sleep(600)
"""
    ready, quiet = os.path.join(place.path, "ready"), subprocess.DEVNULL
    process = subprocess.Popen([sys.executable, "-c", script, ready], close_fds=True, stdin=quiet, stdout=quiet, stderr=quiet)
    try:
        wait_until(lambda: os.path.exists(ready), "the thread is there")
        done = ckpt("check", "-p", process.pid, "--json")
        expect(any("NCCL" in b["what"] for b in json.loads(done.out)["blockers"]), done.out)
        done = ckpt("suspend", "-p", process.pid)
        expect(done.code == 6 and "NCCL Service 0" in done.err, f"{done.code} {done.err}")
    finally:
        process.kill()
        process.wait()


def test_work_that_does_not_end(place):
    """The lock times out before anything stands still."""
    target = Target("cuda_busy", place.folder("busy"))
    before = fingerprint(target.pid)
    for verb in (["dump", "-R"], ["dump"], ["pre-dump"]):
        done = ckpt(*verb, "-p", target.pid, "-f", image(target), "--gpu-lock-timeout", "0.2")
        expect(done.code == 7 and "running, as it was" in done.err, f"{verb}: {done.code} {done.err}")
        expect(not os.path.exists(image(target)), "an image is there")
        check_released(target.pid, before)
    done = ckpt("suspend", "-p", target.pid, "--gpu-lock-timeout", "0.2")
    expect(done.code == 7 and "running, as it was" in done.err, done.err)
    target.step()
    ckpt("dump", "-p", target.pid, "-f", image(target), "-R").expect(0)
    runs(target)


def test_every_call_that_fails_leaves_the_target_as_it_was(place):
    target = train(place, "faults")
    calls = {"cuCheckpointProcessGetState": (1,), "cuCheckpointProcessGetRestoreThreadId": (1,), "cuCheckpointProcessLock": (1,),
             "cuCheckpointProcessCheckpoint": (1,)}
    for call, numbers in calls.items():
        for number in numbers:
            for code in (UNKNOWN, OUT_OF_MEMORY):
                for verb in (["dump"], ["dump", "-R"], ["pre-dump"]):
                    with environment(CKPT_STANDIN_FAULT=f"{call}:{number}:{code}"):
                        done = ckpt(*verb, "-p", target.pid, "-f", image(target))
                    expect(done.code in (6, 8, 9) and "running, as it was" in done.err, f"{verb} {call} {code}: {done.code} {done.err}")
                    expect(not os.path.exists(image(target)), f"{verb} {call}: an image is there")
    expect(state_of(target) == [target.pid], "it is not running")
    runs(target)


def test_every_call_that_fails_while_memory_is_owned(place):
    """ckpt's own use of the GPU among them: imports, pinned memory, kernels, copies."""
    with under_run():
        target = train(place, "owned", 8)
    calls = ["cuDevicePrimaryCtxRetain", "cuModuleLoadData", "cuMemHostAlloc", "cuMemCreate", "cuMemImportFromShareableHandle", "cuMemAddressReserve",
             "cuMemMap", "cuMemSetAccess", "cuStreamCreate", "cuEventRecord", "cuLaunchKernel", "cuMemcpyDtoHAsync_v2", "cuStreamQuery",
             "cuCheckpointProcessLock", "cuCheckpointProcessCheckpoint"]
    unharmed = 0
    for call in calls:
        for number in (1, 2, 3):
            for verb in (["dump"], ["dump", "-R"], ["pre-dump"]):
                path = image(target, f"{call}{number}{verb[-1]}")
                with environment(CKPT_STANDIN_FAULT=f"{call}:{number}:{OUT_OF_MEMORY}"):
                    done = ckpt(*verb, "-p", target.pid, "-f", path)
                if done.code == 0 and verb == ["dump"]:  # the call was not made so often
                    target.reap()
                    target.forget_answers()
                    ckpt("restore", "-f", path, "-d").expect(0)
                    target.adopt()
                elif done.code != 0:
                    expect(done.code in (6, 8, 9) and "running, as it was" in done.err, f"{verb} {call} {number}: {done.code} {done.err}")
                    expect(not os.path.exists(path), f"{verb} {call} {number}: an image is there")
                    unharmed += 1
    expect(unharmed >= 20, f"only {unharmed} of the calls failed")
    target.step()
    runs(target)
    return f"{unharmed} failures"


def test_an_image_that_finds_no_room(place):
    """A limit on the size of files at each of many sizes."""
    with under_run():
        target = train(place, "full", 8)
    refused = 0
    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size << 10, size << 10))
    for size in (0, 1, 4, 16, 64, 256, 1024, 4096, 12288, 16384, 20000):
        path = image(target, f"image{size}")
        done = ckpt("dump", "-R", "-p", target.pid, "-f", path, preexec_fn=functools.partial(limit, size))
        if done.code != 0:
            expect(done.code in (8, 9) and "running, as it was" in done.err, f"{size} KiB: {done.code} {done.err}")
            expect(not os.path.exists(path), f"{size} KiB: an image is there")
            refused += 1
    expect(refused >= 5, f"only {refused} were refused")
    target.step()
    runs(target)


def test_a_driver_that_refuses_to_put_the_state_back(place):
    """Said plainly, with what frees the process; and that does."""
    target = train(place, "stuck")
    for code in (UNKNOWN, OUT_OF_MEMORY):
        with environment(CKPT_STANDIN_FAULT=f"cuCheckpointProcessRestore:1:{code}"):
            done = ckpt("dump", "-R", "-p", target.pid, "-f", image(target, f"image{code}"))
        expect(done.code == 10 and f"ckpt resume -p {target.pid}" in done.err, f"{done.code} {done.err}")
        expect(not os.path.exists(image(target, f"image{code}")), "an image is there")
        ckpt("resume", "-p", target.pid).expect(0)
    runs(target)


def test_restores_that_fail_leave_nothing(place):
    target = train(place, "restore", 8)
    tree = target.tree()
    ckpt("dump", "-p", target.pid, "-f", image(target)).expect(0)
    target.reap(tree)
    target.forget_answers()
    attempts = [(f"{call}:1:{code}", {}) for call in ("cuCheckpointProcessRestore", "cuCheckpointProcessUnlock") for code in (UNKNOWN, OUT_OF_MEMORY)]
    attempts += [("", {"CKPT_STANDIN_CAPACITY": str(MIB)}), ("", {"CKPT_STANDIN_VERSION": "12040"}), ("", {"CKPT_CUDA_DRIVER": "/nowhere/libcuda.so.1"})]
    for fault, more in attempts:
        with environment(CKPT_STANDIN_FAULT=fault, **more):
            done = ckpt("restore", "-f", image(target), "-d")
        expect(done.code in (6, 8, 9), f"{fault} {more}: {done.code} {done.err}")
        expect(not os.path.exists(f"/proc/{target.pid}"), f"{fault} {more}: the process is there")
    done = ckpt("restore", "-f", image(target), "-d", "--gpu-map", "GPU-00000000-0000-0000-0000-000000000000=x")
    expect(done.code == 2, done.err)
    ckpt("restore", "-f", image(target), "-d").expect(0)
    target.adopt()
    runs(target)


def test_memory_that_cannot_be_filled_leaves_nothing(place):
    """The process runs by then: it is ended, for its GPU work would wait for ever."""
    with under_run():
        target = train(place, "fill", 8)
    tree = target.tree()
    ckpt("dump", "-p", target.pid, "-f", image(target)).expect(0)
    target.reap(tree)
    target.forget_answers()
    calls = ("cuMemHostAlloc", "cuMemImportFromShareableHandle", "cuModuleLoadData", "cuLaunchKernel", "cuMemcpyHtoDAsync_v2", "cuStreamCreate")
    failed = 0
    for lazily in ([], ["--lazy"]):
        for call in calls:
            with environment(CKPT_STANDIN_FAULT=f"{call}:1:{OUT_OF_MEMORY}"):
                done = ckpt("restore", "-f", image(target), "-d", *lazily)
            if done.code == 0:
                target.adopt()
                target.kill()
                continue
            expect(done.code in (6, 8, 9), f"{call} {lazily}: {done.code} {done.err}")
            wait_until(lambda: not os.path.exists(f"/proc/{target.pid}") or not target.running(), f"{call} {lazily}: the process is there")
            failed += 1
    expect(failed >= 6, f"only {failed} calls failed")
    for lazily in ([], ["--lazy"]):
        ckpt("restore", "-f", image(target), "-d", *lazily).expect(0)
        target.adopt()
        if lazily:
            runs(target)
        else:
            target.kill()
    return f"{failed} failures"


def test_a_restore_that_is_killed_before_memory_is_there(place):
    """The program does not go on over memory whose content is missing, and no image is made of that."""
    hangs = os.path.join(os.environ["CKPT_STANDIN_DIR"], "hangs")
    for name, call, lazily, what in (("taken", "cuModuleLoadData:1", [], "device memory that was taken away"),
                                     ("eager", "cuMemcpyHtoDAsync_v2:2", [], "device memory without its content"),
                                     ("lazy", "cuMemcpyHtoDAsync_v2:2", ["--lazy"], "device memory without its content")):
        with under_run():
            target = train(place, name, 8)
        tree = target.tree()
        ckpt("dump", "-p", target.pid, "-f", image(target, f"image-{name}")).expect(0)
        target.reap(tree)
        target.forget_answers()
        arguments = [CKPT, "restore", "-f", image(target, f"image-{name}"), "-d", *lazily]
        with environment(CKPT_STANDIN_FAULT=f"{call}:hang"):
            restore = subprocess.Popen(arguments, close_fds=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: os.path.exists(hangs), f"{call} is reached")
        expect(restore.poll() is None, "the restore has ended")
        restore.kill()
        restore.wait()
        os.unlink(hangs)
        target.adopt()
        refused(target, what)
        target.kill()


def test_another_gpu(place):
    """--gpu-map: the state of the first GPU goes to the second."""
    target = train(place, "map", 8)
    tree = target.tree()
    ckpt("dump", "-p", target.pid, "-f", image(target)).expect(0)
    with open(os.path.join(image(target), "manifest.json")) as stream:
        old = json.load(stream)["tree"]["gpu"]["used"][0]["uuid"]
    target.reap(tree)
    target.forget_answers()
    done = ckpt("restore", "-f", image(target), "-d", "--gpu-map", f"{old}=GPU-ffffffff-0000-0000-0000-000000000000")
    expect(done.code == 4 and "not a GPU of this machine" in done.err, done.err)
    probe = Target("cuda_two_gpus", place.folder("probe"))
    report = json.loads(ckpt("suspend", "-p", probe.pid, "--json").expect(0).out)
    ckpt("resume", "-p", probe.pid).expect(0)
    runs(probe)
    new = next(f["uuid"] for f in report["freed"] if f["uuid"] != old)
    ckpt("restore", "-f", image(target), "-d", "--gpu-map", f"{old}={new}").expect(0)
    target.adopt()
    report = json.loads(ckpt("suspend", "-p", target.pid, "--json").expect(0).out)
    expect([f["uuid"] for f in report["freed"]] == [new], report)
    ckpt("resume", "-p", target.pid).expect(0)
    runs(target)


def uuids(place):
    """Of all GPUs."""
    probe = Target("cuda_two_gpus", place.folder("uuids"))
    found = [use["uuid"] for use in gpu_of(probe.pid)["memory"]]
    probe.kill()
    return found


def test_other_gpus_at_a_resume(place):
    """The driver wants every GPU named, also those that the process did not use; no two of them may go to one."""
    first, second = uuids(place)
    target = train(place, "moved", 8)
    old = gpu_of(target.pid)["memory"][0]["uuid"]
    new = second if old == first else first
    for pairs, where in (([f"{old}={new}"], new), ([f"{new}={old}", f"{old}={new}"], old), ([f"{old}={old}", f"{new}={new}"], old)):
        ckpt("suspend", "-p", target.pid).expect(0)
        done = ckpt("resume", "-p", target.pid, "--gpu-map", f"{old}={new}", "--gpu-map", f"{new}={new}")
        expect(done.code == 2 and "cannot both go" in done.err, done.err)
        ckpt("resume", "-p", target.pid, *[word for pair in pairs for word in ("--gpu-map", pair)]).expect(0)
        expect([use["uuid"] for use in gpu_of(target.pid)["memory"]] == [where], f"{pairs}: {gpu_of(target.pid)}")
    runs(target)


def test_what_others_free_meanwhile_is_not_counted(place):
    """What a process needs is what it has, not what became free while it was suspended."""
    target, other = train(place, "counted", 8), train(place, "other", 200)
    with environment(CKPT_STANDIN_FAULT="", CKPT_STANDIN_NVML="1"):
        suspending = subprocess.Popen([CKPT, "suspend", "-p", str(target.pid), "--json"], close_fds=True, stdout=subprocess.PIPE, text=True)
        other.kill()
        freed = sum(use["bytes"] for use in json.loads(suspending.communicate(timeout=60)[0])["freed"])
    expect(16 * MIB <= freed < 64 * MIB, f"{freed} bytes are said to have become free")
    ckpt("resume", "-p", target.pid).expect(0)
    with environment(CKPT_STANDIN_NVML="0"):
        expect(gpu_of(target.pid)["memory"] is None, "somebody tells")
        report = json.loads(ckpt("suspend", "-p", target.pid, "--json").expect(0).out)
        expect(sum(use["bytes"] for use in report["freed"]) >= 16 * MIB, report)
        ckpt("resume", "-p", target.pid).expect(0)
    runs(target)


def dirty(place, name, *how):
    """64 MiB of device memory of which half changes every 20 ms, under the interposer."""
    with under_run():
        return Target("cuda_dirty", place.folder(name), "64M", "50", *how)


def goes_on_from(target, path):
    """The image alone is enough: the process is as it was then, and finds its memory right."""
    target.kill()
    target.forget_answers()
    ckpt("restore", "-f", path, "-d").expect(0)
    target.adopt()
    runs(target)


def test_pre_dump_copies_behind_what_kernels_write(place):
    target = dirty(place, "behind", "always")
    for attempt in range(3):
        path = image(target, f"image{attempt}")
        said = ckpt("pre-dump", "-p", target.pid, "-f", path, "--json").expect(0).out
        stats = json.loads(said)
        expect(stats["gpu_bytes_deferred"] > 0 and stats["gpu_bytes_last"] == 0, f"not copied behind: {said}")
    goes_on_from(target, path)


def test_a_budget_that_is_too_small_means_a_copy_at_the_stop(place):
    target = dirty(place, "budget", "always")
    said = ckpt("pre-dump", "-p", target.pid, "-f", image(target), "--json", "--max-cow", "1M").expect(0).out
    stats = json.loads(said)
    expect(stats["gpu_bytes_deferred"] == 0 and stats["gpu_bytes_last"] > MIB, f"copied behind: {said}")
    goes_on_from(target, image(target))


def test_hidden_writes_mean_a_second_stop(place):
    target = dirty(place, "hidden", "hidden")
    second = 0
    for attempt in range(6):
        path = image(target, f"image{attempt}")
        said = ckpt("pre-dump", "-p", target.pid, "-f", path).expect(0).err
        second += "of a second stop" in said
    expect(second > 0, f"no write was hidden: {said}")
    goes_on_from(target, path)
    return f"{second} of 6"


def test_launches_in_place_of_bytes(place):
    target = dirty(place, "replay", "always")
    said = ckpt("dump", "-R", "-p", target.pid, "-f", image(target, "copy"), "--delta", "copy").expect(0).err
    expect("again" not in said, said)
    # Whether there is a launch that can be run again depends on what the program does meanwhile.
    for delta, expected in (("auto", "again|copying moves fewer bytes"), ("recompute", "make .* of device memory again")):
        for attempt in range(5):
            path = image(target, f"{delta}{attempt}")
            said = ckpt("dump", "-R", "-p", target.pid, "-f", path, "--delta", delta).expect(0).err
            expect("again" in said, said)
            if re.search(expected, said):
                break
        expect(re.search(expected, said), f"{delta}: {said}")
    graph = ckpt("inspect", path, "--graph").expect(0).out
    launches = dict(re.findall(r'^    (launch_\w+) \[shape=ellipse, label="#\d+ (\w+)"\];$', graph, re.M))
    edges = re.findall(r"^    (\w+) -> (\w+);$", graph, re.M)
    expect(launches and set(launches.values()) <= {"fill", "scatter"}, f"which launches: {graph}")
    expect(set(launches) == {to for _, to in edges if to in launches} | {of for of, _ in edges if of in launches}, f"edges: {graph}")
    ckpt("inspect", path, "--graph", "--fds").expect(2)
    goes_on_from(target, path)
    # Of what no launch shows nothing is believed.
    target = dirty(place, "liar", "hidden")
    said = ckpt("dump", "-R", "-p", target.pid, "-f", image(target, "copied"), "--delta", "recompute").expect(0).err
    expect("copied, not computed again: a kernel writes what its arguments do not say" in said, said)
    goes_on_from(target, image(target, "copied"))


def test_memory_that_cannot_be_put_back_after_an_attempt(place):
    """Two copies in a row fail, at more and more of them: before the attempt nothing is lost, behind it the process is stopped."""
    target = dirty(place, "altered", "always")
    for number in range(1000, 3000, 100):
        with environment(CKPT_STANDIN_FAULT=f"cuMemcpyAsync:{number}:{UNKNOWN},cuMemcpyAsync:{number + 1}:{UNKNOWN}"):
            done = ckpt("dump", "-R", "-p", target.pid, "-f", image(target, f"image{number}"), "--delta", "recompute")
        if done.code == 10:
            break
        expect(done.code in (0, 8) and harness.state_of(target.pid) != "T", f"{number}: {done.code} {done.err}")
    expect(done.code == 10 and "stopped: its device memory is wrong" in done.err, f"never: {done.code} {done.err}")
    expect(harness.stopped_threads(target.pid) == harness.tids_of(target.pid), "it goes on")
    target.kill()


def guards():
    """And what is left of the ckpt that they guard."""
    return [pid for pid in harness.tree_of(os.getpid())[1:] if read_text(f"/proc/{pid}/cmdline").startswith((f"{CKPT}\0", "/proc/self/exe\0resume"))]


def resumes(target):
    """The guard of a ckpt that was killed brings the GPU state back."""
    wait_until(lambda: not guards(), "the guard is done", 30, 0.05)
    done = ckpt("check", "-p", target.pid, "--json")
    expect(json.loads(done.out)["gpu_processes"] == [target.pid], f"{target.pid} has not its GPU again: {done.out}")


@contextlib.contextmanager
def under_run():
    """Programs started meanwhile have the interposer in them, which owns their large allocations."""
    harness.STARTED_BY[:] = [CKPT, "run", "--"]
    try:
        yield
    finally:
        harness.STARTED_BY[:] = []


def kill_at_any_moment(target, verbs):
    for verb in verbs:
        took = 0.02
        for attempt in range(12 if harness.LONG else 6):
            path = image(target, f"{verb[0]}{verb[-1]}{attempt}")
            arguments = [CKPT, *verb, "-p", str(target.pid), *([] if verb == ["suspend"] else ["-f", path])]
            started = time.monotonic()
            process = subprocess.Popen(arguments, close_fds=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if attempt == 0:
                process.wait(60)
                took = time.monotonic() - started
            else:
                time.sleep(took * rng.random())
                process.kill()
                process.wait()
            if verb == ["suspend"]:
                ckpt("resume", "-p", target.pid).expect(0)
            else:
                resumes(target)
        target.step()
    runs(target)


def test_ckpt_killed_at_any_moment(place):
    kill_at_any_moment(train(place, "killed", 16), (["dump", "-R"], ["pre-dump"], ["suspend"]))


def test_a_driver_that_is_out_of_step_after_a_kill(place):
    """Each call gets the answer to the one before it: what is said to be done is looked at, and no image is of less."""
    target = train(place, "step", 8)
    with environment(CKPT_STANDIN_UNKIND="out_of_step"):
        for attempt in range(6):
            process = subprocess.Popen([CKPT, "dump", "-R", "-p", str(target.pid), "-f", image(target, f"killed{attempt}")],
                                       close_fds=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(0.02 + 0.1 * rng.random())
            process.kill()
            process.wait()
            resumes(target)
        ckpt("dump", "-R", "-p", target.pid, "-f", image(target, "whole")).expect(0)
    goes_on_from(target, image(target, "whole"))


def test_ckpt_killed_while_it_holds_device_memory(place):
    """The guard has the memory, too, and gives it back."""
    with under_run():
        target = train(place, "owned", 16)
    kill_at_any_moment(target, (["dump", "-R"], ["pre-dump"]))


def test_a_target_that_dies_meanwhile(place):
    for verb in (["dump", "-R"], ["dump"], ["pre-dump"], ["suspend"]):
        for attempt in range(4 if harness.LONG else 2):
            target = train(place, f"dies-{'-'.join(verb)}-{attempt}", 16)
            arguments = [CKPT, *verb, "-p", str(target.pid), *([] if verb == ["suspend"] else ["-f", image(target)])]
            process = subprocess.Popen(arguments, close_fds=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            time.sleep(0.02 * rng.random())
            tree = target.tree()
            if target.running():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(target.pid, signal.SIGKILL)
            _, said = process.communicate(timeout=60)
            target.reap(tree)
            expect(process.returncode in (0, 4, 7, 8), f"{verb}: exit {process.returncode} {said}")


if __name__ == "__main__":
    become_subreaper()
    sys.exit(run_tests(*[body for name, body in sorted(globals().items()) if name.startswith("test_")]))
