#!/usr/bin/env python3
"""DIR@latest and DIR@STEP: the newest complete save, of images and of checkpoints; ckpt list of both."""
import json
import os
import re
import shutil
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from prompt import CKPT, main, problems, run
from small_checkpoints import floats, safetensors


def checkpoint(path, first=0.0):
    os.makedirs(path)
    safetensors(f"{path}/model.safetensors", {"w": ("F32", [2], floats(2, first))})


def cut(path):
    with open(f"{path}/model.safetensors", "r+b") as stream:
        stream.truncate(os.path.getsize(f"{path}/model.safetensors") - 4)


def write(path, text):
    with open(path, "w", encoding="ascii") as stream:
        stream.write(text)


def chosen(text, *verb):
    """What it resolves to, by the note; the error's message where it does not."""
    result = run(*(verb or ("load-metadata",)), text)
    found = re.search(rf"{re.escape(text)} is (\S+)", result.stderr)
    return found.group(1) if result.returncode == 0 and found else f"exit {result.returncode}: {result.stderr}"


def expect(text, wanted, *verb):
    got = chosen(text, *verb)
    if got != wanted:
        yield f"{text}: {got}, expected {wanted}"


def newest_by_number():
    for names in (("iter_0000090", "iter_0001000"), ("global_step9", "global_step10"), ("checkpoint-90", "checkpoint-1000"), ("9", "10"), ("step-9", "step-10")):
        for name in names:
            checkpoint(f"run/{name}")
        os.mkdir("run/logs_2024")
        yield from expect("run@latest", f"run/{names[1]}")
        shutil.rmtree("run")
    os.mkdir("lightning")
    for name in ("epoch=1-step=90.safetensors", "epoch=9-step=100.safetensors"):
        safetensors(f"lightning/{name}", {"w": ("F32", [2], floats(2))})
    yield from expect("lightning@latest", "lightning/epoch=9-step=100.safetensors")
    yield from expect("lightning@90", "lightning/epoch=1-step=90.safetensors")


def incomplete_ones_are_skipped_and_named():
    for step in (100, 200, 300):
        checkpoint(f"run/checkpoint-{step}")
    cut("run/checkpoint-200")
    shutil.rmtree("run/checkpoint-300")
    os.mkdir("run/checkpoint-300")
    yield from expect("run@latest", "run/checkpoint-100")
    err = run("verify", "run@latest").stderr
    for name in ("skipped run/checkpoint-300: holds no checkpoint", "skipped run/checkpoint-200: "):
        if name not in err:
            yield f"not told: {name}: {err}"
    # Who asks for it gets it, damage and all.
    yield from problems(["verify", "run@200"], 1, out="damage|cut|end|short", err="run@200 is run/checkpoint-200")
    shutil.rmtree("run/checkpoint-100")
    yield from problems(["verify", "run@latest"], 4, err="run: holds none that is complete\n.*checkpoint-300.*checkpoint-200")


def trackers_are_believed():
    for step in (100, 200, 300):
        checkpoint(f"run/iter_{step:07}")
    write("run/latest_checkpointed_iteration.txt", "200")
    yield from expect("run@latest", "run/iter_0000200")
    if "iter_0000300: is newer than what latest_checkpointed_iteration.txt names" not in run("verify", "run@latest").stderr:
        yield "the newer one is not told"
    write("run/LATEST", "iter_0000300\n")
    yield from expect("run@latest", "run/iter_0000300")
    os.remove("run/LATEST")
    cut("run/iter_0000200")
    yield from expect("run@latest", "run/iter_0000100")
    write("run/latest_checkpointed_iteration.txt", "release")
    yield from expect("run@latest", "run/iter_0000300")  # there is no such folder
    checkpoint("run/release")
    yield from expect("run@latest", "run/release")
    write("run/latest", "../../etc")
    yield from expect("run@latest", "run/release")


def what_is_not_clear_is_an_error():
    checkpoint("run/iter_0000100")
    checkpoint("run/checkpoint-100")
    yield from problems(["verify", "run@latest"], 2, err="run: has two that are the newest, checkpoint-100 and iter_0000100\nhint: name one")
    yield from problems(["verify", "run@100"], 2, err="run: has two of step 100, checkpoint-100 and iter_0000100\nhint: name one")
    yield from problems(["verify", "run@7"], 4, err="run: holds none of step 7\nhint: ckpt list")
    os.mkdir("empty")
    yield from problems(["verify", "empty@latest"], 4, err="empty: holds neither a process image nor a checkpoint")
    yield from problems(["convert", "empty@latest", "out", "--to", "torch"], 4, err="empty: holds no checkpoint with a step")
    yield from problems(["restore", "-f", "run@latest"], 4, err="run: holds no process image")
    yield from problems(["verify", "missing@latest"], 4, err="missing: there is no such folder")
    yield from problems(["verify", "run@newest"], 4, err="run@newest: ")


def paths_with_an_at_are_paths():
    checkpoint("run@latest")
    checkpoint("a@b/checkpoint-5")
    yield from problems(["load-metadata", "run@latest"], 0, out="\"w\"")
    yield from problems(["load-metadata", "a@b/checkpoint-5"], 0, out="\"w\"")
    yield from expect("a@b@latest", "a@b/checkpoint-5")
    os.chdir("a@b")
    yield from expect("@latest", "./checkpoint-5")
    os.chdir("..")


