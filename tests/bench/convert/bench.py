#!/usr/bin/env python3
"""ckpt convert against its floor, `cp -r` of the same files, and against zarr-python with torch's writer, in one run.

    bench.py [--mib 1024] [--tensors 200] [--rounds 3] [--folder DIR] [--jobs JOB,...] [--python]

Jobs: zarr-torch_dist, torch_dist-safetensors, safetensors-torch_dist. The first source is a Megatron zarr checkpoint of equal
float32 tensors in two shards each, the others are made of it; all lie in the page cache. Each round runs every way once, in
turn, so that what else the machine does hits all of them; the median counts. "synced": until what was written is on the disk
(convert by itself, cp followed by an fsync of each file). --python adds the Python way to the first job; it needs the
environment of tests/interop. Never fails on a time: the figures are printed, ratios against cp.
"""
import argparse
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
TESTS = HERE.parents[1]
CKPT = os.environ.get("CKPT_BIN", str(TESTS.parent / "build" / "ckpt"))


def sync(folder):
    for path, folders, files in os.walk(folder):
        for name in files:
            fd = os.open(os.path.join(path, name), os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)


def run(command):
    """Seconds and peak memory in MiB."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{command}: exit {process.returncode}\n{errors.decode()}")
    return time.monotonic() - start, usage.ru_maxrss / 1024


def convert_to(kind):
    command = [CKPT, "convert", "--to", kind] + (["--tensors-only"] if kind == "safetensors" else [])
    return lambda source, target, synced: run([*command, source, target] + ([] if synced else ["--no-sync"]))


def copy(source, target, synced):
    seconds, memory = run(["cp", "-r", source, target])
    if synced:
        start = time.monotonic()
        sync(target)
        seconds += time.monotonic() - start
    return seconds, memory


def python_way(source, target, synced):
    environment = subprocess.run([TESTS / "interop" / "make_env.sh"], check=True, capture_output=True, text=True)
    seconds, memory = run([environment.stdout.strip(), HERE / "python_way.py", source, target])
    if synced:
        start = time.monotonic()
        sync(target)
        seconds += time.monotonic() - start
    return seconds, memory


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--tensors", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="where to work (default: a temporary folder)")
    parser.add_argument("--python", action="store_true", help="the Python way, too")
    parser.add_argument("--jobs", default="zarr-torch_dist,torch_dist-safetensors,safetensors-torch_dist")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="ckpt-bench-") as work:
        sources = {"zarr": os.path.join(work, "zarr")}
        maker = [sys.executable, TESTS / "support" / "make_megatron_zarr.py", sources["zarr"]]
        subprocess.run([*maker, "--mib", str(options.mib), "--tensors", str(options.tensors)], check=True, stdout=subprocess.DEVNULL)
        for job in options.jobs.split(","):
            kind, to = job.split("-")
            if kind not in sources:
                sources[kind] = os.path.join(work, kind)
                convert_to(kind)(sources["zarr"], sources[kind], True)
            ways = {"cp -r": copy, "ckpt convert": convert_to(to)}
            if options.python and job == "zarr-torch_dist":
                ways["zarr + torch"] = python_way
            measure(job, sources[kind], os.path.join(work, "target"), ways, options)


def measure(job, source, target, ways, options):
    sync(source)
    size = sum(p.stat().st_size for p in pathlib.Path(source).rglob("*") if p.is_file())
    print(f"{job}: {size / 2**30:.2f} GiB in {options.tensors} tensors, {os.cpu_count()} cores, median of {options.rounds}")
    print(f"{'':14}{'':10}{'seconds':>9}{'GiB/s':>8}{'of cp':>8}{'peak MiB':>10}   rounds")
    for synced in (False, True):
        took = {name: [] for name in ways}
        memory = dict.fromkeys(ways, 0)
        for _ in range(options.rounds):
            for name, way in ways.items():
                os.sync()
                seconds, peak = way(source, target, synced)
                took[name].append(seconds)
                memory[name] = max(memory[name], peak)
                shutil.rmtree(target)
        floor = statistics.median(took["cp -r"])
        for name, rounds in took.items():
            middle = statistics.median(rounds)
            kind = "synced" if synced else "unsynced"
            print(f"{name:14}{kind:10}{middle:9.2f}{size / 2**30 / middle:8.2f}{floor / middle:8.0%}{memory[name]:10.0f}   "
                  + " ".join(f"{s:.2f}" for s in rounds))


if __name__ == "__main__":
    main()
