#!/usr/bin/env python3
"""--validate-sample: nothing is found where nothing is wrong; a tracker that lies and a damaged parent are found, and a full image is taken
instead, from which the process comes back as it was. CKPT_LYING_SCAN is the library that is preloaded (lying_scan.c)."""
import glob
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from harness import Failure, Skip, Target, ckpt, ckpt_restore, run_tests, wait_until

LIBRARY = os.environ["CKPT_LYING_SCAN"]
SIZE = 1 << 20
BODY = """
import ctypes, hashlib, mmap, os, random, sys, time
os.chdir(sys.argv[1])
memory = mmap.mmap(-1, %d, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory[:] = random.Random(1).randbytes(len(memory))
def say(name, text):
    open(name + ".new", "w").write(text)
    os.rename(name + ".new", name)
say("address", hex(ctypes.addressof(ctypes.c_char.from_buffer(memory))))
done = 0
while True:
    if os.path.exists("write"):
        os.unlink("write")
        done += 1
        memory[5 * 4096:6 * 4096] = bytes([done]) * 4096
        say("wrote", str(done))
    if os.path.exists("tell"):
        os.unlink("tell")
        say("told", hashlib.sha256(memory).hexdigest())
    time.sleep(0.005)
""" % SIZE


class Writer:
    def __init__(self, place):
        self.folder = place.folder("writer")
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen([sys.executable, "-S", "-c", BODY, self.folder], start_new_session=True, **quiet)
        self.pid, self.alive = self.process.pid, True
        address = int(self.answer("address"), 16)
        self.lie = {**os.environ, "LD_PRELOAD": LIBRARY, "LYING_FROM": hex(address), "LYING_TO": hex(address + SIZE)}
        self.images = place.folder("images")

    def answer(self, name):
        path = os.path.join(self.folder, name)
        wait_until(lambda: os.path.exists(path), f"the process says {name}")
        with open(path, encoding="ascii") as stream:
            said = stream.read()
        os.unlink(path)
        return said

    def ask(self, question, name):
        with open(os.path.join(self.folder, question), "w", encoding="ascii"):
            pass
        return self.answer(name)

    def write(self):
        self.ask("write", "wrote")
        return self.ask("tell", "told")

    def image(self, name):
        return os.path.join(self.images, name)

    def capture(self, verb, name, prev, *more, **popen):
        done = ckpt(verb, "-p", self.pid, "-f", self.image(name), *(["--prev", self.image(prev)] if prev else []), "--json", *more, **popen)
        done.expect(0)
        if verb == "dump" and "-R" not in more:
            self.process.wait()
        return json.loads(done.out), done.err

    def restored(self, name):
        """What the process says of its memory once it has been restored; then it is gone."""
        ckpt_restore("-f", self.image(name), "-d").expect(0)
        try:
            return self.ask("tell", "told")
        finally:
            os.kill(self.pid, 9)
            os.waitpid(self.pid, 0)


def needs_scan():
    if os.getuid() != 0:
        raise Skip("needs root")
    if tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2]) < (6, 7):
        raise Skip("nothing is tracked before Linux 6.7")


def nothing_is_found(place):
    """All of the unchanged pages, of programs with every sort of mapping."""
    needs_scan()
    said = []
    for name in ("mem_anonymous", "mem_private_file", "mem_protection", "mem_reserved", "mem_advice", "cow_fork", "tree_children", "threads"):
        target = Target(name, place.folder(name))
        images = place.folder(f"images_{name}")
        prev = []
        for i, verb in enumerate((["pre-dump"], ["pre-dump"], ["dump", "-R"], ["dump", "-R", "--iterations", "0"])):
            image = os.path.join(images, str(i))
            done = ckpt(*verb, "-p", target.pid, "-f", image, *prev, "--json", "--validate-sample", "100%").expect(0)
            report = json.loads(done.out)
            if report["fell_back"] or report["pages_validated"] > report["pages_unchanged"]:
                raise Failure(f"{name}, {verb}: {report}")
            if prev and (report["pages_validated"] == 0 or not report["parent"]):
                raise Failure(f"{name}, {verb}: nothing was validated: {report}")
            prev = ["--prev", image]
            target.step()
        said.append(f"{name} {report['pages_validated']} of {report['pages_unchanged']}")
        target.check(4)
    return ", ".join(said)


def fell_back(report, err, words):
    if report["parent"] or words not in report["fell_back"] or words not in err or "taken anew" not in err:
        raise Failure(f"{report}\n{err}")


def a_lying_tracker(place):
    needs_scan()
    for verb in (["pre-dump"], ["dump", "-R"], ["dump"]):
        writer = Writer(Sub(place, "_".join(verb)))
        writer.capture("pre-dump", "before", None)
        wanted = writer.write()
        # Without the sample nobody notices: the image is not what the process was.
        report, _ = writer.capture("pre-dump", "wrong", "before", "--iterations", "0", env=writer.lie)
        if not report["parent"] or report["fell_back"]:
            raise Failure(f"{verb}: {report}")
        writer.capture("pre-dump", "again", None, "--no-prev")
        wanted = writer.write()
        report, err = writer.capture(*verb[:1], "now", "again", *verb[1:], "--validate-sample", "100%", "--iterations", "0", env=writer.lie)
        fell_back(report, err, "1 of ")
        if report["pages_validated"] == 0 or report["pages_unchanged"] != 0:
            raise Failure(f"{verb}: {report}")
        if len(verb) == 2 or verb[0] == "pre-dump":
            os.kill(writer.pid, 9)
            writer.process.wait()
        if glob.glob(os.path.join(writer.images, ".ckpt-staging*")):
            raise Failure(f"{verb}: something is left of the image that was not kept")
        if writer.restored("now") != wanted:
            raise Failure(f"{verb}: the full image is not what the process was")
        if writer.restored("wrong") == wanted:
            raise Failure(f"{verb}: the tracker did not lie")


class Sub:
    """A workplace within another."""

    def __init__(self, place, name):
        self.path = place.folder(name)

    def folder(self, name):
        path = os.path.join(self.path, name)
        os.mkdir(path)
        return path


def a_damaged_parent(place):
    """Found while the process is there, not at its restore."""
    needs_scan()
    writer = Writer(place)
    writer.capture("pre-dump", "before", None, "--no-compress")
    wanted = writer.write()
    for path in glob.glob(os.path.join(writer.image("before"), "pages*")):
        with open(path, "r+b") as pages:
            content = bytearray(pages.read())
            for at in range(100, len(content), 4096):
                content[at] ^= 1
            pages.seek(0)
            pages.write(content)
    report, err = writer.capture("dump", "now", "before", "--validate-sample", "100%", "--iterations", "0")
    fell_back(report, err, "cannot be had from the images")
    if writer.restored("now") != wanted:
        raise Failure("the full image is not what the process was")
    ckpt("verify", writer.image("now")).expect(0)


def wrong_usage(_):
    for part in ("0", "101%", "some", "-1%"):
        ckpt("dump", "-p", os.getpid(), "-f", "nowhere", f"--validate-sample={part}").expect(2, "--validate-sample: ")
    ckpt("dump", "-p", os.getpid(), "-f", "s3://bucket/image", "--validate-sample", "1%").expect(2, "--validate-sample: does not go with a URL")


if __name__ == "__main__":
    sys.exit(run_tests(nothing_is_found, a_lying_tracker, a_damaged_parent, wrong_usage))
