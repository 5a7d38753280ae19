#!/usr/bin/env python3
"""push, pull, list, rm, gc, verify --store: what is pulled is what was pushed, kills and full disks leave it sound, damage is named."""
import glob
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from prompt import CKPT, main, problems, run
from small_checkpoints import floats, safetensors

LONG = os.environ.get("CKPT_LONG") == "1"
IMAGES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "images")


def checkpoint(name, seed, size=400_000):
    """A folder with a checkpoint of random numbers."""
    os.makedirs(name, exist_ok=True)
    safetensors(f"{name}/model.safetensors", {"w": ("U8", [size], random.Random(seed).randbytes(size))})
    safetensors(f"{name}/common.safetensors", {"w": ("U8", [size], random.Random(0).randbytes(size))})
    with open(f"{name}/config.json", "w", encoding="ascii") as out:
        json.dump({"seed": seed}, out)


def state(folder):
    """All that is to come back."""
    out = {}
    for path in [folder] + sorted(os.path.join(above, name) for above, dirs, files in os.walk(folder) for name in dirs + files):
        st = os.lstat(path)
        content = os.readlink(path) if os.path.islink(path) else open(path, "rb").read() if os.path.isfile(path) else None
        out[os.path.relpath(path, folder)] = (st.st_mode, st.st_mtime_ns, content)
    return out


def document(*arguments, code=0):
    result = run(*arguments, "--json")
    assert result.returncode == code, (arguments, result.returncode, result.stderr)
    return json.loads(result.stdout)


def checkpoints_come_back():
    for day in range(1, 5):
        checkpoint(f"c{day}", day)
        yield from problems(["push", f"c{day}", "--store", "s"], 0, err=f"^pushed c{day}: ")
        yield from problems(["pull", f"c{day}", "--store", "s", "--dir", f"back/c{day}"], 0, err="^pulled ")
        if state(f"c{day}") != state(f"back/c{day}"):
            yield f"c{day}: is not what it was"
    yield from problems(["push", "c1", "--store", "s"], 2, err="is in the store already")
    yield from problems(["pull", "c2", "--store", "s", "--dir", "back/c1"], 2, err="exists and is not empty")
    report = document("pull", "c2", "--store", "s", "--dir", "back/c1", "--force")
    if report["reused_bytes"] < 390_000 or state("back/c1") != state("c2"):
        yield f"pull over an earlier version: {report}"
    listed = document("list", "--store", "s")
    if [one["name"] for one in listed["names"]] != ["c1", "c2", "c3", "c4"] or listed["stored_bytes"] > 2_200_000:
        yield f"list: {listed}"
    for one in listed["names"]:
        if not 400_000 <= one["alone_bytes"] <= 420_000:
            yield f"alone: {one}"
    yield from problems(["list", "--store", "s"], 0, out="c4 +safetensors", err="of packs")
    yield from problems(["rm", "--store", "s", "--keep-last", "2", "-n"], 0, out="^would remove c1\nwould remove c2\n$")
    yield from problems(["rm", "--store", "s", "c[12]", "--keep-last", "1"], 0, err="^removed c1\n")
    yield from problems(["rm", "--store", "s", "c2"], 0, err="^removed c2\n")
    yield from problems(["gc", "--store", "s", "-n"], 0, out="^would remove ")
    yield from problems(["gc", "--store", "s"], 0, err="^removed ")
    if document("list", "--store", "s")["stored_bytes"] > 1_300_000:
        yield "gc: the room of what was removed did not come back"
    yield from problems(["pull", "c4", "--store", "s", "--dir", "last"], 0, err="^pulled ")
    if state("last") != state("c4"):
        yield "c4: is not what it was after gc"
    yield from problems(["verify", "--store", "s", "--sample", "50%"], 0, err="is sound")


def images_come_back():
    """Every image of earlier versions, and a chain."""
    images = sorted(os.path.dirname(path) for path in glob.glob(f"{IMAGES}/**/manifest.sha256", recursive=True))
    images = [image for image in images if not os.path.islink(image)]  # those in `children` are told once
    if not images:
        yield "there are no images to push"
    for number, image in enumerate(images):
        name = f"image-{number}"
        result = run("push", image, "--store", "s", "--name", name)
        if result.returncode != 0:
            yield f"{image}: {result.stderr}"
            continue
        path = document("pull", name, "--store", "s", "--dir", name)["path"]
        before, after = state(image), state(path)
        before = {key: value for key, value in before.items() if not key.startswith("children")}
        if before != after:
            yield f"{image}: is not what it was: {[key for key in before if before[key] != after.get(key)]}"
        yield from problems(["verify", path], 0, err="is sound")


