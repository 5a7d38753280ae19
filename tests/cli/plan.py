#!/usr/bin/env python3
"""ckpt plan: what it prints agrees with the formulas, what it cannot answer it refuses."""
import json
import math
import os
import shutil
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from prompt import main, problems, run


def plan(*arguments):
    return json.loads(run("plan", *arguments, "--json").stdout)


def near(name, value, wanted, part=1e-3):
    if not math.isclose(value, wanted, rel_tol=part):
        yield f"{name}: {value}, expected {wanted}"


def formulas():
    # Young and Daly for the GLM-65B figures of DLRover's report: 102 s, a failure every three hours.
    got = {row["model"]: row for row in plan("--mtbf", "3h", "--save-cost", "102s")["models"]}
    yield from near("young", got["young"]["period_us"], 1484.3e6)
    yield from near("daly", got["daly"]["period_us"], 1417.1e6)
    yield from near("exact", got["exact"]["period_us"], 1417.2e6)
    m, d, t = 10800, 102, got["exact"]["period_us"] / 1e6
    yield from near("overhead", got["exact"]["overhead"], m * (math.exp((t + d) / m) - 1) / t - 1, 1e-5)
    yield from near("efficiency", got["exact"]["efficiency"], 1 / (1 + got["exact"]["overhead"]), 1e-9)


def failures_of_nodes_add_up():
    got = plan("--mtbf", "6h", "--nodes", "128", "--node-mtbf", "50d", "--save-cost", "1s")
    yield from near("mtbf", got["failures"]["mtbf_us"] / 1e6, 1 / (1 / 21600 + 128 / (50 * 86400)), 1e-6)
    alone = plan("--mtbf", f"{got['failures']['mtbf_us']}us", "--save-cost", "1s")
    yield from near("period", got["plan"]["period_us"], alone["plan"]["period_us"], 1e-5)


def two_levels():
    got = plan("--mtbf", "6h", "--node-mtbf", "9h", "--save-cost", "102s", "--memory-save-cost", "200ms", "--model", "young")
    k = math.sqrt(1 / 21600 * 102 / (1 / 32400 * 0.2))
    if got["plan"]["every"] not in (math.floor(k), math.ceil(k)) or len(got["models"]) != 2:
        yield f"every {got['plan']['every']}, expected about {k}"
    one = plan("--mtbf", "6h", "--node-mtbf", "9h", "--save-cost", "102s")
    if not got["plan"]["overhead"] < one["plan"]["overhead"]:
        yield "saves to memory made it dearer"
    share = plan("--mtbf", "6h", "--save-cost", "102s", "--memory-save-cost", "200ms", "--memory-share", "75%")
    yield from near("share", share["levels"][0]["rate"], 0.75 / 21600, 1e-9)
    yield from near("the rest", share["levels"][1]["rate"], 0.25 / 21600, 1e-9)


def limits():
    got = plan("--mtbf", "3h", "--save-cost", "102s", "--max-overhead", "3.5%", "--step-time", "2.1s")["plan"]
    if got["bound"] != "max-overhead" or got["steps"] != 1388 or got["saving"] > 0.035:
        yield f"limits: {got}"
    yield from problems(["plan", "--mtbf", "3h", "--save-cost", "102s", "--sla", "0.95"], 1, out="T_IDEAL",
                        err="--sla 0.95: cannot be kept: T_ideal/T_real is 0.868[0-9] at best\nhint: ")
    yield from problems(["plan", "--mtbf", "3h", "--save-cost", "1s", "--sla", "95%"], 0, out="0.95 is kept by periods from ")
    yield from problems(["plan", "--mtbf", "1s", "--save-cost", "1h"], 1, out="^failures  one in 1s\nstorage [^\n]*\n$", err="never ends, however it is saved")


def wrong_values_are_named():
    for more, words in (({"--mtbf": "3x"}, "--mtbf: '3x' is not a duration\nhint: a duration is"), ({"--mtbf": "0"}, "--mtbf: has to be longer"),
                        ({"--sla": "1.5"}, "--sla: '1.5' is neither"), ({"--sla": "0"}, "--sla: '0' is neither"), ({"--sla": "nan"}, "--sla: 'nan' is neither"),
                        ({"--max-overhead": "-3%"}, "--max-overhead: '-3%' is neither"), ({"--step-time": "-1"}, "--step-time: '-1' is not"),
                        ({"--save-cost": "0"}, "--save-cost: a save that costs nothing"), ({"--save-cost": "no/folder"}, "--save-cost: 'no/folder' is neither"),
                        ({"--memory-save-cost": "1s"}, "two levels need failures of both kinds"), ({"--memory-share": "1%"}, "--memory-share: goes with"),
                        ({"--memory-save-cost": "1s", "--node-mtbf": "9h", "--model": "daly"}, "--model daly: .*one level"),
                        ({"--nodes": "0"}, "--nodes: "), ({"--nodes": "8"}, "--nodes: goes with --node-mtbf"),
                        ({"--memory-restore-cost": "1s"}, "--memory-restore-cost: goes with"), ({"--model": "yuong"}, "did you mean young")):
        options = {"--mtbf": "3h", "--save-cost": "1s", **more}
        yield from problems(["plan", *(f"{name}={value}" for name, value in options.items())], 2, err=words)
    yield from problems(["plan", "--save-cost", "1s"], 2, err="--mtbf or --node-mtbf is required\nhint: ")


def costs_are_found_in_folders():
    os.mkdir("checkpoint")
    with open("checkpoint/model.bin", "wb") as out:
        out.write(b"x" * 3_000_000)
    got = plan("--mtbf", "3h", "--save-cost", "checkpoint", "--write-rate", "1000000")["levels"][0]
    if got["save_us"] != 3_000_000 or got["bytes"] != 3_000_000:
        yield f"by rate: {got}"
    got = plan("--mtbf", "3h", "--save-cost", "checkpoint")["levels"][0]
    if got["save_us"] <= 0 or not got["source"].endswith(", measured") or os.listdir("checkpoint") != ["model.bin"]:
        yield f"measured: {got}"
    os.mkdir("empty")
    yield from problems(["plan", "--mtbf", "3h", "--save-cost", "empty"], 4, err="holds no bytes")


def costs_are_found_in_images():
    if os.geteuid() != 0:
        print("skipped: costs of images: a dump wants root")
        return
    null = subprocess.DEVNULL
    with subprocess.Popen(["sleep", "1000"], stdin=null, stdout=null, stderr=null, start_new_session=True) as process:
        try:
            while not open(f"/proc/{process.pid}/cmdline", encoding="utf-8").read().startswith("sleep"):
                time.sleep(0.001)
            recorded = []
            for name in ("1", "2", "3"):
                document = json.loads(run("dump", "-R", "-p", str(process.pid), "-f", f"images/{name}", "--json").stdout)
                recorded.append(document["frozen_us"] + document["stops_us"])
        finally:
            process.kill()
    got = plan("--mtbf", "3h", "--save-cost", "images")["levels"][0]
    if got["save_us"] != sorted(recorded)[1] or got["write_us"] == 0 or "newest 3 images" not in got["source"]:
        yield f"of images: {got}, recorded were {recorded}"
    got = plan("--mtbf", "3h", "--save-cost", "images/2")["levels"][0]
    if got["save_us"] != recorded[1]:
        yield f"of an image: {got}, recorded was {recorded[1]}"
    shutil.rmtree("images")


main(formulas, failures_of_nodes_add_up, two_levels, limits, wrong_values_are_named, costs_are_found_in_folders, costs_are_found_in_images)
