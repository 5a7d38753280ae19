#!/usr/bin/env python3
"""What goes wrong while a lazily restored process waits for its memory: lazy-pages daemon or guardian killed, the image deleted, cut or
damaged, a dump in the middle. Whatever it is, the process never reads a wrong byte."""
import ctypes
import glob
import hashlib
import json
import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from harness import (CKPT, LONG, Failure, Target, being_filled, children_of, ckpt, read_text, run_tests,
                     state_of, wait_until)


def named(name):
    """Processes of that name, which no test beside this one starts."""
    found = [int(path.split("/")[2]) for path in glob.glob("/proc/[0-9]*/comm") if read_text(path).strip() == name]
    return [pid for pid in found if state_of(pid) not in ("", "Z")]


class Lazy:
    """A target, dumped; `restore` brings it back with its lazy-pages daemon stopped, so that most of its memory is still missing."""

    def __init__(self, place, *arguments):
        self.target = Target("mem_large", place.folder("target"), *arguments)
        self.image, self.log = os.path.join(place.path, "image"), os.path.join(place.path, "lazy.log")
        ckpt("dump", "-p", self.target.pid, "-f", self.image, "--no-compress").expect(0)
        self.target.reap()
        self.target.forget_answers()

    def restore(self, *more):
        for _ in range(10):
            if self.restore_once(*more):
                return self
            self.target.kill()
            self.target.forget_answers()
        raise Failure("ckpt restore --lazy: its lazy-pages daemon was never seen")

    def restore_once(self, *more):
        """False: on a busy machine the lazy-pages daemon was seen only once it was through."""
        process = subprocess.Popen([CKPT, "restore", "-f", self.image, "-d", "--lazy", "--lazy-log", self.log, *more],
                                   stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        daemon = []
        while process.poll() is None:
            daemon = daemon or [pid for pid in children_of(process.pid) if read_text(f"/proc/{pid}/comm").strip() == "ckpt-lazy"]
        if process.returncode != 0:
            raise Failure(f"ckpt restore --lazy: exit {process.returncode}")
        self.target.adopt()
        try:
            os.kill(daemon[0], signal.SIGSTOP)
        except (IndexError, ProcessLookupError):
            return False
        self.daemon = daemon[0]
        if not being_filled(self.target.pid):
            self.go_on()
            return False
        self.guardian = named("ckpt-guard")
        return True

    def go_on(self):
        os.kill(self.daemon, signal.SIGCONT)

    def lost(self):
        return int(read_text(os.path.join(self.target.folder, "lost")) or 0)

    def expect_all(self):
        self.target.check()
        if self.lost() != 0:
            raise Failure(f"{self.lost()} pages were lost")

    def expect_losses(self, word, most=None):
        self.target.check()
        if self.lost() == 0 or (most and self.lost() > most):
            raise Failure(f"{self.lost()} pages were lost")
        wait_until(lambda: word in read_text(self.log), f"the log says '{word}': {read_text(self.log)}", 5)
        return f"{self.lost()} pages lost"


def daemon_killed(place):
    """Its guardian refuses every page that is still missing."""
    lazy = Lazy(place, "lossy").restore()
    os.kill(lazy.daemon, signal.SIGKILL)
    return lazy.expect_losses("was killed")


def daemon_killed_while_asked(place):
    """The same for a page that the lazy-pages daemon has been asked for already."""
    lazy = Lazy(place, "lossy").restore()
    lazy.target.begin_check()
    wait_until(lambda: "userfault" in lazy.target.where(),
               lambda: f"the target waits for a page: {lazy.target.where()} {lazy.target.log_tail()}", 10)
    os.kill(lazy.daemon, signal.SIGKILL)
    lazy.target._wait_for("result")
    return lazy.expect_losses("was killed")


def guardian_killed(place):
    """The lazy-pages daemon makes another one, which is as good."""
    lazy = Lazy(place, "lossy").restore()
    for pid in lazy.guardian:
        os.kill(pid, signal.SIGKILL)
    lazy.go_on()
    wait_until(lambda: not being_filled(lazy.target.pid) or [g for g in named("ckpt-guard") if g not in lazy.guardian],
               "there is another guardian", 5)
    lazy.expect_all()


def image_deleted(place):
    """What is open stays: nothing is lost."""
    lazy = Lazy(place).restore()
    for path in glob.glob(os.path.join(lazy.image, "*")):
        os.unlink(path)
    os.rmdir(lazy.image)
    lazy.go_on()
    lazy.expect_all()


def image_cut(place):
    lazy = Lazy(place, "lossy").restore()
    for path in glob.glob(os.path.join(lazy.image, "pages*")):
        if not path.endswith("pagemap"):
            os.truncate(path, os.path.getsize(path) // 2 & ~4095)
    lazy.go_on()
    return lazy.expect_losses("SIGBUS")


def forge_pagemap(folder, change):
    """Rewrites the page map and what the manifest says of it, as somebody would who wants to mislead."""
    class Hash128(ctypes.Structure):
        _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]
    library = ctypes.CDLL("libxxhash.so.0")
    library.XXH3_128bits.restype, library.XXH3_128bits.argtypes = Hash128, [ctypes.c_char_p, ctypes.c_size_t]
    path, manifest_path = (os.path.join(folder, name) for name in ("pagemap", "manifest.json"))
    with open(path, "rb") as stream:
        content = bytearray(stream.read())
    change(content)
    with open(path, "wb") as stream:
        stream.write(content)
    with open(manifest_path, encoding="utf-8") as stream:
        manifest = stream.read()
    file = next(file for file in json.loads(manifest)["files"] if file["name"] == "pagemap")
    was = file["xxh128"]
    manifest = manifest.replace(file["sha256"], hashlib.sha256(bytes(content)).hexdigest())
    digest = library.XXH3_128bits(bytes(content), len(content))
    manifest = manifest.replace(was, f"{digest.high:016x}{digest.low:016x}")
    with open(manifest_path, "w", encoding="utf-8") as stream:
        stream.write(manifest)
    with open(os.path.join(folder, "manifest.sha256"), "w", encoding="utf-8") as stream:
        stream.write(f"{hashlib.sha256(manifest.encode()).hexdigest()}  manifest.json\n")


def image_contradicts_itself(place):
    """A lazy restore has looked at no more than it needed: what it finds later costs the pages that are still missing."""
    lazy = Lazy(place, "lossy")
    header, record, codec = 32, 48, 14

    def change(content):
        content[header + (len(content) - header) // record // 2 * record + codec] = 9
    forge_pagemap(lazy.image, change)
    ckpt("restore", "-f", lazy.image, "-d").expect(1, "the codec is unknown")
    lazy.restore()
    lazy.go_on()
    return lazy.expect_losses("the codec is unknown")


def image_damaged(place):
    """One chunk is 16 pages."""
    lazy = Lazy(place, "lossy").restore()
    largest = max((p for p in glob.glob(os.path.join(lazy.image, "pages*"))), key=os.path.getsize)
    with open(largest, "r+b") as stream:
        stream.seek(os.path.getsize(largest) // 2)  # not at its end: the stack is read at once
        byte = stream.read(1)
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte[0] ^ 0x10]))
    lazy.go_on()
    return lazy.expect_losses("damaged", 16)


