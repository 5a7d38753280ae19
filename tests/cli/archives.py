#!/usr/bin/env python3
"""export, import: archives that tar reads and writes, layouts that skopeo reads, through gpg and age; strangers' archives leave nothing."""
import glob
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile

from prompt import CKPT, main, problems, run

IMAGES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "images")


def images(only="*"):
    """Copies of images of earlier versions; epoll's has a parent."""
    for path in sorted(glob.glob(f"{IMAGES}/*/{only}/image")):
        copy = os.path.join("from", path.split("/")[-2])
        shutil.copytree(os.path.dirname(path), copy, ignore=shutil.ignore_patterns("children"), copy_function=shutil.copyfile)
        for above, folders, files in os.walk(copy):
            for name in folders + files:
                os.chmod(os.path.join(above, name), 0o700)
        yield f"{copy}/image"


def state(folder):
    """Every file by its path, but for links to children."""
    out = {}
    for above, _folders, files in os.walk(folder):
        if os.path.basename(above) != "children":
            out |= {os.path.relpath(os.path.join(above, name), folder): open(os.path.join(above, name), "rb").read() for name in files}
    return out


def pipe(*commands, stdin=None):
    """Exit codes of a pipeline, and what the last one had to say."""
    environment = {"PATH": os.environ["PATH"], "HOME": os.getcwd(), "GNUPGHOME": os.path.join(os.getcwd(), "gnupg")}
    running = []
    for number, command in enumerate(commands):
        last = number == len(commands) - 1
        running.append(subprocess.Popen(command, stdin=running[-1].stdout if running else stdin or subprocess.DEVNULL,
                                        stdout=None if last else subprocess.PIPE, stderr=subprocess.PIPE, env=environment))
        if number:
            running[-2].stdout.close()
    said = running[-1].communicate(timeout=60)[1]
    for process in running[:-1]:
        process.stderr.close()
    return [process.wait(timeout=60) for process in running], said.decode()


def images_come_back():
    seen = 0
    for image in images():
        seen += 1
        name = image.split("/")[1]
        yield from problems(["export", image, "-o", f"{name}.tar"], 0, err="^exported ")
        yield from problems(["export", image, "-o", f"{name}.again"], 0, err="^exported ")
        archive = open(f"{name}.tar", "rb").read()
        if archive != open(f"{name}.again", "rb").read():
            yield f"{name}: two archives of one image differ"
        result = run("import", f"{name}.tar", "-f", f"back/{name}", "--json")
        if result.returncode != 0:
            yield f"{name}: {result.stderr}"
            continue
        report = json.loads(result.stdout)
        whole = state(image)
        if report["images"] > 1:
            whole = {path: content for path, content in state(f"from/{name}").items() if path.split("/")[0] in ("image", "before")}
        if state(f"back/{name}") != whole:
            yield f"{name}: is not what it was"
        yield from problems(["verify", report["path"]], 0, err="is sound")
        # What tar unpacks is the image, and what tar packs in this order comes in.
        os.makedirs(f"tar/{name}")
        subprocess.run(["tar", "-xf", f"{name}.tar", "-C", f"tar/{name}"], check=True)
        if state(f"tar/{name}") != whole:
            yield f"{name}: tar unpacks something else"
        first = tarfile.open(f"{name}.tar").getnames()
        for form in ("ustar", "pax", "gnu") if report["images"] > 1 else ():
            packed = subprocess.run(["tar", f"--format={form}", "-cf", "-", "-C", f"tar/{name}", *(f"./{path}" for path in first)],
                                    check=True, stdout=subprocess.PIPE).stdout
            with open("packed.tar", "wb") as out:
                out.write(packed)
            yield from problems(["import", "packed.tar", "-f", f"packed/{name}", "--force"], 0, err="^imported ")
    if seen == 0:
        yield "there are no images"


def chains_are_squashed_on_the_fly():
    image = next(images("epoll"))
    yield from problems(["export", image, "--squash", "-o", "one.tar"], 0, err="^exported 1 image ")
    yield from problems(["import", "one.tar", "-f", "one"], 0, err="^imported 1 image ")
    yield from problems(["verify", "one"], 0, err="is sound")
    if json.loads(run("export", "one", "-o", "again.tar", "--json").stdout)["images"] != 1:
        yield "a squashed image has a parent"


