"""What bench.py measures with: a target that times itself, ckpt under a stopwatch, the floors, and rows of a table."""
import json
import mmap
import os
import shutil
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "support"))
from harness import CKPT, Failure, wait_until

BENCH = os.environ.get("CKPT_BENCH", ".")
FLOOR, TARGET = os.path.join(BENCH, "memory_floor"), os.path.join(BENCH, "bench_target")
THREADS = len(os.sched_getaffinity(0))
MIB = 1 << 20
# struct control of bench_target.c
FIELDS = {name: 8 * i for i, name in enumerate((
    "ready pid address bytes command argument result0 result1 result2 result3 "
    "ticks last_ns longest_ns longest_end_ns writing hot_bytes slices").split())}
COMMANDS = {name: number for number, name in enumerate(("none", "touch", "fork", "protect", "rewrite", "sum"))}
SLICES, RING = 1 << 17, 4096


def available_mib():
    with open("/proc/meminfo", encoding="ascii") as stream:
        return next(int(line.split()[1]) // 1024 for line in stream if line.startswith("MemAvailable"))


class Target:
    """A bench_target, and after a restore its successor with the same pid and the same control file."""

    def __init__(self, folder, mib=0, content="random", threads=0, maps=0, files=0, mixed=0, processes=1):
        self.mib, self.content = mib, content
        path = os.path.join(folder, "control")
        if os.path.exists(path):
            os.unlink(path)
        process = subprocess.Popen([TARGET, path, str(mib), content, *map(str, (threads, maps, files, mixed, processes))],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   start_new_session=True)
        wait_until(lambda: os.path.exists(path) and os.path.getsize(path) > RING, "the control file")
        with open(path, "r+b") as stream:
            self.control = mmap.mmap(stream.fileno(), 0)
        wait_until(lambda: self["ready"] == 1, "the target's memory", timeout=300)
        self.pid = process.pid
        process.returncode = 0  # it is waited for by pid: its successors are no children of this object

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self.control.close()

    def __getitem__(self, field):
        return struct.unpack_from("<Q", self.control, FIELDS[field])[0]

    def __setitem__(self, field, value):
        struct.pack_into("<Q", self.control, FIELDS[field], value)

    def order(self, command, argument=0):
        """Has it done, and returns the first two results."""
        self["argument"] = argument
        self["command"] = COMMANDS[command]
        wait_until(lambda: self["command"] == 0, command, timeout=300)
        return self["result0"], self["result1"]

    def forget_pauses(self):
        ticks = self["ticks"]
        wait_until(lambda: self["ticks"] > ticks + 2, "a tick")
        self["longest_ns"] = 0

    def pause(self):
        """Its longest pause since then, in seconds, less the sleep that it asked for."""
        ticks = self["ticks"]
        wait_until(lambda: self["ticks"] > ticks + 1, "a tick")
        return max(0, self["longest_ns"] - 200_000) / 1e9

    def resident_mib(self):
        try:
            with open(f"/proc/{self.pid}/statm", encoding="ascii") as stream:
                return int(stream.read().split()[1]) * 4096 // MIB
        except OSError:
            return 0

    def slice_ends(self, since):
        """When each MiB was written, by its number, from number `since` on; the ring keeps the last ones."""
        last = self["slices"]
        first = max(since, last - SLICES + 1)
        return [struct.unpack_from("<Q", self.control, RING + 8 * (i % SLICES))[0] for i in range(first, last)]

    def kill(self):
        if self.pid == 0:
            return
        try:
            os.kill(self.pid, 9)
        except ProcessLookupError:
            pass
        self.reap()
        self.pid = 0

    def reap(self):
        try:
            os.waitpid(self.pid, 0)
        except ChildProcessError:
            pass


class Run:
    """One ckpt: seconds of wall and of processor, when it began (CLOCK_MONOTONIC, ns), its largest process in MiB, its report."""

    def __init__(self, *arguments):
        with tempfile.NamedTemporaryFile(prefix="ckpt-bench-run-") as told:
            done = subprocess.run([FLOOR, "run", told.name, shutil.which(CKPT) or CKPT, *map(str, arguments), "--json", "-q"],
                                  stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=900)
            begin, wall, cpu, peak, status = map(int, told.read().split())
        if status != 0:
            raise Failure(f"ckpt {' '.join(map(str, arguments))}: exit {status}\n{done.stderr}")
        self.begin_ns, self.wall, self.cpu, self.peak_mib = begin, wall / 1e9, cpu / 1e6, peak / 1024
        self.report = next((json.loads(line) for line in reversed(done.stdout.splitlines()) if line.startswith("{")), {})
        self.frozen = self.report.get("frozen_us", 0) / 1e6


def has_flag(verb, flag):
    return flag in subprocess.run([CKPT, verb, "--help"], capture_output=True, text=True, check=True).stdout


def floor(*arguments):
    """The numbers that memory_floor prints, in seconds."""
    done = subprocess.run([FLOOR, *map(str, arguments)], capture_output=True, text=True, check=True, timeout=900)
    return [int(word) / 1e9 for word in done.stdout.split()]


def rate_floor(kind, mib, *more):
    """Seconds by the clock and of processors for `mib` MiB, as over at most 2 GiB."""
    some = min(mib, 2048)
    return [seconds * mib / some for seconds in floor(kind, some, THREADS, *more)]


def outside_floor(kind, target, *more):
    """As rate_floor, on the target's own memory."""
    return floor(kind, target.pid, hex(target["address"]), target["bytes"], THREADS, *more)


def delta_floor(target, repeat=3):
    """(seconds, MiB): stop, scan, copy what was written into memory that is faulted in, start."""
    best = min((floor("delta", target.pid, hex(target["address"]), target["bytes"], THREADS) for _ in range(repeat)),
               key=lambda parts: sum(parts[:4]))
    return sum(best[:4]), best[4] * 1e9 / MIB


def ms(seconds):
    return f"{seconds * 1e3:.1f} ms" if seconds < 10 else f"{seconds:.1f} s"


def remove(*folders):
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


class Table:
    """Rows under headings; printed as they come."""

    def __init__(self, quiet):
        self.rows, self.quiet, self.heading = [], quiet, ""

    def head(self, heading):
        self.heading = heading
        if not self.quiet:
            print(f"\n{heading}\n  {'':46s} {'measured':>12s} {'against':>12s} {'ratio':>7s}  {'bar':9s} holds")

    def add(self, what, measured, against=None, at_most=None, at_least=None, ratio=None, show=ms, note=""):
        """`ratio`: measured / against unless given. The bar is on the ratio."""
        if ratio is None and against:
            ratio = measured / against
        bar = f"<= {at_most:g}" if at_most is not None else f">= {at_least:g}" if at_least is not None else ""
        holds = None if not bar or ratio is None else ratio <= at_most if at_most is not None else ratio >= at_least
        self.rows.append({"case": self.heading, "what": what, "measured": measured, "against": against, "ratio": ratio,
                          "bar": bar or None, "holds": holds, "note": note or None, "said": (show(measured), show(against) if against else "")})
        if not self.quiet:
            said = {None: "", True: "yes", False: "NO"}[holds]
            print(f"  {what:46s} {show(measured):>12s} {show(against) if against else '':>12s} "
                  f"{'' if ratio is None else f'{ratio:.3f}' if ratio < 0.1 else f'{ratio:.2f}':>7s}  {bar:9s} {said:4s} {note}".rstrip(), flush=True)

    def markdown(self):
        """The rows that have a bar, as the README shows them."""
        yield "| case | what | measured | against | ratio | bar |"
        yield "|---|---|---|---|---|---|"
        for row in self.rows:
            if row.get("bar"):
                yield f"| {row['case']} | {row['what']} | {row['said'][0]} | {row['said'][1]} | {row['ratio']:.2g} | {row['bar']} |"

    def skip(self, what, why):
        self.rows.append({"case": self.heading, "what": what, "skipped": why})
        if not self.quiet:
            print(f"  {what:46s} skipped: {why}", flush=True)

    def summary(self):
        held, missed = (sum(row.get("holds") is value for row in self.rows) for value in (True, False))
        if not self.quiet:
            print(f"\n{held} bars hold, {missed} do not")
