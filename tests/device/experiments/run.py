#!/usr/bin/env python3
"""Builds and runs all experiments on a machine with a GPU and writes a table of what they say.

  run.py [--build BUILD-FOLDER] [--out FILE.md] [--only E1,E5] [--size 8G] [--standin]

The build folder is configured and built if it has no experiments yet. Exit 77 where there is no GPU. With --standin everything
runs small on the stand-in driver: that they run, not what they say.
"""
import argparse
import contextlib
import ctypes
import datetime
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
SKIPPED = 77
LIMIT_S = 540


class Machine:
    """The driver and the first GPU, or why there is none."""

    def __init__(self, library):
        try:
            self.cuda = ctypes.CDLL(library)
        except OSError as missing:
            raise LookupError(f"no CUDA driver: {missing}") from missing
        code = self.cuda.cuInit(0)
        if code != 0:
            raise LookupError(f"cuInit: {code}")
        name, version = ctypes.create_string_buffer(256), ctypes.c_int()
        self.cuda.cuDeviceGetName(name, 256, 0)
        self.cuda.cuDriverGetVersion(ctypes.byref(version))
        self.name = name.value.decode()
        self.version = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"
        try:
            with open("/proc/driver/nvidia/version", encoding="ascii") as stream:
                self.version += ", " + stream.readline().split("  ")[1].strip()
        except (OSError, IndexError):
            pass


