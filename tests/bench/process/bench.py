#!/usr/bin/env python3
"""How long a process stands still, how fast it is saved, how soon it runs again: against what the machine allows.

  bench.py [--quick] [--json | --markdown] [--mib 256,1024,4096,8192] [--only frozen,writer,...] [--tmpfs /dev/shm] [--disk /var/tmp]

Every figure is a ratio to a floor that is measured in the same run, on the same process where that is possible:

  delta      stop (PTRACE_SEIZE, PTRACE_INTERRUPT), a scan for written pages (PAGEMAP_SCAN), process_vm_readv of these pages
             into memory that is faulted in, start: by memory_floor, on the target, just before ckpt does it
  fork       the target forks itself: the time that the parent is in the call; the child ends at once
  protect    the target registers its memory with a userfaultfd and arms every page (PAGEMAP_SCAN, PM_SCAN_WP_MATCHING)
  scan       the same pass without arming, where nothing is written
  fill       fresh anonymous pages, each written once from hot memory, as many threads as processors
  tmpfs      a parallel copy (write) of memory to new files on tmpfs, one a thread
  storage    the same to the disk, and fsync: one pass over the storage
  readv      process_vm_readv of the target into a hot buffer a thread
  outside    the same, and a write from there to new files on tmpfs: the least that another process can do to save it

The target keeps its own longest pause by its own clock, so that `frozen` is not ckpt's word alone (on a busy machine the wait
for a processor is in it), and its writer notes when each MiB was written. Figures are the best of repeats, floor and ckpt in turn and at once: a hypervisor that takes back what a guest
has had free for two seconds makes the first touch of such memory several times dearer, for both.
Nothing here fails for being slow. What a bar says holds for two processors with nothing else to do.

Bars that cannot be met, and why:

  a full dump to tmpfs at 0.8 of a parallel copy: the copy reads memory of its own, a dump that of another process.
  process_vm_readv (get_user_pages and a copy, 0.15 s of processors a GiB) comes before the write to fresh tmpfs (0.45 s, most of
  it in allocating and charging a page at a time), so that the copy from outside is at 0.8 of the parallel one before anything
  is hashed (0.07 s) or probed for zeros and for what compresses (0.05 s). Reading straight into a mapping of the file
  saves the second copy and pays a fault and a zeroing for each page instead: 0.57 s either way; batches of 64 KiB, 256 KiB
  and 1 MiB make no difference. (2 processors of an AMD EPYC, Linux 6.18.)
  written zeros are copied once: that a page which was written holds zeros is told by reading it alone (PAGEMAP_SCAN knows the
  kernel's shared zero page, which is what pages have that were only read); they are never hashed, compressed or stored.

Bars that are missed, and where the time goes:

  restore --lazy, first instruction, 8 GiB against 256 MiB: the page map (48 bytes for 64 KiB of memory) is read and its digest
  taken beside the manifest, by another thread; of 8 GiB that takes a millisecond, of which half is hidden. It is taken apart once
  the processes run and have had a head start of 3 ms (0.4 ms a GiB); until then the few pages that are asked for are found by binary search. What remains is
  the same at any size: 2 ms for ckpt's start, 4 for building the process.
  a tiny process: 3 ms of a dump's 9 to 11 are the starts of ckpt and of its worker, 3 the first look at the process.
  10,000 mappings, dump: smaps, which alone tells the advice on a mapping, takes the kernel 26 to 30 ms, and is read twice (the
  second time beside the freeze window and the writing); that such a process ends takes it 17. Copying ahead (17 ms) and
  preparing the stop (6) make that 8 ms instead of 25.
  1,000 descriptors: four system calls each, in two looks; and where all are of one file, as here, nine comparisons each (kcmp, more than
  a microsecond on a virtual machine, and two threads of ckpt hinder each other in it). A socket has some fifty options more,
  which are read in the stop only.
  trees: processes are looked at and scanned by all processors at once, but stopped and asked by one thread, to which ptrace
  belongs: 0.1 ms each for the stop, 0.1 for the calls that they make for ckpt, 0.05 for taking its scratch mapping away.

Why pre-dump copies ahead, and takes a snapshot only where that does not pay (1 GiB, milliseconds; per first write, us):

                                       stop    first write after it
  fork (clone borrowed in the target)  22-40   2-15, most of it a fresh page
  userfaultfd, synchronous protection  25-37   9-39, a handler saves the page
  asynchronous protection, armed       1-2     0.9-1.0; armed while it runs, 14-16, and then scanned for changes, 0.8
  (PAGEMAP_SCAN of all populated pages takes 5, with the question whether they are a file's 13-25.)
"""
import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from measure import (CKPT, Failure, MIB, Run, THREADS, Table, Target, available_mib, delta_floor, has_flag, ms, rate_floor,
                     outside_floor, remove)
