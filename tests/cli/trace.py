#!/usr/bin/env python3
"""--trace: a timeline that holds what the report says, complete or absent, whatever becomes of the verb."""
import json
import os
import re
import signal
import subprocess
import sys

from prompt import CKPT, main, problems, run

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from small_checkpoints import safetensors

SLEEPER = "import time, sys; held = bytearray(40 << 20); held[::4096] = b'x' * (10 << 10); print(flush=True); time.sleep(600)"


class Sleeper:
    """A python that holds 40 MiB."""

    def __enter__(self):
        self.process = subprocess.Popen([sys.executable, "-c", SLEEPER], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, start_new_session=True)
        self.process.stdout.readline()
        return self.process.pid

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def spans(file):
    with open(file, encoding="utf-8") as stream:
        document = json.load(stream)
    rows = {event["tid"]: event["args"]["name"] for event in document["traceEvents"] if event["name"] == "thread_name"}
    return [(rows[event["tid"]], event) for event in document["traceEvents"] if event["ph"] == "X"]


def counted(file):
    """The last value of each counter, in bytes."""
    with open(file, encoding="utf-8") as stream:
        return {event["name"]: event["args"]["bytes"] for event in json.load(stream)["traceEvents"] if event["ph"] == "C"}


def named(found, name, row=None):
    return [event for at, event in found if event["name"] == name and row in (None, at)]


def a_dump_shows_its_frozen_window():
    with Sleeper() as pid:
        for verb in ("pre-dump", "dump"):
            result = run(verb, "-p", str(pid), "-f", verb, "--trace", f"{verb}.json", "--json", "-R", "-j")
            if result.returncode != 0:
                yield f"{verb}: exit {result.returncode}: {result.stderr}"
                continue
            report, found = json.loads(result.stdout), spans(f"{verb}.json")
            frozen = [event for row, event in found if row == "target"]
            took = sum(event["dur"] for event in frozen)
            stood = report["frozen_us"] + report["stops_us"]
            if not named(found, "frozen", "target") or abs(took - stood) > 1 + 0.01 * stood:
                yield f"{verb}: stopped for {took} us in the timeline, {stood} in the report"
            phases = {re.sub("[ -]", "_", event["name"]): event["dur"] for event in (event for row, event in found if row == "phases")}
            for name, us in report["phases_us"].items():
                if abs(phases.get(name, -1) - us) > 1:
                    yield f"{verb}: phase {name} takes {us} us and {phases.get(name)} in the timeline"
            read = sum(event["args"]["bytes"] for event in named(found, "read"))
            if read != report["bytes_memory"]:
                yield f"{verb}: {read} bytes were read in the timeline, {report['bytes_memory']} in the report"
            sums = counted(f"{verb}.json")
            if sums.get("read", 0) < read or (read and not sums.get("written")):
                yield f"{verb}: the counters say {sums}, {read} bytes were read"
            for name in ("store", "hash", "write", "sync"):
                if not named(found, name) and report["bytes_memory"] > 0:
                    yield f"{verb}: no span {name}"


def a_verb_that_fails_leaves_its_timeline():
    with Sleeper() as pid:
        os.mkdir("taken")
        with open("taken/file", "w", encoding="ascii"):
            pass
        yield from problems(["dump", "-p", str(pid), "-f", "taken", "-j", "--trace", "t.json"], 2, err="not empty")
    if not os.path.exists("t.json"):
        yield "no timeline of a failure"
    else:
        spans("t.json")
    if sorted(os.listdir()) != ["t.json", "taken"]:
        yield f"left behind: {os.listdir()}"


def a_file_that_cannot_be_made_is_refused_before_anything_is_touched():
    with Sleeper() as pid:
        for file, code, pattern in (("none/t.json", 4, "none/t.json: cannot be created"), ("/dev/null", 2, "not a regular file"), (".", 2, "not a regular file")):
            yield from problems(["dump", "-p", str(pid), "-f", "image", "--trace", file], code, err=pattern)
        if os.listdir():
            yield f"left behind: {os.listdir()}"
        os.kill(pid, 0)