class Runner:
    def __init__(self, options):
        self.options = options
        self.build = os.path.abspath(options.build)
        self.folder = os.path.join(self.build, "tests", "device", "experiments")
        self.programs = os.path.join(self.build, "tests", "device", "programs")
        self.ckpt = os.path.join(self.build, "ckpt")
        self.rows, self.failures = [], []

    def note(self, *row):
        self.rows.append([str(cell) for cell in row])
        print("RESULT | " + " | ".join(self.rows[-1]), flush=True)

    def run(self, name, *arguments, program=None, before=(), env=None):
        command = [*before, program or os.path.join(self.folder, name.lower()), *map(str, arguments)]
        print("+", " ".join(command), flush=True)
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env={**os.environ, **(env or {})})
        except subprocess.TimeoutExpired:
            self.failures.append(f"{name} {' '.join(map(str, arguments))}: longer than {LIMIT_S} s")
            return
        for line in done.stdout.splitlines():
            if line.startswith("RESULT | "):
                self.note(*[cell.strip() for cell in line.split("|")[1:]])
        if done.returncode == SKIPPED:
            self.failures.append(f"{name}: skipped: {done.stderr.strip()[-300:]}")
        elif done.returncode != 0:
            self.failures.append(f"{' '.join(command)}: exit {done.returncode}: {done.stderr.strip()[-500:]}")

    def e1(self):
        self.run("E1", self.options.size, self.options.size)

    def e2(self):
        for mode in ("malloc", "vmm", "vmmfd", "reserve"):
            for size in self.options.sizes:
                self.run("E2", mode, size)
        self.run("E2", "malloc", self.options.sizes[0], "stopped")

    def e3(self):
        self.run("E3", self.options.size, 0.5 if self.options.standin else 4)

    def e4(self):
        launches = 5000 if self.options.standin else 500000
        self.run("E4", launches, "plain")
        if os.path.exists(self.ckpt):
            self.run("E4", launches, "under ckpt run", before=[self.ckpt, "run", "--"])

    def e5(self):
        for count in (1, 16) if self.options.standin else (1, 100, 1000):
            self.run("E5", self.options.size, count)

    def e6(self):
        """Dirty fractions; then the same training without ckpt, under ckpt run, and dumped and restored in the middle."""
        script = os.path.join(HERE, "e6_training.py")
        able = [sys.executable, "-c", "import torch; assert torch.cuda.is_available()"]
        if subprocess.run(able, capture_output=True, check=False).returncode != 0:
            self.failures.append("E6: skipped: no PyTorch with CUDA")
            return
        self.run("E6", script, "dirty", program=sys.executable)
        steps = 60
        with tempfile.TemporaryDirectory(prefix="ckpt-e6-") as place:
            self.run("E6", script, "train", f"{place}/plain", steps, program=sys.executable)
            self.run("E6", "run", "--", sys.executable, script, "train", f"{place}/under", steps, program=self.ckpt)
            for name in ("plain", "under"):
                times = sorted(float(line.split()[1]) for line in lines(f"{place}/{name}/losses"))
                if times:
                    self.note("E6", f"a step, {name}, median", f"{times[len(times) // 2] * 1e3:.3f}", "ms")
            for name, first in (("through the driver", []), ("under ckpt run", [self.ckpt, "run", "--"])):
                self.e6_interrupted(place, name, [*first, sys.executable, script, "train"], steps)

    def e6_interrupted(self, place, name, command, steps):
        folder = os.path.join(place, name.replace(" ", "-"))
        process = start([*command, folder, str(steps)])
        try:
            wait_for(lambda: len(lines(f"{folder}/losses")) >= steps // 3, process)
            pid = int(lines(f"{folder}/pid")[0])
            if not self.dump_and_restore("E6", name, pid, f"{place}/{name[:5]}", process):
                return
            wait_for(lambda: os.path.exists(f"{folder}/done"))
            plain, resumed = ([line.split()[0] for line in lines(f"{where}/losses")] for where in (f"{place}/plain", folder))
            self.note("E6", f"{name}: losses of {steps} steps after dump and restore in the middle",
                      "equal to the bit" if plain == resumed else "DIFFERENT", "")
        except TimeoutError as late:
            self.failures.append(f"E6 {name}: {late}")
        finally:
            self.end(process)

    def dump_and_restore(self, experiment, name, pid, image, process):
        """pre-dump, dump with it as the parent, restore."""
        for verb in (["pre-dump", "-p", pid, "-f", f"{image}-1"], ["dump", "-p", pid, "-f", f"{image}-2", "--prev", f"{image}-1"],
                     ["restore", "-f", f"{image}-2", "-d"]):
            began = time.monotonic()
            done = subprocess.run([self.ckpt, *map(str, verb)], capture_output=True, text=True, timeout=LIMIT_S, check=False)
            if done.returncode != 0:
                self.failures.append(f"{experiment} {name}: ckpt {verb[0]}: exit {done.returncode}: {done.stderr.strip()[-500:]}")
                return False
            self.note(experiment, f"{name}: {verb[0]}", f"{time.monotonic() - began:.3f}", "s")
            for line in done.stderr.splitlines():
                if line.startswith("frozen"):
                    self.note(experiment, f"{name}: frozen by {verb[0]}", line.split(None, 1)[1], "")
                if line.startswith("phases"):  # the API is locked from the delta on: it counts as standing still, too
                    for phase in line.split(None, 1)[1].split(", "):
                        if phase.startswith("gpu "):
                            self.note(experiment, f"{name}: {verb[0]}, {phase.rsplit(' ', 2)[0]}", " ".join(phase.rsplit(" ", 2)[1:]), "")
            if verb[0] == "dump":
                process.wait(timeout=60)
        return True

    def e7(self):
        """Frozen time of dump after pre-dump with 1 percent dirty: wanted is a tenth of the driver's own checkpoint (E2, malloc)."""
        size = self.options.sizes[-1]
        with tempfile.TemporaryDirectory(prefix="ckpt-e7-") as place:
            work = os.path.join(place, "work")
            os.makedirs(work)
            process = start([self.ckpt, "run", "--", os.path.join(self.programs, "target_cuda_dirty"), work, size, "1"])
            try:
                wait_for(lambda: os.path.exists(f"{work}/ready"), process)
                if not self.dump_and_restore("E7", f"{size}, 1 percent dirty", process.pid, f"{place}/image", process):
                    return
                with open(f"{work}/.check", "w", encoding="ascii") as stream:
                    stream.write("0")
                os.rename(f"{work}/.check", f"{work}/check")
                wait_for(lambda: os.path.exists(f"{work}/result"))
                self.note("E7", f"{size}: contents after the restore", lines(f"{work}/result")[0].split()[0], "")
            except TimeoutError as late:
                self.failures.append(f"E7: {late}")
            finally:
                self.end(process)

    def end(self, process):
        """The program, which may have been restored with its pid. Without its GPU: killing one that has it hung a machine (driver 595)."""
        if process.poll() is not None and not os.path.exists(f"/proc/{process.pid}"):
            return
        subprocess.run([self.ckpt, "suspend", "-p", str(process.pid)], capture_output=True, timeout=LIMIT_S, check=False)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def table(self, machine):
        out = [f"# Experiments: {machine.name}, {machine.version}, {datetime.date.today()}", "", "| experiment | case | value | unit |",
               "| --- | --- | --- | --- |"]
        out += ["| " + " | ".join(row) + " |" for row in self.rows]
        if self.failures:
            out += ["", "Not seen:", ""] + [f"- {failure}" for failure in self.failures]
        return "\n".join(out) + "\n"


def start(command):
    return subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL)


