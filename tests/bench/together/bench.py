#!/usr/bin/env python3
"""How long a job stands still that is dumped together, beside its members dumped alone.

usage: CKPT_BIN=build/ckpt bench.py [--members 2,4,16] [--mib 16] [--runs 5]

Each member's tree is a process that writes 1 MiB of its --mib again and again: its downtime is what ckpt itself measures ("frozen"). Three
figures for each size, medians over the runs: the slowest member of `dump --together -R` (the job's downtime), the slowest of the same
processes dumped one after the other, and the slowest of them dumped all at once by as many ckpts that know nothing of each other. On a
machine with fewer processors than members the last one is what agreeing has to be compared with: there every member waits for a
processor, whether or not it waits for the others. The bar: the job's is at most the slowest member's own plus 20 ms. A time fails nothing.
Needs root and Open MPI.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

CKPT = os.path.abspath(os.environ.get("CKPT_BIN", "ckpt"))
PEER = os.path.join(os.path.dirname(CKPT), "migrate_peer")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "support"))
from nodes import finish, one_of, start_together

QUIET = dict(stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def alone(pid, folder):
    return subprocess.Popen([CKPT, "dump", "-R", "-p", str(pid), "-f", folder, "--json"], stdout=subprocess.PIPE, **QUIET)


def frozen_ms(dump):
    out, _ = dump.communicate()
    if dump.returncode != 0:
        raise RuntimeError(f"a dump alone ends with {dump.returncode}")
    return json.loads(out.splitlines()[-1])["frozen_us"] / 1000


def together_ms(pids):
    begin = time.monotonic()
    finish(start_together(CKPT, len(pids), "dump", "-R", "-f", "job", member="-p " + one_of(pids)))
    with open("job/job.json", encoding="ascii") as stream:
        slowest = max(part["frozen_us"] for part in json.load(stream)["parts"]) / 1000
    shutil.rmtree("job")
    return slowest, time.monotonic() - begin


def one_by_one_ms(pids):
    slowest = max(frozen_ms(alone(pid, f"alone{pid}")) for pid in pids)
    for pid in pids:
        shutil.rmtree(f"alone{pid}")
    return slowest


def at_once_ms(pids):
    slowest = max(map(frozen_ms, [alone(pid, f"alone{pid}") for pid in pids]))
    for pid in pids:
        shutil.rmtree(f"alone{pid}")
    return slowest


def measure(members, options):
    peers = [subprocess.Popen([PEER, f"count{i}", str(options.mib), "1"], stdout=subprocess.DEVNULL, start_new_session=True, **QUIET) for i in range(members)]
    try:
        time.sleep(1)
        pids = [peer.pid for peer in peers]
        rows = [(*together_ms(pids), one_by_one_ms(pids), at_once_ms(pids)) for _ in range(options.runs)]
    finally:
        for peer in peers:
            peer.kill()
            peer.wait()
    job, whole, single, crowd = map(statistics.median, zip(*rows))
    print(f"| {members} members of {options.mib} MiB: together | {job:.1f} ms | slowest alone {single:.1f} ms | {job - single:+.1f} ms | <= +20 ms |")
    print(f"| {members} members of {options.mib} MiB: all at once, apart | {crowd:.1f} ms | slowest alone {single:.1f} ms | {crowd - single:+.1f} ms | |"
          f" the job's dump took {whole:.2f} s in all", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--members", default="2,4,16")
    parser.add_argument("--mib", type=int, default=16)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="ckpt-bench-", dir="/dev/shm")
    os.chdir(folder)
    print(f"{os.cpu_count()} processors, medians of {options.runs} runs\n| case | measured | against | difference | bar |\n|---|---|---|---|---|")
    try:
        for members in options.members.split(","):
            measure(int(members), options)
    finally:
        os.chdir("/")
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
