#!/usr/bin/env python3
"""Checkpoints that mean harm at the prompt: every model verb ends within seconds and bounded memory, with an exit code of the
contract, and nothing appears outside of the destination.

    hostile.py CKPT_BINARY [CASE...]
"""
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
import hostile_files

CKPT = os.path.abspath(sys.argv[1])
LONG = os.environ.get("CKPT_LONG") == "1"
CASES = set(sys.argv[2:])
MEMORY = 1536 << 20   # address space: the program, its threads' stacks, 256 MiB for convert, and one pickle
FILE = 512 << 20      # no case stands for more output than that
SECONDS = 60   # of a processor
CODES = {0, 1, 2, 3, 4, 5, 6, 8, 9}
TARGETS = ("torch_dist", "safetensors", "zarr3", "npy", "torch")


def limit():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))  # SIGXCPU: no exit code of ours
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE, FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def listing(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def commands(path, target, turn):
    """The formats to write take turns over the files; with CKPT_LONG=1 each file becomes all of them."""
    yield "inspect", ["inspect", path]
    yield "load-metadata", ["load-metadata", "--common", path]
    yield "verify --json", ["verify", "--json", "--strict", path]
    for form in TARGETS if LONG else (TARGETS[turn % len(TARGETS)], TARGETS[(turn + 2) % len(TARGETS)]):
        yield f"convert --to {form}", ["convert", path, target, "--to", form]


def main():
    base = pathlib.Path(tempfile.mkdtemp(prefix="ckpt-hostile-"))
    failures, runs = [], 0
    try:
        sources, work = base / "sources", base / "work"
        sources.mkdir()
        work.mkdir()
        for turn, (name, path) in enumerate(hostile_files.write_all(sources)):
            if CASES and name not in CASES:
                continue
            before = listing(sources)
            for label, command in commands(path, work / "out", turn):
                runs += 1
                try:
                    done = subprocess.run([CKPT, *map(str, command)], stdin=subprocess.DEVNULL, capture_output=True, timeout=6 * SECONDS,
                                          cwd=work, preexec_fn=limit)
                    if done.returncode not in CODES:
                        failures.append(f"{name}: {label}: exit code {done.returncode}: {done.stderr[-300:]!r}")
                    if b"\x1b" in done.stderr or (b"\x1b" in done.stdout):
                        failures.append(f"{name}: {label}: an escape sequence reached the terminal")
                except subprocess.TimeoutExpired:
                    failures.append(f"{name}: {label}: took longer than {6 * SECONDS} s")
                strange = [entry for entry in os.listdir(work) if entry != "out"]
                if strange:
                    failures.append(f"{name}: {label}: left {strange} behind")
                for entry in os.listdir(work):
                    shutil.rmtree(work / entry) if (work / entry).is_dir() else os.unlink(work / entry)
            if listing(sources) != before:
                failures.append(f"{name}: something was written beside it: {set(listing(sources)) ^ set(before)}")
        if os.path.exists("/tmp/ckpt-evil"):
            failures.append("an absolute key was written to")
    finally:
        shutil.rmtree(base)
    print(f"{runs} runs, {len(failures)} failures", *failures, sep="\n")
    return 1 if failures or runs == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
