#!/usr/bin/env python3
"""Prints names.inc: every function that the driver's headers declare, in every version and per-thread form, and how many
machine words its parameters take, which is what a wrapper needs that only passes them on.

usage: names.py [INCLUDE_FOLDER] [--check names.inc]. With --check: exit 1 if a declared function is missing or differs. Without a
folder: that of the file CKPT_TOOLKIT_FILE.
"""
import os
import re
import subprocess
import sys

HEADERS = ["cuda.h", "cudaGL.h", "cudaProfiler.h", "cudaEGL.h", "cudaVDPAU.h"]
# Structures by value that go on the stack: not a row of words. (CUmemLocation is one word; the rest are numbers and pointers.)
ON_STACK = {"CUipcMemHandle", "CUipcEventHandle"}
TITLE = """// CKPT_NAME(function, words): what the driver exports, as its headers tell (names.py prints this file), and the machine words
// that its parameters take; -1: not all of them are words in general registers and on the stack behind them.
"""


def preprocessed(folder, header, *defines):
    guard = "#include <stdint.h>\n#include <stddef.h>\n"
    done = subprocess.run(["g++", "-E", "-P", "-I", folder, *defines, "-x", "c++", "-"], input=f"{guard}#include <{header}>\n",
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return done.stdout if done.returncode == 0 else ""


def functions(text):
    text = re.sub(r"__attribute__\s*\(\([^()]*\)\)", " ", text)
    for name, parameters in re.findall(r"(?<!inline )CUresult\s+(cu[A-Z]\w*)\s*\(([^()]*)\)\s*;", text):
        words = [word for word in parameters.split(",") if word.strip() not in ("", "void")]
        odd = any("*" not in word and (word.split()[0] in ON_STACK or re.search(r"\b(float|double)\b", word)) for word in words)
        yield name, -1 if odd else len(words)


def declared(folder):
    found = {}
    for header in HEADERS:
        if not os.path.exists(os.path.join(folder, header)):
            continue
        for define in ([], ["-D__CUDA_API_VERSION_INTERNAL"], ["-DCUDA_API_PER_THREAD_DEFAULT_STREAM"]):
            for name, words in functions(preprocessed(folder, header, *define)):
                found[name] = min(words, found.get(name, words))
    return found


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 and sys.argv[1] != "--check" else os.path.dirname(os.environ["CKPT_TOOLKIT_FILE"])
    found = declared(folder)
    lines = [f"CKPT_NAME({name}, {words})" for name, words in sorted(found.items())]
    if "--check" not in sys.argv:
        print(TITLE + "\n".join(lines))
        return 0
    with open(sys.argv[-1], encoding="utf-8") as stream:
        have = {line.strip() for line in stream if line.startswith("CKPT_NAME")}
    missing = [line for line in lines if line not in have]
    print("\n".join(missing))
    print(f"{len(lines)} declared, {len(have)} known, {len(missing)} missing")
    return 1 if missing or not lines else 0


sys.exit(main())
