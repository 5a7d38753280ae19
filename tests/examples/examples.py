#!/usr/bin/env python3
"""The worked examples of CONTRIBUTING.md: a kind of descriptor, a format and a verb, each added by a patch and compiled.

usage: examples.py SOURCE_ROOT COMPILER. Each patch is applied to a copy of the source; what it touches is compiled, warnings as
errors. A kind that is left out of the table must not compile, and its row must call for all three parts of its folder.
"""
import os
import shutil
import subprocess
import sys
import tempfile

FLAGS = ["-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I."]
TABLE = "lib/state/descriptors/record.h"
ROW = "  KIND(Tally, tally, "
PARTS = [f"lib/state/tally/{part}.cpp" for part in ("capture", "restore", "show")]
DISPATCHERS = ["lib/state/descriptors/capture.cpp", "lib/state/descriptors/restore.cpp", "lib/state/descriptors/show.cpp"]


def compile_one(copy, compiler, path):
    return subprocess.run([compiler, *FLAGS, path], cwd=copy, capture_output=True, text=True, check=False)


def touched(patch):
    """The sources that a patch adds or changes."""
    with open(patch, encoding="utf-8") as stream:
        names = [line[len("+++ b/"):].strip() for line in stream if line.startswith("+++ b/")]
    return [name for name in names if name.endswith(".cpp")]


def try_without(copy, compiler, path, part, source):
    """Without the lines of `path` that hold `part`, `source` must not compile."""
    place = os.path.join(copy, path)
    with open(place, encoding="utf-8") as stream:
        lines = stream.read().splitlines(keepends=True)
    kept = [line for line in lines if part not in line]
    assert len(kept) < len(lines), (path, part)
    with open(place, "w", encoding="utf-8") as stream:
        stream.writelines(kept)
    compiles = compile_one(copy, compiler, source).returncode == 0
    with open(place, "w", encoding="utf-8") as stream:
        stream.writelines(lines)
    return [f"{source} compiles although {path} leaves the kind out"] if compiles else []


def missing_parts(copy, compiler):
    """What the table's row makes the program call, and no part of the folder defines."""
    wanted, defined = set(), set()
    for paths, into, letter in ((DISPATCHERS, wanted, "U"), (PARTS, defined, "T")):
        for path in paths:
            made = os.path.join(copy, "part.o")
            subprocess.run([compiler, *[f for f in FLAGS if f != "-fsyntax-only"], "-c", path, "-o", made], cwd=copy, check=True)
            symbols = subprocess.run(["nm", made], capture_output=True, text=True, check=True).stdout.split("\n")
            into.update(line.split()[-1] for line in symbols if "ally" in line and f" {letter} " in line)
    assert len(wanted) == len(PARTS), wanted
    return [f"nothing of lib/state/tally defines {name}" for name in wanted - defined]


def try_example(root, compiler, name):
    patch = os.path.join(root, "tests", "examples", f"{name}.patch")
    failures = []
    with tempfile.TemporaryDirectory(prefix=f"ckpt-example-{name}-") as copy:
        for folder in ("cli", "lib", "formats", "plugins"):
            shutil.copytree(os.path.join(root, folder), os.path.join(copy, folder), ignore=shutil.ignore_patterns("__pycache__"))
        applied = subprocess.run(["git", "apply", patch], cwd=copy, capture_output=True, text=True, check=False,
                                 env={**os.environ, "GIT_CEILING_DIRECTORIES": os.path.dirname(copy)})
        if applied.returncode != 0:
            return [f"{name}.patch does not apply: {applied.stderr}"]
        sources = touched(patch)
        assert sources, patch
        for path in sources:
            done = compile_one(copy, compiler, path)
            print(f"{name}: {path}: {'ok' if done.returncode == 0 else 'fails'}")
            if done.returncode != 0:
                failures.append(done.stderr)
        if name == "kind":
            for part in PARTS[:2]:  # the third needs the struct alone
                failures += try_without(copy, compiler, TABLE, ROW, part)
            failures += missing_parts(copy, compiler)
    return failures


def main():
    root, compiler = os.path.abspath(sys.argv[1]), sys.argv[2]
    failures = [failure for name in ("kind", "format", "verb") for failure in try_example(root, compiler, name)]
    print("\n".join(failures))
    return 1 if failures else 0


sys.exit(main())