from harness import become_subreaper


def mib_text(value):
    return f"{value:.1f} MiB"


def middle(runs):
    return statistics.median(run.wall for run in runs)


def spread(runs):
    return f"best {ms(min(run.wall for run in runs))}, of processors {ms(statistics.median(run.cpu for run in runs))}"


class Bench:
    def __init__(self, options, table):
        self.options, self.table = options, table
        self.folders = []
        self.work = self.images()
        self.peaks = []  # (MiB beside the copied delta, what)
        self.full_frozen, self.first_lazy = {}, {}  # seconds by MiB
        self.last = ""  # the image whose tracking is armed

    def images(self, place="tmpfs"):
        """A fresh folder for the images of one case."""
        self.folders.append(tempfile.mkdtemp(prefix="ckpt-bench-", dir=getattr(self.options, place)))
        return self.folders[-1]

    def target(self, mib=0, content="random", **more):
        return Target(self.work, mib, content, **more)

    def run(self, what, *arguments, delta_mib=0.0):
        done = Run(*arguments)
        self.peaks.append((done.peak_mib - delta_mib, what))
        return done

    def restore(self, target, image, *flags):
        """The run, and the seconds from its begin to the target's first instruction, by the target's clock."""
        target["longest_ns"] = 0
        done = self.run(f"restore {' '.join(flags)}".strip(), "restore", "-d", "-f", image, *flags)
        target.pid = done.report.get("pid_outside", done.report["pid"])
        target.pause()
        return done, (target["longest_end_ns"] - done.begin_ns) / 1e9

    # -- full dump and restore

    def whole(self, mib, content, place, repeat):
        """dump without a parent, and the eager restore of its image."""
        self.table.head(f"{mib} MiB {content}, image on {place}: all of it")
        images = self.images(place)
        image = os.path.join(images, "full")
        with self.target(mib, content) as target:
            self.dumps(target, images, place, repeat)
            self.run(f"dump of {mib} MiB", "dump", *self.options.plain_dump, "-p", target.pid, "-f", image)
            target.reap()
            self.restores(target, image, place, repeat)
        remove(images)

    def dumps(self, target, images, place, repeat):
        """Floor and dump in turn, so that both find the memory of the machine alike."""
        found, copies, outside = [], [], []
        for _ in range(repeat):
            copies.append(rate_floor("tmpfs" if place == "tmpfs" else "storage", target.mib, images))
            outside.append(outside_floor("outside", target, images))
            found.append(self.plain_dump(target, os.path.join(images, "again")))
        best, least = min(found, key=lambda run: run.wall), min(found, key=lambda run: run.frozen)
        barred = target.content == "random"
        self.rate("dump: throughput against a parallel copy", best, min(copies), barred)
        if place == "tmpfs":
            self.rate("dump: throughput against a copy from outside", best, min(outside))
        self.table.add("dump: frozen against process_vm_readv", least.frozen, min(outside_floor("readv", target)[0] for _ in range(repeat)))
        self.table.add("dump: stored", best.report["bytes_written"] / MIB, target.mib, show=mib_text)
        if barred and place == "tmpfs":
            self.full_frozen[target.mib] = least.frozen

    def rate(self, what, run, floor, barred=False):
        """Throughput: the floor's seconds over ckpt's. Seconds of processors tell the same on a busy machine."""
        self.table.add(what, run.wall, floor[0], ratio=floor[0] / run.wall, note=f"of processors {ms(run.cpu)}, {ms(floor[1])}",
                       **({"at_least": 0.8} if barred else {}))

    def plain_dump(self, target, image):
        """One stop for all of it. The target is left stopped: one that goes on may be copied behind its back."""
        run = self.run(f"dump of {target.mib} MiB", "dump", "-s", *self.options.plain_dump, "-p", target.pid, "-f", image)
        os.kill(target.pid, signal.SIGCONT)
        remove(image)
        return run

    def live_dump(self, mib, repeat):
        """dump -R of a process that nothing was known of, however ckpt does it."""
        self.table.head(f"{mib} MiB random, image on tmpfs: dump -R")
        images = self.images()
        runs = []
        for i in range(repeat):
            with self.target(mib) as target:
                target.forget_pauses()
                runs.append(self.run(f"dump -R of {mib} MiB", "dump", "-R", "-p", target.pid, "-f", os.path.join(images, str(i))))
                runs[-1].pause = target.pause()
            remove(os.path.join(images, str(i)))
        least = min(runs, key=lambda run: run.pause)
        self.table.add("frozen against one stop for all of it", least.frozen, self.full_frozen.get(mib))
        self.table.add("the target's own longest pause", least.pause, least.frozen, note="against frozen")
        self.table.add("all of it", min(run.wall for run in runs))

    def restores(self, target, image, place, repeat):
        mib = target.mib
        fills, eager, lazy = [], [], []
        for _ in range(repeat):
            fills.append(rate_floor("fill", mib))
            eager.append(self.restore(target, image))
            target.kill()
        best = min((run for run, _ in eager), key=lambda run: run.wall)
        self.rate("restore: against filling fresh pages", best, min(fills), place == "tmpfs" and target.content == "random")
        self.table.add("restore: first instruction", min(first for _, first in eager))
        if not self.options.lazy:
            return self.table.skip("restore --lazy", "this ckpt has no such flag")
        for _ in range(repeat):
            done, first = self.restore(target, image, "--lazy")
            while target.resident_mib() < mib and time.monotonic_ns() - done.begin_ns < 120e9:
                time.sleep(0.002)
            lazy.append((first, (time.monotonic_ns() - done.begin_ns) / 1e9))
            target.kill()
        first = min(first for first, _ in lazy)
        self.first_lazy[mib] = first
        self.table.add("restore --lazy: first instruction", first, 0.010, at_most=1)
        self.table.add("restore --lazy: all pages in, against eager", min(last for _, last in lazy), best.wall, at_most=1.3)

    # -- what stands still

    def frozen(self, mib, repeat, rates):
        """pre-dump against its snapshot's price, dump --prev against stop, scan, copy, start."""
        self.table.head(f"{mib} MiB random, image on tmpfs: what stands still")
        images = self.images()
        with self.target(mib) as target:
            fork = min(target.order("fork")[0] for _ in range(repeat)) / 1e9
            protect, scan = (min(values) / 1e9 for values in zip(*(target.order("protect") for _ in range(repeat))))
            target.order("rewrite")
            whole = self.full_frozen.get(mib) or self.plain_dump(target, os.path.join(images, "full")).frozen
            self.pre_dumps(target, images, repeat, fork, protect)
            self.table.add("floor: a scan", scan, fork, note="against fork")
            for rate in rates:
                self.delta(target, images, rate, repeat, whole)
        remove(images)

    def pre_dumps(self, target, images, repeat, fork, protect):
        runs = []
        for i in range(repeat):
            target.forget_pauses()
            self.last = os.path.join(images, f"before-{i}")
            runs.append(self.run("pre-dump", "pre-dump", "-p", target.pid, "-f", self.last))
            runs[-1].pause = target.pause()
        first, rest = runs[0], runs[1:]
        # Copied in rounds it needs no fork.
        primitive, name = (protect, "protect") if first.report.get("rounds") else (fork + protect, "fork and protect")
        self.table.add(f"pre-dump: longest pause against {name}", max(first.frozen, first.pause), primitive, at_most=1.3)
        self.table.add("pre-dump: the target's own longest pause", first.pause, first.frozen, note="against frozen")
        if rest:
            least = min(rest, key=lambda run: run.frozen)
            self.table.add("pre-dump, again: frozen against protect", least.frozen, protect)

    def delta(self, target, images, rate, repeat, whole):
        """dump -R re-arms, so that each repeat finds exactly what was touched since the one before."""
        found = []
        for i in range(repeat):
            target.order("touch", rate * 10)
            least, dirty = delta_floor(target)
            target.forget_pauses()
            image = os.path.join(images, f"delta-{rate}-{i}")
            run = self.run(f"dump --prev, {rate} %", "dump", "-R", "--prev", self.last, "-p", target.pid, "-f", image, delta_mib=dirty)
            self.last = image
            run.floor, run.pause = least, target.pause()
            found.append(run)
        best = min(found, key=lambda run: run.frozen / run.floor)
        name = f"dump --prev, {rate} % dirty: frozen against"
        self.table.add(f"{name} delta", best.frozen, best.floor, **({"at_most": 1.5} if rate == 1 else {}))
        frozen = min(run.frozen for run in found)
        self.table.add(f"{name} full", frozen, whole, **({"at_most": 0.03} if rate == 1 and target.mib == 4096 else {}))
        if rate == 1:
            self.table.add("dump --prev: the target's own longest pause", best.pause, best.frozen, note="against frozen")

    # -- the target's speed

    def writer(self, mib):
        """A writer at full speed over a hot part of the memory, before, during and after a pre-dump."""
        self.table.head(f"{mib} MiB random, image on tmpfs: a writer at full speed")
        hot = max(8, min(128, mib // 32))
        for part, what in ((hot, f"{hot} MiB hot"), (mib, "all of it")):
            images = self.images()
            with self.target(mib) as target:
                target["hot_bytes"] = part * MIB
                target["writing"] = 1
                time.sleep(max(0.5, 2 * mib / 4096))
                target.forget_pauses()
                since = target["slices"]
                time.sleep(0.5)
                run = self.run(f"pre-dump under a writer", "pre-dump", "-p", target.pid, "-f", os.path.join(images, "before"))
                pause, again = target.pause(), target["longest_end_ns"]
                time.sleep(1)
                ends = target.slice_ends(since)
                self.speeds(what, part, run, again, ends)
                self.table.add(f"{what}: frozen", run.frozen, pause, note="against the target's own longest pause")
                if self.options.rounds:
                    self.rounds(target, images, what)
            remove(images)

    def speeds(self, what, part, run, again_ns, ends):
        """Slices are a MiB: the first `part` of them after the snapshot pay for each page's first write."""
        end_ns = run.begin_ns + run.wall * 1e9

        def speed(times):
            return (len(times) - 1) / (times[-1] - times[0]) * 1e9 if len(times) > 2 else 0

        before = speed([t for t in ends if t < run.begin_ns])
        during = [t for t in ends if again_ns <= t < end_ns]
        after = [t for t in ends if t > end_ns + 0.3e9]
        show = lambda value: f"{value / 1024:.2f} GiB/s"
        if not before:
            return self.table.skip(f"{what}: speed", "the ring of slices is too short")
        if speed(during[part:]):
            self.table.add(f"{what}: during the copy, first touches off", speed(during[part:]), before, at_least=0.8, show=show)
        else:
            self.table.skip(f"{what}: during the copy, first touches off", "it ended before every page had been touched")
        self.table.add(f"{what}: during the copy, all", speed(during), before, show=show)
        self.table.add(f"{what}: after", speed(after), before, show=show)

    def rounds(self, target, images, what):
        target.forget_pauses()
        run = self.run("dump --rounds auto", "dump", "-R", "--rounds", "auto", "-p", target.pid, "-f", os.path.join(images, "auto"))
        rounds = ", ".join(str(part["pages"]) for part in run.report.get("rounds", []))
        self.table.add(f"{what}: dump --rounds auto, frozen", run.frozen, target.pause(),
                       note=f"against the target's own longest pause; pages by round: {rounds}")

    # -- the rest

    def fixed(self, repeat):
        self.table.head("fixed costs, image on tmpfs")
        cases = (("a tiny process", {}, 0.010, 0.003, 0.008), ("1,000 threads", {"threads": 1000}, 0.25, None, 0.25),
                 ("10,000 mappings", {"maps": 10000}, 0.1, None, 0.1), ("1,000 descriptors", {"files": 1000}, 0.030, None, 0.010),
                 ("1,000 files, pipes, sockets", {"mixed": 1000}, 0.030, None, 0.010))
        for what, more, dump_bar, frozen_bar, restore_bar in cases:
            images = self.images()
            dumps, restores = [], []
            with self.target(**more) as target:
                for i in range(repeat):
                    image = os.path.join(images, str(i))
                    dumps.append(self.run(what, "dump", "-p", target.pid, "-f", image))
                    target.reap()
                    restores.append(self.restore(target, image)[0])
            remove(images)
            self.table.add(f"{what}: dump", middle(dumps), dump_bar, at_most=1, note=spread(dumps))
            frozen = statistics.median(run.frozen for run in dumps)
            self.table.add(f"{what}: dump, frozen", frozen, frozen_bar, **({"at_most": 1} if frozen_bar else {}))
            self.table.add(f"{what}: restore", middle(restores), restore_bar, at_most=1, note=spread(restores))

    def trees(self, repeat):
        """What each process of a tree costs, against a tree of one."""
        self.table.head("trees, image on tmpfs")
        alone = {}
        for count in (1, 8, 64):
            images, runs = self.images(), {"dump -R": [], "pre-dump": []}
            with self.target(processes=count) as target:
                for i in range(repeat):
                    for verb in runs:
                        image = os.path.join(images, f"{verb}-{i}")
                        runs[verb].append(self.run(f"{verb} of {count}", *verb.split(), "-p", target.pid, "-f", image))
                        remove(image)
            remove(images)
            for verb, found in runs.items():
                for what, value in (("", middle(found)), (", frozen", statistics.median(run.frozen for run in found))):
                    first = alone.setdefault(verb + what, value)
                    bar = {"at_most": 0.5} if count == 64 and verb == "dump -R" else {}
                    self.table.add(f"{count} processes: {verb}{what}", value, count * first, **bar)

    def zeros(self, mib):
        self.table.head(f"{mib} MiB of zero pages, image on tmpfs")
        for content, what in (("read", "only read"), ("zero", "written with zeros")):
            images = self.images()
            with self.target(mib, content) as target:
                readv = min(outside_floor("readv", target)[0] for _ in range(3))
                run = self.run("dump of zeros", "dump", "-R", "-p", target.pid, "-f", os.path.join(images, "full"))
            remove(images)
            self.table.add(f"{what}: stored", run.report["bytes_written"] / MIB, mib, at_most=0.01, show=mib_text)
            self.table.add(f"{what}: copied", run.report["bytes_memory"] / MIB, mib, show=mib_text, **({"at_most": 0.01} if content == "read" else {}))
            self.table.add(f"{what}: dump against process_vm_readv", run.wall, readv)

    def memory(self):
        self.table.head("ckpt's own memory")
        if self.peaks:
            most, what = max(self.peaks)
            self.table.add("peak beside the copied delta", most, 256, at_most=1, show=mib_text, note=what)

    def lazy_sizes(self):
        sizes = sorted(self.first_lazy)
        if len(sizes) > 1:
            self.table.head("restore --lazy")
            self.table.add(f"first instruction: {sizes[-1]} MiB against {sizes[0]} MiB", self.first_lazy[sizes[-1]], self.first_lazy[sizes[0]], at_most=1.1)

    def criu(self, mib):
        """A peer for dump and restore, where a criu is installed that works."""
        self.table.head("criu")
        try:
            checked = subprocess.run(["criu", "check"], capture_output=True, text=True, timeout=30, check=False)
        except FileNotFoundError:
            return self.table.skip("dump and restore", "criu is not installed")
        if checked.returncode != 0:
            return self.table.skip("dump and restore", "criu check: " + (checked.stderr or checked.stdout).strip().splitlines()[-1])
        for size in (0, mib):
            images = self.images()
            with self.target(size) as target:
                begin = time.monotonic()
                subprocess.run(["criu", "dump", "-t", str(target.pid), "-D", images], capture_output=True, check=True)
                dumped = time.monotonic()
                target.reap()
                subprocess.run(["criu", "restore", "-d", "-D", images], capture_output=True, check=True)
                self.table.add(f"{size} MiB: dump, frozen all along", dumped - begin)
                self.table.add(f"{size} MiB: restore", time.monotonic() - dumped)
            remove(images)


PARTS = ("whole", "frozen", "writer", "fixed", "trees", "zeros", "criu")


def plan(bench, options):
    """Which cases, smallest first."""
    wanted = options.only.split(",") if options.only else PARTS
    if "fixed" in wanted:
        bench.fixed(3 if options.quick else 7)
    if "trees" in wanted:
        bench.trees(3 if options.quick else 7)
    for mib in options.mib:
        if available_mib() < 2.1 * mib + 512:
            bench.table.head(f"{mib} MiB")
            bench.table.skip("all of it", f"only {available_mib()} MiB of memory are available")
            continue
        repeat = 5 if mib < 1024 else 3 if mib <= 4096 else 2
        if "whole" in wanted:
            bench.whole(mib, "random", "tmpfs", repeat)
        if "frozen" in wanted:
            bench.live_dump(mib, 1 if mib > 1024 else 2)
            bench.frozen(mib, repeat, (1,) if options.quick else (0, 1, 10, 50) if mib <= 1024 else (0, 1, 10))
        if "writer" in wanted and (mib == 1024 or mib == max(options.mib)):
            bench.writer(min(mib, 4096))
    some = min(1024, max(options.mib))
    if "whole" in wanted and not options.quick:
        bench.whole(some, "weights", "tmpfs", 2)
        for content in ("random", "weights"):
            bench.whole(some, content, "disk", 2)
    if "zeros" in wanted:
        bench.zeros(some)
    bench.memory()
    bench.lazy_sizes()
    if "criu" in wanted and not options.quick:
        bench.criu(some)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", help="sizes; default 256,1024,4096,8192, quick 256,1024")
    parser.add_argument("--quick", action="store_true", help="a minute: fewer sizes, rates and repeats")
    parser.add_argument("--only", help="some of " + ",".join(PARTS))
    parser.add_argument("--json", action="store_true", help="one document instead of the table")
    parser.add_argument("--markdown", action="store_true", help="the rows with a bar once more, as the README has them")
    parser.add_argument("--tmpfs", default="/dev/shm")
    parser.add_argument("--disk", default="/var/tmp")
    options = parser.parse_args()
    options.mib = sorted(map(int, (options.mib or ("256,1024" if options.quick else "256,1024,4096,8192")).split(",")))
    options.lazy, options.rounds = has_flag("restore", "--lazy"), has_flag("dump", "--rounds")
    options.plain_dump = ["--rounds", "0"] if options.rounds else []
    become_subreaper()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # targets and gigabytes of images go with it
    table = Table(options.json)
    bench = Bench(options, table)
    machine = {"kernel": os.uname().release, "processors": THREADS, "memory_mib": available_mib(), "load": os.getloadavg()[0]}
    if not options.json:
        print(f"{THREADS} processors, {machine['memory_mib']} MiB of memory available, Linux {machine['kernel']}, load {machine['load']:.1f} before")
    try:
        plan(bench, options)
    finally:
        remove(*bench.folders)
    table.summary()
    if options.markdown:
        print("\n".join(table.markdown()))
    if options.json:
        print(json.dumps({"schema": "ckpt.bench/1", "machine": machine, "ckpt": CKPT, "rows": table.rows}, indent=1))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Failure, subprocess.CalledProcessError) as failure:
        sys.exit(str(failure) + (getattr(failure, "stderr", None) or ""))