def an_interrupted_verb_leaves_a_timeline_or_none():
    """Whenever the signal comes, what lies there is whole."""
    with Sleeper() as pid:
        for wait in (0.005, 0.02, 0.05):
            process = subprocess.Popen([CKPT, "pre-dump", "-p", str(pid), "-f", f"i{wait}", "-j", "--trace", "t.json"],
                                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                process.wait(wait)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
            process.wait(30)
            if os.path.exists("t.json"):
                spans("t.json")
                os.unlink("t.json")
        left = [name for name in os.listdir() if "t.json" in name]
        if left:
            yield f"left behind: {left}"


def a_restore_shows_its_phases_and_what_was_filled():
    sleeper = Sleeper()
    with sleeper as pid:
        dumped = run("dump", "-p", str(pid), "-f", "image", "-j")
        sleeper.process.wait()  # until it is reaped its number is taken
        with open("report", "w+", encoding="utf-8") as report, open("/dev/null", "w", encoding="ascii") as nowhere:
            # No pipes: the restored process takes ckpt's own descriptors and keeps them.
            result = run("restore", "-d", "-f", "image", "-j", "--trace", "r.json", "--json", stdout=report, stderr=nowhere)
            report.seek(0)
            told = report.read()
        if dumped.returncode != 0 or result.returncode != 0:
            yield f"exit {dumped.returncode}, {result.returncode}: {dumped.stderr}"
            return
        os.kill(pid, signal.SIGKILL)
    report, found = json.loads(told), spans("r.json")
    phases = {re.sub("[ -]", "_", event["name"]): event["dur"] for row, event in found if row == "phases"}
    for name, us in report["phases_us"].items():
        if abs(phases.get(name, -1) - us) > 1:
            yield f"phase {name} takes {us} us and {phases.get(name)} in the timeline"
    filled = sum(event["args"]["bytes"] for event in named(found, "fill") if "args" in event)
    if filled < 40 << 20 or not named(found, "read"):
        yield f"{filled} bytes were filled in the timeline"
    sums = counted("r.json")
    if sums.get("written", 0) < filled:
        yield f"the counters say {sums}, {filled} bytes were filled"


def convert_takes_it_too():
    yield from problems(["restore", "-f", "none", "--trace", "r.json"], 4, err="none")
    yield from problems(["convert", "none", "out", "--to", "torch_dist", "--trace", "c.json"], 4, err="none")
    for file in ("r.json", "c.json"):
        spans(file)


def a_conversion_shows_files_tensors_and_bytes():
    safetensors("m.safetensors", {"large": ("F32", [1 << 18], bytes(1 << 20)), "small": ("F32", [1], bytes(4))})
    result = run("convert", "m.safetensors", "out.pt", "--to", "torch", "--verify", "--trace", "c.json")
    if result.returncode != 0:
        yield f"exit {result.returncode}: {result.stderr}"
        return
    found, sums = spans("c.json"), counted("c.json")
    names = {event["name"] for row, event in found if row not in ("phases", "target")}
    for name in ("model.pt", "large", "small"):
        if name not in names:
            yield f"no span {name} among {sorted(names)}"
    size = os.path.getsize("out.pt")
    if sums.get("written", 0) < size or sums.get("read", 0) < 2 * size:
        yield f"the counters say {sums} for a file of {size} bytes that was read again"


main(a_dump_shows_its_frozen_window, a_verb_that_fails_leaves_its_timeline,
     a_file_that_cannot_be_made_is_refused_before_anything_is_touched, an_interrupted_verb_leaves_a_timeline_or_none,
     a_restore_shows_its_phases_and_what_was_filled, convert_takes_it_too,
     a_conversion_shows_files_tensors_and_bytes)