def wrong_usage():
    checkpoint("c", 1)
    yield from problems(["push", "c"], 2, err="--store is required")
    yield from problems(["push", "missing", "--store", "s"], 4, err="no such")
    with open("text", "w", encoding="ascii") as out:
        out.write("hello\n")
    yield from problems(["push", "text", "--store", "s"], 6, err="neither a process image nor a checkpoint")
    if os.path.exists("s"):
        yield "a push that was refused made a store"
    yield from problems(["push", "c", "--store", "s", "--name", "../x"], 2, err="is no name")
    yield from problems(["push", "c", "--store", "c"], 2, err="lies in what is to be pushed")
    yield from problems(["push", "c", "--store", "https://127.0.0.1:1/s"], 8, err="127.0.0.1")
    yield from problems(["list", "--store", "nowhere"], 4, err="is no store")
    yield from problems(["push", "c", "--store", "s"], 0, err="^pushed")
    yield from problems(["pull", "d", "--store", "s", "--dir", "d"], 4, err="is not in the store")
    yield from problems(["rm", "--store", "s", "d"], 4, err="is not in the store")
    yield from problems(["rm", "--store", "s"], 2, err="is missing")
    yield from problems(["rm", "--store", "s", "c", "--chain"], 2, err="does not go with")
    yield from problems(["rm"], 2, err="DIR")
    yield from problems(["list", "c", "--store", "s"], 2, err="no folder")
    yield from problems(["verify", "--store", "s", "d"], 4, err="is not in the store")
    yield from problems(["verify", "--store", "s", "--sample", "7"], 2, err="wants a share")
    yield from problems(["verify", "--store", "s", "c", "--repair"], 2, err="whole store")
    yield from problems(["verify", "--repair", "c"], 2, err="is of a store")
    yield from problems(["verify", "--store", "s", "--max-memory", "1G"], 2, err="neither --max-memory")
    yield from problems(["verify", "--store", "s", "--hash", "sha256"], 2, err="neither --max-memory")
    yield from problems(["verify", "--store", "s", "--seed", "1"], 2, err="goes with --sample")
    yield from problems(["gc", "--store", "s", "--grace", "1h"], 2, err="2h at least")
    yield from problems(["push", "c", "--store", "c/inside"], 2, err="lies in what is to be pushed")
    yield from problems(["pull", "c", "--store", "s", "--dir", "s/back"], 2, err="lies in the store")
    with open("key", "wb") as out:
        out.write(b"k" * 32)
    yield from problems(["list", "--store", "s", "--store-key", "key"], 5, err="without a key")
    yield from problems(["push", "c", "--store", "keyed", "--store-key", "key"], 0, err="^pushed")
    yield from problems(["list", "--store", "keyed"], 5, err="is a store with a key")


def what_cannot_be_pushed_makes_no_store():
    shutil.copytree(os.path.dirname(sorted(glob.glob(f"{IMAGES}/**/manifest.sha256", recursive=True))[0]), "damaged", symlinks=True)
    with open("damaged/manifest.json", "r+b") as out:
        out.seek(200)
        out.write(b"~")
    yield from problems(["push", "damaged", "--store", "s"], 1, err="does not match its digest")
    if os.path.exists("s"):
        yield "a push of a damaged image made a store"


def a_model_may_have_a_job_json():
    checkpoint("c", 1)
    os.remove("c/common.safetensors")
    with open("c/job.json", "w", encoding="ascii") as out:
        json.dump({"queue": "long"}, out)
    yield from problems(["inspect", "c"], 0, out="safetensors")
    yield from problems(["verify", "c"], 0, err="is sound|safetensors")
    yield from problems(["push", "c", "--store", "s"], 0, err="^pushed c: ")
    yield from problems(["pull", "c", "--store", "s", "--dir", "back"], 0, err="^pulled ")
    if state("c") != state("back"):
        yield "c: is not what it was"