def lines(path):
    try:
        with open(path, encoding="ascii") as stream:
            return stream.read().splitlines()
    except FileNotFoundError:
        return []


def wait_for(condition, process=None):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline or (process is not None and process.poll() is not None):
            raise TimeoutError("it has ended" if time.monotonic() <= deadline else "too long")
        time.sleep(0.05)


def build(folder):
    if not os.path.exists(os.path.join(folder, "build.ninja")):
        subprocess.run(["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja"], check=True)
    subprocess.run(["cmake", "--build", folder, "--target", "ckpt", "device_experiments", "device_programs", "standin_driver"], check=True)


def use_standin(folder, shared):
    driver = os.path.join(folder, "tests", "device", "driver")
    os.environ.update(CKPT_CUDA_DRIVER=os.path.join(driver, "libcuda.so.1"), LD_LIBRARY_PATH=driver, CKPT_STANDIN_DIR=shared,
                      CKPT_CUDA_KERNELS=os.path.join(ROOT, "tests", "device", "driver", "ckpt_kernels.emu"))
    return os.environ["CKPT_CUDA_DRIVER"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--out")
    parser.add_argument("--only")
    parser.add_argument("--size", help="device memory of E1, E3 and E5 (8G)")
    parser.add_argument("--sizes", help="of E2 and E7, the last for E7 (1G,8G,32G)")
    parser.add_argument("--standin", action="store_true")
    parser.add_argument("--no-build", action="store_true")
    options = parser.parse_args()
    options.size = options.size or ("32M" if options.standin else "8G")
    options.sizes = (options.sizes or ("32M" if options.standin else "1G,8G,32G")).split(",")
    shared = tempfile.mkdtemp(prefix="ckpt-experiments-")
    try:
        if not options.no_build and not options.standin:
            Machine("libcuda.so.1")  # says so before it builds for minutes
            build(options.build)
        machine = Machine(use_standin(os.path.abspath(options.build), shared) if options.standin else "libcuda.so.1")
        runner = Runner(options)
        wanted = options.only.upper().split(",") if options.only else [f"E{n}" for n in range(1, 8)]
        for name in wanted:
            getattr(runner, name.lower())()
        text = runner.table(machine)
        if options.out:
            with open(options.out, "w", encoding="utf-8") as stream:
                stream.write(text)
        print(text)
        failed = [failure for failure in runner.failures if "skipped" not in failure]
        return 1 if failed else 0
    except LookupError as lacking:
        print(f"skipped: {lacking}")
        return SKIPPED
    finally:
        shutil.rmtree(shared, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
