#!/usr/bin/env python3
"""Ten daily images of a process in one store, beside the bytes that differ; and pushes beside reading and hashing the same bytes.

usage: CKPT_BIN=build/ckpt bench.py [--mib 1024] [--days 10] [--changed 0.05] [--where FOLDER]

The process holds random pages, of which a share, here and there, is another one each day. Its images are complete ones, without parents, dumped
with --no-compress. The bytes that differ are the pages that no image before has (4096 bytes each, zeros left out), and the other files as they are.
The floor of a push is SHA-256 of the image's files by as many threads as there are cores, from the page cache. Needs root. Times are of one run.
"""
import argparse
import hashlib
import json
import mmap
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

CKPT = os.path.abspath(os.environ.get("CKPT_BIN", "ckpt"))
PAGE = 4096


def target(mib, changed):
    """The process: changes its pages for each line that it reads, and answers."""
    memory = mmap.mmap(-1, mib << 20)
    for _ in range(mib):
        memory.write(os.urandom(1 << 20))
    generator = random.Random(1)
    pages = mib << 8
    print("ready", flush=True)
    for _ in sys.stdin:
        for page in generator.sample(range(pages), int(pages * changed)):
            memory[page * PAGE : (page + 1) * PAGE] = os.urandom(PAGE)
        print("changed", flush=True)


def run(*arguments):
    start = time.monotonic()
    result = subprocess.run([CKPT, *arguments, "-q"], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    return time.monotonic() - start, result.stdout


def files_of(folder):
    return sorted(os.path.join(folder, name) for name in os.listdir(folder) if os.path.isfile(os.path.join(folder, name)))


def new_bytes(image, seen):
    """Of what no image before had."""
    out = 0
    for path in files_of(image):
        with open(path, "rb") as stream:
            if not os.path.basename(path).startswith("pages"):
                out += os.path.getsize(path)
                continue
            while block := stream.read(1 << 20):
                for at in range(0, len(block), PAGE):
                    page = block[at : at + PAGE]
                    digest = hashlib.blake2b(page, digest_size=12).digest()
                    if digest not in seen and page.count(0) != len(page):
                        out += len(page)
                    seen.add(digest)
    return out


def hash_all(image):
    """Reading and SHA-256 by all cores: the floor."""
    def one(job):
        path, at = job
        with open(path, "rb", buffering=0) as stream:
            stream.seek(at)
            left, buffer, sha = 64 << 20, bytearray(1 << 20), hashlib.sha256()
            while left > 0 and (n := stream.readinto(buffer)):
                sha.update(memoryview(buffer)[:n])
                left -= n
    jobs = [(path, at) for path in files_of(image) for at in range(0, os.path.getsize(path), 64 << 20)]
    start = time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(one, jobs))
    return time.monotonic() - start


def size_of(folder):
    return sum(os.path.getsize(os.path.join(above, name)) for above, _, names in os.walk(folder) for name in names)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--days", type=int, default=10)
    parser.add_argument("--changed", type=float, default=0.05)
    parser.add_argument("--where", default=None)
    parser.add_argument("--target", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.target:
        return target(options.mib, options.changed)
    with tempfile.TemporaryDirectory(prefix="ckpt-bench-", dir=options.where) as folder:
        os.chdir(folder)
        process = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--target", "--mib", str(options.mib), "--changed", str(options.changed)],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            process.stdout.readline()
            differ, seen = 0, set()
            for day in range(options.days):
                if day:
                    process.stdin.write("\n")
                    process.stdin.flush()
                    process.stdout.readline()
                run("dump", "-p", str(process.pid), "-f", "image", "-R", "--no-compress", "--force", "--external-pipes", "keep")
                new = new_bytes("image", seen)
                before = size_of("store") if day else 0
                took, _ = run("push", "image", "--store", "store", "--name", f"day{day}")
                differ += new
                print(f"day {day}: {new / 2**20:8.1f} MiB differ, the store has {(size_of('store') - before) / 2**20:8.1f} MiB more, push {took:.2f} s", flush=True)
            stored = size_of("store")
            print(f"{options.days} images of {size_of('image') / 2**20:.0f} MiB: {stored / 2**20:.1f} MiB for {differ / 2**20:.1f} MiB that differ: {stored / differ:.3f} (bar: 1.1)")
            floor = min(hash_all("image") for _ in range(3))
            pushes = [run("push", "image", "--store", "store", "--name", f"again{i}")[0] for i in range(3)]
            print(f"push of what is there: {min(pushes):.2f} s, reading and SHA-256 {floor:.2f} s: ratio {min(pushes) / floor:.2f}")
            pull, _ = run("pull", f"day{options.days - 1}", "--store", "store", "--dir", "back")
            start = time.monotonic()
            shutil.copytree("image", "copy")
            os.sync()
            copy = time.monotonic() - start
            subprocess.run(["diff", "-r", "-x", "children", "image", "back"], check=True)
            print(f"pull: {pull:.2f} s, cp and sync {copy:.2f} s: ratio {pull / copy:.2f}")
            took, text = run("list", "--store", "store", "--json")
            print(f"list: {took:.2f} s, day 0 alone holds {json.loads(text)['names'][0]['alone_bytes'] / 2**20:.1f} MiB")
            took, _ = run("verify", "--store", "store")
            print(f"verify: {took:.2f} s for {stored / 2**20:.0f} MiB")
            run("rm", "--store", "store", *[f"day{i}" for i in range(options.days - 1)])
            took, _ = run("gc", "--store", "store")
            print(f"gc of {options.days - 1} days: {took:.2f} s, {size_of('store') / 2**20:.0f} MiB are left")
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


main()