def damage_is_named():
    checkpoint("c", 1)
    checkpoint("d", 2)
    run("push", "c", "--store", "s")
    run("push", "d", "--store", "s")
    pack = max(glob.glob("s/packs/*"), key=os.path.getsize)  # that of c, with the common file
    with open(pack, "r+b") as stream:
        stream.seek(500_000)
        stream.write(b"damage")
    yield from problems(["verify", "--store", "s"], 1, out="damaged: s/packs/.*lost: c: ", err="damaged")
    lost = document("verify", "--store", "s", code=1)["losses"]
    yield from problems(["pull", lost[0]["name"], "--store", "s", "--dir", "no"], 1, err="s/packs/.*damaged")
    if os.path.exists("no") or glob.glob(".ckpt-staging*"):
        yield "a pull that failed left something"
    yield from problems(["verify", "--store", "s", "--repair"], 1, out="lost: ", err="set aside")
    for name in {one["name"] for one in lost}:
        yield from problems(["push", name, "--store", "s", "--force"], 0, err="^pushed")
    yield from problems(["verify", "--store", "s"], 0, err="is sound")


def kills_leave_it_sound():
    """Push and gc are killed at random; what has a name stays whole, and gc takes the rest away."""
    checkpoint("stays", 1, 3_000_000)
    run("push", "stays", "--store", "s")
    before = state("stays")
    generator = random.Random()
    seed = generator.randrange(1 << 30)
    generator.seed(seed)
    for attempt in range(300 if LONG else 10):
        checkpoint("c", attempt + 2, 3_000_000)
        verb = ["push", "c", "--store", "s", "--name", f"n{attempt}"] if attempt % 3 != 2 else ["gc", "--store", "s"]
        beside = subprocess.Popen([CKPT, "gc", "--store", "s", "-q"], stdin=subprocess.DEVNULL) if attempt % 2 else None
        process = subprocess.Popen([CKPT, *verb, "-q"], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(generator.random() * 0.06)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if beside is not None and beside.wait() not in ((0, 7) if verb[0] == "gc" else (0,)):
            yield f"seed {seed}, attempt {attempt}: gc beside a push: exit {beside.returncode}"
        names = os.listdir("s/images")
        if f"n{attempt}" in names:
            shutil.rmtree("back", ignore_errors=True)
            yield from problems(["pull", f"n{attempt}", "--store", "s", "--dir", "back"], 0, err="^pulled")
            if state("back") != state("c"):
                yield f"seed {seed}, attempt {attempt}: not what was pushed"
            run("rm", "--store", "s", f"n{attempt}")
        if attempt % 5 == 4:
            yield from problems(["verify", "--store", "s"], 0, err="is sound")
    for _ in range(2):
        yield from problems(["gc", "--store", "s"], 0, err="^removed")
    yield from problems(["pull", "stays", "--store", "s", "--dir", "stayed"], 0, err="^pulled")
    if state("stayed") != before:
        yield f"seed {seed}: what was there before is not what it was"
    left = sum(os.path.getsize(path) for path in glob.glob("s/**", recursive=True, include_hidden=True) if os.path.isfile(path))
    if left > 7_000_000:
        yield f"seed {seed}: {left} bytes are left of 6 MB"


def a_full_disk_leaves_it_sound():
    if os.geteuid() != 0:
        return
    os.mkdir("disk")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", "disk"], check=False).returncode != 0:
        return
    try:
        checkpoint("small", 1, 500_000)
        checkpoint("large", 2, 9_000_000)
        yield from problems(["push", "small", "--store", "disk/s"], 0, err="^pushed")
        yield from problems(["push", "large", "--store", "disk/s"], 9, err="No space")
        if len(os.listdir("disk/s/packs")) != 1 or os.listdir("disk/s/pushes"):
            yield f"a push without room left {os.listdir('disk/s/packs')} {os.listdir('disk/s/pushes')}"
        yield from problems(["verify", "--store", "disk/s"], 0, err="is sound")
        yield from problems(["pull", "small", "--store", "disk/s", "--dir", "small2"], 0, err="^pulled")
        run("push", "large", "--store", "room")
        yield from problems(["pull", "large", "--store", "room", "--dir", "disk/large"], 9, err="No space")
        if sorted(os.listdir("disk")) != ["s"]:
            yield f"a pull without room left {os.listdir('disk')}"
    finally:
        subprocess.run(["umount", "-l", "disk"], check=False)


if __name__ == "__main__":
    main(checkpoints_come_back, images_come_back, wrong_usage, what_cannot_be_pushed_makes_no_store,
         a_model_may_have_a_job_json, damage_is_named, kills_leave_it_sound, a_full_disk_leaves_it_sound)