def every_verb_of_checkpoints_takes_it():
    for step, first in ((100, 0.0), (200, 5.0)):
        checkpoint(f"run/checkpoint-{step}", first)
    told = "is run/checkpoint-200"
    yield from problems(["inspect", "run@latest"], 0, out="w ", err=told)
    yield from problems(["inspect", "run@100", "--diff", "run@latest"], 1, out="w", err=told)
    yield from problems(["verify", "run@200", "--against", "run@latest"], 0, err=told, out=".*")
    yield from problems(["convert", "run@latest", "out", "--to", "npy"], 0, err=told)
    if floats(2, 5.0) != subprocess.run([CKPT, "cat", "run@latest", "w"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False).stdout:
        yield "cat printed another checkpoint's bytes"
    yield from problems(["plan", "--mtbf", "3h", "--write-rate", "1", "--save-cost", "run@latest"], 0, out="storage", err=told)


def list_shows_checkpoints():
    checkpoint("run/checkpoint-100")
    checkpoint("run/checkpoint-200")
    cut("run/checkpoint-200")
    os.makedirs("deep/global_step5")
    write("deep/latest", "global_step5")
    write("deep/global_step5/mp_rank_00_model_states.pt", "x")
    os.makedirs("sources")
    write("sources/readme.txt", "x")
    found = {entry["path"]: entry for entry in json.loads(run("list", ".", "--json").stdout)["checkpoints"]}
    wanted = {"./run/checkpoint-100": (True, 100, "safetensors"), "./run/checkpoint-200": (False, 200, "safetensors"),
              "./deep/global_step5": (None, 5, "")}
    got = {path: (entry["complete"], entry["step"], entry["format"]) for path, entry in found.items()}
    if got != wanted:
        yield f"list: {got}"
    if "error" not in found.get("./run/checkpoint-200", {}):
        yield "the damage is not told"
    yield from problems(["list", "."], 0, out=r"CHECKPOINT .*checkpoint-100 +safetensors +complete +100 .*checkpoint-200 +safetensors +incomplete")
    yield from problems(["list", "sources"], 0, err="no process image and no checkpoint below sources")


def images():
    if os.geteuid() != 0:
        print("skipped: images: a dump wants root")
        return
    null = subprocess.DEVNULL
    with subprocess.Popen(["sleep", "1000"], stdin=null, stdout=null, stderr=null, start_new_session=True) as process:
        try:
            while not open(f"/proc/{process.pid}/cmdline", encoding="utf-8").read().startswith("sleep"):
                time.sleep(0.001)
            pid = str(process.pid)
            # By time, not by name; 3 needs 5.
            run("dump", "-R", "-p", pid, "-f", "images/9")
            run("pre-dump", "-p", pid, "-f", "images/5")
            run("dump", "-R", "-p", pid, "-f", "images/3", "--prev", "images@5")
        finally:
            process.kill()
    yield from expect("images@latest", "images/3", "verify")
    yield from expect("images@9", "images/9", "verify")
    yield from problems(["restore", "-f", "images@latest", "--dry-run"], 0, out="would restore", err="is images/3")
    yield from problems(["squash", "images@latest", "whole", "--dry-run"], 0, out="2 images", err="is images/3")
    yield from problems(["rm", "images@9", "--dry-run"], 0, out=r"would remove \S*images/9", err="is images/9")
    checkpoint("images/checkpoint-7")
    yield from problems(["inspect", "images@latest"], 2, err="images: holds process images and checkpoints")
    shutil.rmtree("images/checkpoint-7")
    shutil.rmtree("images/5")
    yield from expect("images@latest", "images/9", "verify")
    if "skipped images/3: " not in run("verify", "images@latest").stderr:
        yield "the image without its parent is not told"
    with open("images/9/pagemap", "r+b") as pagemap:
        pagemap.truncate(1)
    yield from problems(["verify", "images@latest"], 4, err="images: holds none that is complete")


def retention():
    """rm --keep-...: the newest and what it needs stay; a dry run touches nothing."""
    if os.geteuid() != 0:
        print("skipped: retention: a dump wants root")
        return
    null = subprocess.DEVNULL
    with subprocess.Popen(["sleep", "1000"], stdin=null, stdout=null, stderr=null, start_new_session=True) as process:
        try:
            while not open(f"/proc/{process.pid}/cmdline", encoding="utf-8").read().startswith("sleep"):
                time.sleep(0.001)
            for number in range(1, 7):  # 3 leans on 2, 6 on 5
                run("pre-dump", "-p", str(process.pid), "-f", f"images/{number:08}", *([] if number in (3, 6) else ["--no-prev"]))
        finally:
            process.kill()
    before = sorted(os.listdir("images"))
    yield from problems(["rm", "--keep-last", "1", "--dry-run", "images"], 0, out="would remove .*00000004.*")
    if sorted(os.listdir("images")) != before:
        yield "the dry run removed something"
    yield from problems(["rm", "--keep-last", "1", "--keep-every", "3", "images"], 0, err="removed ")
    if (left := sorted(os.listdir("images"))) != ["00000002", "00000003", "00000005", "00000006"]:
        yield f"left: {left}"
    os.mkdir("elsewhere")
    os.rename("images/00000003", "elsewhere/3")  # it finds its parent no more by its path; the link of 2 leads nowhere
    yield from problems(["rm", "--keep-last", "1", "--chain", "images"], 2, err="do not go with")
    yield from problems(["rm", "--keep-last", "1", "images/00000006"], 2, err="is an image")
    yield from problems(["rm", "--keep-last", "0", "images"], 2, err="--keep-last: ")
    yield from problems(["rm", "--keep-daily", "1", "images", "--json"], 0, out=r'"images":\[{"path":"[^"]*00000002"', err="removed")
    if (left := sorted(os.listdir("images"))) != ["00000005", "00000006"]:
        yield f"left in the end: {left}"


main(newest_by_number, incomplete_ones_are_skipped_and_named, trackers_are_believed, what_is_not_clear_is_an_error, paths_with_an_at_are_paths,
     every_verb_of_checkpoints_takes_it, list_shows_checkpoints, images, retention)
