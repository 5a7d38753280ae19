#!/usr/bin/env python3
"""ckpt verify at hash level against xxhsum and sha256sum over the same bytes on the same cores, warm cache.

    bench.py [FOLDER]

Two data files, two processes of the peer at a time; `ckpt verify` with a manifest of the same hash reads the same bytes with
two threads. Runs alternate, the fastest of each counts. Exit 1 where a ratio is below its bar.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

TESTS = pathlib.Path(__file__).resolve().parents[2]
CKPT = os.environ.get("CKPT_BIN", str(TESTS.parent / "build" / "ckpt"))
MAKER = TESTS / "support" / "make_megatron_zarr.py"
MIB = int(os.environ.get("CKPT_BENCH_MIB", "4096"))
ROUNDS = int(os.environ.get("CKPT_BENCH_ROUNDS", "7"))
BAR = 0.85
PEERS = {"xxh3-128": ["xxhsum", "-H2"], "sha256": ["sha256sum"]}


def timed(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def peer(command, files):
    running = [subprocess.Popen([*command, file], stdout=subprocess.DEVNULL) for file in files]
    if any(process.wait() for process in running):
        raise RuntimeError(f"{command} failed")


def main():
    base = pathlib.Path(tempfile.mkdtemp(prefix="ckpt-bench-", dir=sys.argv[1] if len(sys.argv) > 1 else None))
    missed = False
    try:
        subprocess.run([sys.executable, MAKER, base / "zarr", "--mib", str(MIB), "--tensors", "64"], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([CKPT, "convert", base / "zarr", base / "ckpt", "--to", "torch_dist", "--files", "2", "-q"], check=True)
        shutil.rmtree(base / "zarr")
        files = sorted((base / "ckpt").glob("*.distcp"))
        size = sum(file.stat().st_size for file in files)
        print(f"{size / 2**30:.2f} GiB in {len(files)} files, {os.cpu_count()} cores, fastest of {ROUNDS}")
        for name, command in PEERS.items():
            if not shutil.which(command[0]):
                print(f"{name}: {command[0]} is not there")
                continue
            subprocess.run([CKPT, "verify", base / "ckpt", "--write-manifest", "default", "--hash", name, "-q"], check=True, stdout=subprocess.DEVNULL)
            ours, theirs = [], []
            for _ in range(ROUNDS):
                ours.append(timed(lambda: subprocess.run([CKPT, "verify", base / "ckpt", "-q"], check=True, stdout=subprocess.DEVNULL)))
                theirs.append(timed(lambda: peer(command, files)))
            ratio = min(theirs) / min(ours)
            missed = missed or ratio < BAR
            print(f"{name}: ckpt {size / min(ours) / 1e9:.2f} GB/s, {command[0]} {size / min(theirs) / 1e9:.2f} GB/s: "
                  f"{ratio:.2f} (bar {BAR}){'' if ratio >= BAR else ' MISSED'}")
    finally:
        shutil.rmtree(base)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