def layouts_are_read():
    image = next(images("inotify"))
    yield from problems(["export", image, "--oci", "layout"], 0, err="^exported ")
    yield from problems(["export", image, "--oci", "again"], 0, err="^exported ")
    yield from problems(["export", image, "--oci", "layout"], 2, err="not empty")
    if state("layout") != state("again"):
        yield "two layouts of one image differ"
    for path in glob.glob("layout/blobs/sha256/*"):
        if hashlib.sha256(open(path, "rb").read()).hexdigest() != os.path.basename(path):
            yield f"{path}: is not what its name says"
    index = json.load(open("layout/index.json", encoding="utf-8"))
    manifest = json.load(open("layout/blobs/sha256/" + index["manifests"][0]["digest"][7:], encoding="utf-8"))
    layer = "layout/blobs/sha256/" + manifest["layers"][0]["digest"][7:]
    yield from problems(["import", layer, "-f", "back"], 0, err="^imported ")
    if state("back") != state(image):
        yield "the layer is not the image"
    if not shutil.which("skopeo"):
        print("skip  skopeo is not installed")
        return
    environment = {**os.environ, "HOME": os.getcwd(), "TMPDIR": os.getcwd()}
    said = subprocess.run(["skopeo", "inspect", "oci:layout:latest"], env=environment, stdout=subprocess.PIPE, check=True).stdout
    if json.loads(said)["Layers"] != [manifest["layers"][0]["digest"]]:
        yield f"skopeo: {said}"
    subprocess.run(["skopeo", "--insecure-policy", "copy", "-q", "oci:layout:latest", "dir:copied"], env=environment, check=True)
    if open("copied/" + manifest["layers"][0]["digest"][7:], "rb").read() != open(layer, "rb").read():
        yield "skopeo copies another layer"


def streams_go_through_pipes():
    image = next(images("inotify"))
    codes, said = pipe([CKPT, "export", image, "-o", "-"], [CKPT, "import", "-", "-f", "plain"])
    if codes != [0, 0] or state("plain") != state(image):
        yield f"a pipe: {codes} {said}"
    os.mkdir("gnupg", 0o700)
    gpg = ["gpg", "--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", "secret"]
    tools = {"gpg": ([*gpg, "--symmetric"], [*gpg, "--decrypt"])}
    if shutil.which("age-keygen"):
        subprocess.run(["age-keygen", "-o", "key"], check=True, stderr=subprocess.DEVNULL)
        recipient = next(line.split()[-1] for line in open("key", encoding="ascii") if "public key" in line)
        tools["age"] = (["age", "-r", recipient], ["age", "-d", "-i", "key"])
    for tool, (locks, opens) in tools.items():
        if not shutil.which(tool):
            print(f"skip  {tool} is not installed")
            continue
        codes, said = pipe([CKPT, "export", image, "-o", "-"], locks, opens, [CKPT, "import", "-", "-f", tool])
        if codes != [0, 0, 0, 0] or state(tool) != state(image):
            yield f"{tool}: {codes} {said}"
    subprocess.run(["gpgconf", "--homedir", "gnupg", "--kill", "all"], check=False, stderr=subprocess.DEVNULL)
    # A sender that ends early, and a reader.
    codes, said = pipe([CKPT, "export", image, "-o", "-"], ["head", "-c", "5000"], [CKPT, "import", "-", "-f", "cut"])
    if codes[2] != 1 or "cut short" not in said or os.path.exists("cut"):
        yield f"a stream that was cut: {codes} {said}"
    with open("/dev/full", "wb") as full:
        result = run("export", image, "-o", "-", stdout=full)
    if result.returncode != 9:
        yield f"a full disk behind stdout: {result.returncode} {result.stderr}"


def wrong_usage():
    image = next(images("inotify"))
    yield from problems(["export", image], 2, err="needs one of")
    yield from problems(["export", image, "-o", "a", "--oci", "b"], 2, err="needs one of")
    yield from problems(["export", image, "-o", "-", "--json"], 2, err="does not go with")
    yield from problems(["export", "nowhere", "-o", "a"], 4, err="nowhere")
    yield from problems(["export", "https://127.0.0.1:1/i", "-o", "a"], 8, err="127.0.0.1")
    yield from problems(["import", "nowhere", "-f", "a"], 4, err="nowhere")
    yield from problems(["import", __file__, "-f", "a"], 6, err="no archive of tar")
    yield from problems(["export", image, "-o", "a.tar"], 0, err="^exported")
    yield from problems(["export", image, "-o", "a.tar"], 2, err="exists")
    yield from problems(["export", image, "-o", "a.tar", "--force"], 0, err="^exported")
    yield from problems(["import", "a.tar", "-f", "from"], 2, err="not empty")
    os.chmod("a.tar", 0o666)
    yield from problems(["import", "a.tar", "-f", "b"], 5, err="other users")
    yield from problems(["import", "a.tar", "-f", "b", "--trust"], 0, err="^imported")
    os.chmod(f"{image}/pagemap", 0o666)
    yield from problems(["export", image, "-o", "b.tar"], 5, err="other users")
    if os.path.exists("a") or os.path.exists("b.tar"):
        yield "what was refused left something"
    for above, folders, files in os.walk("."):
        if any(name.startswith(".ckpt-staging") for name in folders + files):
            yield f"left behind in {above}: {folders} {files}"


if __name__ == "__main__":
    main(images_come_back, chains_are_squashed_on_the_fly, layouts_are_read, streams_go_through_pipes, wrong_usage)
