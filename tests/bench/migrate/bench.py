#!/usr/bin/env python3
"""How long a process stands still that moves over a link of 10 and of 1 Gbit/s, beside one that is dumped and restored on the spot.

usage: CKPT_BIN=build/ckpt CKPT_PEER=build/tests/cli/migrate_peer bench.py [--mib 1024] [--hot 10] [--runs 3]

The process writes --hot MiB of its --mib again and again, 128 MiB a second, and counts in a file every 2 ms: it stood still for as long as that number did, by
the clock of who watches it. The link is `migrate --bandwidth` to a `ckpt receive --new-pidns` on this machine; the local way is `pre-dump`, `dump --prev`
and `restore --new-pidns`, all on tmpfs. Medians. The bar: at most 3 times the local one. Needs root.
"""
import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

CKPT, PEER = os.path.abspath(os.environ.get("CKPT_BIN", "ckpt")), os.path.abspath(os.environ.get("CKPT_PEER", "migrate_peer"))
LINKS = {"10 Gbit/s": 1250 << 20, "1 Gbit/s": 125 << 20}


class Watch(threading.Thread):
    """The longest time in which the number did not change."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.path, self.longest, self.over = path, 0.0, threading.Event()
        self.start()

    def run(self):
        with open(self.path, "rb", buffering=0) as stream:
            last, since = None, time.monotonic()
            while not self.over.wait(0.0005):
                now = os.pread(stream.fileno(), 8, 0)
                if now != last:
                    last, since = now, time.monotonic()
                self.longest = max(self.longest, time.monotonic() - since)

    def finish(self):
        self.over.set()
        self.join()
        return self.longest


def ckpt(*words):
    done = subprocess.run([CKPT, *words, "--json"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"ckpt {' '.join(words)}: {done.stderr}")
    return json.loads(done.stdout.splitlines()[0])


def case(options, folder, move):
    """What `move` tells, the seconds of standing still, and those of all of it."""
    path = os.path.join(folder, "count")
    peer = subprocess.Popen([PEER, path, str(options.mib), str(options.hot)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                            start_new_session=True)
    time.sleep(1 + options.mib / 500)
    watch = Watch(path)
    time.sleep(0.1)
    begin = time.monotonic()
    told, pid = move(peer.pid)
    took = time.monotonic() - begin
    time.sleep(0.3)
    stood = watch.finish()
    os.kill(pid, signal.SIGKILL)
    peer.wait()
    time.sleep(0.2)
    if os.path.exists(path + ".bad"):
        raise RuntimeError("the process found its memory changed")
    os.unlink(path)
    return told, stood, took


def local(folder):
    def move(pid):
        names = [os.path.join(folder, name) for name in ("before", "now")]
        ckpt("pre-dump", "-p", str(pid), "-f", names[0])
        ckpt("dump", "-p", str(pid), "-f", names[1], "--prev", names[0])
        restored = ckpt("restore", "-f", names[1], "-d", "--new-pidns")
        for name in names:
            shutil.rmtree(name)
        return restored, restored["pid_outside"]

    return move


def over(rate, folder):
    script = os.path.join(folder, "ssh")
    with open(script, "w", encoding="ascii") as stream:
        stream.write('shift\nexec "$@"\n')

    def move(pid):
        done = ckpt("migrate", "-p", str(pid), "--to", "here", "--ssh", f"sh {script}", "--remote-ckpt", CKPT, "--new-pidns", "--bandwidth", str(rate))
        return done, done["pid_outside_there"]

    return move


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--hot", type=int, default=10)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="ckpt-bench-", dir="/dev/shm")
    worst = 0.0
    try:
        base = statistics.median(case(options, folder, local(folder))[1] for _ in range(options.runs))
        print(f"{options.mib} MiB, {options.hot} of them written all the time\ndump --prev and restore here: stood still for {base * 1e3:.0f} ms")
        for name, rate in LINKS.items():
            runs = [case(options, folder, over(rate, folder)) for _ in range(options.runs)]
            stood = statistics.median(run[1] for run in runs)
            told = runs[-1][0]
            worst = max(worst, stood / base)
            print(f"migrate over {name}: stood still for {stood * 1e3:.0f} ms, {stood / base:.2f} times that; {statistics.median(run[2] for run in runs):.1f} s in all, "
                  f"{len(told['rounds'])} iterations, {told['bytes_sent'] >> 20} MiB sent, {told['bytes_frozen'] >> 20} MiB of memory in the end")
    finally:
        shutil.rmtree(folder)
    sys.exit(1 if worst > 3 else 0)


if __name__ == "__main__":
    main()
