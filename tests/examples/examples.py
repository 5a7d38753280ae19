#!/usr/bin/env python3
"""The worked examples of CONTRIBUTING.md: a kind of descriptor, a format and a verb, each added by a patch and compiled.

usage: examples.py SOURCE_ROOT COMPILER. Each patch is applied to a copy of the source; what it touches is compiled, warnings as
errors. A kind without its row in the table must not compile.
"""
import os
import shutil
import subprocess
import sys
import tempfile

FLAGS = ["-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I."]
ROW = '    {DescriptorKind::kTally, "tally", "tally"},\n'


def compile_one(copy, compiler, path):
    return subprocess.run([compiler, *FLAGS, path], cwd=copy, capture_output=True, text=True, check=False)


def touched(patch):
    """The sources that a patch adds or changes."""
    with open(patch, encoding="utf-8") as stream:
        names = [line[len("+++ b/"):].strip() for line in stream if line.startswith("+++ b/")]
    return [name for name in names if name.endswith(".cpp")]


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
            record = os.path.join(copy, "lib/state/descriptors/record.h")
            with open(record, encoding="utf-8") as stream:
                text = stream.read()
            assert ROW in text
            with open(record, "w", encoding="utf-8") as stream:
                stream.write(text.replace(ROW, ""))
            if compile_one(copy, compiler, "lib/state/descriptors/show.cpp").returncode == 0:
                failures.append("a kind without its row compiles")
    return failures


def main():
    root, compiler = os.path.abspath(sys.argv[1]), sys.argv[2]
    failures = [failure for name in ("kind", "format", "verb") for failure in try_example(root, compiler, name)]
    print("\n".join(failures))
    return 1 if failures else 0


sys.exit(main())
