#!/usr/bin/env python3
"""ckpt protect and rebuild under mpirun beside what reading and sending the same bytes takes by the same MPI, in the same run.

usage: CKPT_BIN=build/ckpt CKPT_BENCH=build/tests/bench/parity bench.py [--ranks 4] [--mib 256] [--rounds 3] [--peers]

The floor reads each rank's file once and sends it, in blocks, with nothing computed, compared or written. protect also makes CRCs of data and
parity, sums, writes the parity (1/(N-k) of the data for each of k) and syncs it; here both lie in memory. MPI_Reduce_scatter_block with
MPI_BXOR, par2 and zfec (where they are installed) make parity of the same bytes. Best of the rounds.
"""
import argparse
import json
import os
import random
import shutil
import subprocess
import tempfile
import time

CKPT = os.path.abspath(os.environ["CKPT_BIN"])
FLOOR = os.path.join(os.path.abspath(os.environ["CKPT_BENCH"]), "bench_parity_floor")


def mpirun(ranks, *command):
    environment = {**os.environ, "LOCAL_WORLD_SIZE": "1"}
    return subprocess.run(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), *command], check=True, text=True, env=environment,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE).stdout


def measure(rounds, work):
    return min(work() for _ in range(rounds))


def timed(*command):
    def work():
        start = time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return time.monotonic() - start
    return work


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", action="store_true", help="par2 and zfec, too, where they are installed: minutes")
    options = parser.parse_args()
    n, rounds = options.ranks, options.rounds
    where = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="ckpt-bench-", dir=where) as folder:
        os.chdir(folder)
        for rank in range(n):
            os.mkdir(f"r{rank}")
            generator = random.Random(rank)
            with open(f"r{rank}/data", "wb") as out:
                for _ in range(options.mib):
                    out.write(generator.randbytes(1 << 20))
        gib = n * options.mib / 1024
        rows = []

        def row(name, seconds, floor=None, bar=None):
            ratio = "" if floor is None else f"{floor / seconds:.2f}" + (f" of the floor (bar {bar})" if bar else " of the floor")
            rows.append(f"{name:44} {seconds * 1e3:9.1f} ms {gib / seconds:7.2f} GiB/s  {ratio}")
            print(rows[-1], flush=True)

        def floor(mode):
            return measure(rounds, lambda: float(mpirun(n, FLOOR, mode, os.path.join(folder, "r"))))

        def verb(*words):
            return json.loads(mpirun(n, CKPT, *words, "--json", "-q"))["duration_us"] / 1e6

        print(f"{n} ranks of {options.mib} MiB; {gib:.2f} GiB of data; {os.cpu_count()} processors")
        send, send2 = floor("send"), floor("send2")
        row("read, send", send)
        row("read, send twice", send2)
        row("read, MPI_Reduce_scatter_block(MPI_BXOR)", floor("reduce_scatter"), send)
        row("ckpt protect --scheme xor", measure(rounds, lambda: verb("protect", "r{rank}")), send, 0.8)
        row("ckpt protect --scheme partner", measure(rounds, lambda: verb("protect", "r{rank}", "--scheme", "partner")), send)
        row("ckpt protect --scheme rs (k = 2)", measure(rounds, lambda: verb("protect", "r{rank}", "--scheme", "rs")), send, 0.5)
        print(f"{'':44} against sending twice, as k = 2 does: {send2 / send:.2f} times the floor above")

        def rebuilt():
            shutil.rmtree("r1")
            for name in os.listdir("."):
                if name.startswith("r1.ckpt-parity-"):
                    os.unlink(name)
            return verb("rebuild", "r{rank}")
        row("ckpt rebuild of one of them (rs)", measure(rounds, rebuilt))
        files = [f"r{rank}/data" for rank in range(n)]
        if options.peers and shutil.which("par2"):
            def par2():
                for name in os.listdir("."):
                    if name.endswith(".par2"):
                        os.unlink(name)
                return timed("par2", "create", "-qq", "-n1", f"-r{100 // (n - 1)}", "-B", folder, "set", *files)()
            row("par2 create (all here, one process)", measure(1, par2), send)
        if options.peers and shutil.which("zfec"):
            row("zfec (all here, one process)", measure(rounds, lambda: sum(
                timed("zfec", "-f", "-q", "-k", str(n - 1), "-m", str(n), "-d", folder, name)() for name in files)), send)


main()
