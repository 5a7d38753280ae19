#!/usr/bin/env python3
"""Images that older versions of ckpt wrote (tests/images): what they said of them is still said, and all of them is read."""
import glob
import hashlib
import json
import os
import shutil
import sys

from prompt import main, problems, run

IMAGES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "images")

# Members of --json that have got the field's own names since.
RENAMED = {"gpu_bytes_ahead": "gpu_bytes_precopied", "gpu_bytes_behind": "gpu_bytes_deferred"}


def differences(then, now, where=""):
    """What `then` says and `now` does not: members may have been added since."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key, value in then.items():
            key = RENAMED.get(key, key)
            if key not in now:
                yield f"{where}.{key} is gone"
            else:
                yield from differences(value, now[key], f"{where}.{key}")
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for index, value in enumerate(then):
            yield from differences(value, now[index], f"{where}[{index}]")
    elif then != now:
        yield f"{where}: {then!r} then, {now!r} now"


def taken_along():
    """Private copies, which --trust is not asked for: {name of the set: the images in it}."""
    os.umask(0o077)
    for kept in sorted(glob.glob(os.path.join(IMAGES, "*", ""))):
        name = os.path.basename(os.path.dirname(kept))
        shutil.copytree(kept, name, copy_function=shutil.copyfile)
        for folder, _, _ in os.walk(name):
            os.chmod(folder, 0o700)
        yield name, sorted(os.path.dirname(path) for path in glob.glob(os.path.join(name, "*", "*", "manifest.json")))


def every_image_reads_as_it_did():
    sets = dict(taken_along())
    if not sets or not all(sets.values()):
        yield f"images are missing in {IMAGES}"
    for image in [image for images in sets.values() for image in images]:
        yield from problems(["verify", image], 0, err="is sound")
        shown = run("inspect", "--json", image)
        if shown.returncode != 0:
            yield f"{image}: {shown.stderr}"
            continue
        with open(image + ".json", encoding="utf-8") as stream:
            then, now = json.load(stream), json.loads(shown.stdout)
        for document in (then, now):
            document.pop("path")
        yield from (f"{image}{difference}" for difference in differences(then, now))


def every_image_is_read_to_its_last_page():
    for name, images in taken_along():
        for image in images:
            yield from problems(["squash", image, f"{name}-whole"], 0, err="wrote")
            yield from problems(["verify", f"{name}-whole"], 0, err="is sound")
            shutil.rmtree(f"{name}-whole")


def a_feature_of_a_later_version_is_refused_by_name():
    for name, images in taken_along():
        with open(os.path.join(images[0], "manifest.json"), encoding="utf-8") as stream:
            manifest = json.load(stream)
        manifest["features"] = ["time-travel"]
        manifest["member_of_a_later_version"] = {"any": ["thing"]}
        with open(os.path.join(images[0], "manifest.json"), "w", encoding="utf-8") as stream:
            json.dump(manifest, stream)
        with open(os.path.join(images[0], "manifest.json"), "rb") as stream:
            digest = hashlib.sha256(stream.read()).hexdigest()
        with open(os.path.join(images[0], "manifest.sha256"), "w", encoding="ascii") as stream:
            stream.write(f"{digest}  manifest.json\n")
        yield from problems(["inspect", images[0]], 6, err="time-travel")


main(every_image_reads_as_it_did, every_image_is_read_to_its_last_page, a_feature_of_a_later_version_is_refused_by_name)