def damaged_before_it_runs(place):
    """A page that ckpt itself needs to build the process, or one that nobody needs yet: refused, or SIGBUS later, never a hang."""
    target, image = Target("clear_child_tid", place.folder("target")), os.path.join(place.path, "image")
    ckpt("dump", "-p", target.pid, "-f", image, "--no-compress").expect(0)
    target.reap()
    pages = max(glob.glob(os.path.join(image, "pages*")), key=lambda path: os.path.getsize(path) * (not path.endswith("pagemap")))
    size, refused = os.path.getsize(pages), 0
    for at in range(100, size, max(4096, size // 40 & ~4095)):
        flip(pages, at)
        target.forget_answers()
        done = ckpt("restore", "-f", image, "-d", "--lazy", "--lazy-log", os.path.join(place.path, "log"), timeout=30)
        if done.code == 0:
            target.alive, target.ending = True, ""
            if target.running():
                target.kill()
            elif target.ending != "signal 7":
                raise Failure(f"a flipped bit at {at}: the process has ended: {target.ending}")
        elif done.code == 1 and "damaged" in done.err:
            refused += 1
        else:
            raise Failure(f"a flipped bit at {at}: exit {done.code}: {done.err}")
        if os.path.exists(f"/proc/{target.pid}"):
            raise Failure(f"a flipped bit at {at}: exit {done.code}, and a process is there")
        flip(pages, at)
    if refused == 0:
        raise Failure("no place was one that ckpt needs")
    return f"{refused} refused"


def flip(path, at):
    with open(path, "r+b") as stream:
        stream.seek(at)
        byte = stream.read(1)
        stream.seek(at)
        stream.write(bytes([byte[0] ^ 1]))


def dump_meanwhile(place):
    """A page that is missing is not a zero page: the dump is refused, and works once all is in."""
    lazy = Lazy(place).restore()
    again = lazy.image + ".again"
    for verb in (["dump"], ["dump", "-R"], ["pre-dump"]):
        ckpt(*verb, "-p", lazy.target.pid, "-f", again).expect(7, "lazy restore")
    lazy.go_on()
    wait_until(lambda: not being_filled(lazy.target.pid), "all pages are in")
    ckpt("dump", "-p", lazy.target.pid, "-f", again).expect(0)
    lazy.target.reap()
    ckpt("restore", "-f", again, "-d").expect(0)
    lazy.target.adopt()
    lazy.expect_all()


def forks_at_once(place):
    """Processes that fork while the lazy-pages daemon has just begun: what it learns of the child and what it hands out meet."""
    target, image = Target("file_locks", place.folder("target")), os.path.join(place.path, "image")
    ckpt("dump", "-p", target.pid, "-f", image).expect(0)
    target.reap()
    for _ in range(100 if LONG else 15):
        target.forget_answers()
        ckpt("restore", "-f", image, "-d", "--lazy").expect(0)
        target.adopt()
        target.check()


def target_killed(place):
    """The lazy-pages daemon and its guardian end with it."""
    lazy = Lazy(place).restore()
    lazy.target.kill()
    lazy.go_on()
    wait_until(lambda: lazy.daemon not in named("ckpt-lazy"), "the lazy-pages daemon ends", 10)


def both_at_once(place):
    """A tree of which some die, killed while it is brought in."""
    target = Target("mem_paged", place.folder("paged"))
    image = os.path.join(place.path, "paged.image")
    ckpt("dump", "-p", target.pid, "-f", image).expect(0)
    target.reap()
    for _ in range(5):
        target.forget_answers()
        ckpt("restore", "-f", image, "-d", "--lazy").expect(0)
        target.adopt()
        target.kill()
    target.forget_answers()
    ckpt("restore", "-f", image, "-d", "--lazy").expect(0)
    target.adopt()
    target.check()


if __name__ == "__main__":
    sys.exit(run_tests(daemon_killed, daemon_killed_while_asked, guardian_killed, image_deleted, image_cut, image_contradicts_itself, image_damaged,
                       damaged_before_it_runs,
                       dump_meanwhile, forks_at_once, target_killed, both_at_once))
