"""What the tests of programs that we did not write share: install, start, load, dump in the middle of the load, restore,
go on with the load, compare, tidy up.

A test has two sides. The test itself starts processes, takes the checkpoint and compares. The driver puts the load on
the program and checks every answer; it is a process of its own, the same file started with --drive, either as root of
the tree that is dumped (so that both ends of each connection are in it) or outside of it. A driver reports by lines on
its standard output, which is a file: `round N` as it goes on, `answers JSON` when it has seen the file `stop`.

  PROGRAM.py [--variant V] [--straight]     --straight: no checkpoint, which must pass as well

On with CKPT_APPS=1 in the environment. CKPT_BIN is the ckpt to test.
"""
import argparse
import ctypes
import glob
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from harness import (SKIPPED, Failure, Skip, Workplace, all_children, become_subreaper, ckpt, ckpt_restore, exists_unreaped, read_text,
                     reap_strays, tree_of, wait_until)

SCRIPT = os.path.abspath(sys.argv[0])
PATIENCE = 60  # seconds that anything but ckpt may take


def install(**programs):
    """`program="package"`, with _ for -: where a program is missing its Debian package is installed, which only root can."""
    missing = sorted({package for program, package in programs.items()
                      if find(program) is None and find(program.replace("_", "-")) is None})
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise Skip(f"needs the Debian packages {' '.join(missing)}")
    quiet = dict(env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, stdin=subprocess.DEVNULL, capture_output=True,
                 check=False, text=True)
    subprocess.run(["apt-get", "-qq", "update"], **quiet)
    done = subprocess.run(["apt-get", "-qq", "-y", "--no-install-recommends", "install", *missing], **quiet)
    if done.returncode != 0:
        raise Skip(f"cannot install {' '.join(missing)}: {done.stderr.strip()[-300:]}")


def find(program):
    """Where a program is, also one that lies in no user's PATH."""
    folders = os.environ.get("PATH", "").split(":") + ["/usr/sbin", "/sbin"] + sorted(glob.glob("/usr/lib/postgresql/*/bin"))
    return shutil.which(program, path=":".join(folders))


class Process:
    """A process that a test started, with its descendants, in a session of its own and without inherited descriptors."""

    def __init__(self, run, name, command, **popen):
        self.run, self.name, self.ending = run, name, None
        self.folder = popen.pop("cwd", run.folder)
        self.log = os.path.join(run.folder, f"{name}.log")
        with open(self.log, "ab") as log:
            self.popen = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                          cwd=self.folder, start_new_session=True, **popen)
        self.pid = self.popen.pid
        run.processes.append(self)

    @classmethod
    def adopt(cls, run, name, pid):
        """A daemon that has come to us because we are a subreaper."""
        self = cls.__new__(cls)
        self.run, self.name, self.pid, self.ending, self.popen = run, name, pid, None, None
        self.log = os.path.join(run.folder, f"{name}.log")
        run.processes.append(self)
        return self

    def running(self):
        """Reaps if it has ended; `ending` is its exit status then, or less than 0 for a signal."""
        if self.ending is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid != 0:
                self.ending = os.waitstatus_to_exitcode(status)
                if self.popen is not None:
                    self.popen.returncode = self.ending
        return self.ending is None

    def failure(self, what):
        state = "running" if self.ending is None else f"ended with {self.ending}"
        return Failure(f"{self.name} ({state}): {what}\n" + "\n".join(read_text(self.log).splitlines()[-12:]))

    def wait_for(self, condition, what, seconds=PATIENCE):
        try:
            wait_until(lambda: condition() or not self.running(), "", seconds, 0.01)
        except Failure:
            raise self.failure(f"never {what}") from None
        if not condition():
            raise self.failure(f"ended before it {what}")

    def wait_end(self, seconds=PATIENCE):
        try:
            wait_until(lambda: not self.running(), "", seconds, 0.01)
        except Failure:
            raise self.failure("does not end") from None

    def said(self, pattern):
        """The last match in its output, or None."""
        found = None
        for found in re.finditer(pattern, read_text(self.log), re.M):
            pass
        return found

    def rounds(self):
        found = self.said(r"^round (\d+)$")
        return int(found.group(1)) if found else 0

    def wait_rounds(self, more):
        """Until the driver has come that much further."""
        wanted = self.rounds() + more
        self.wait_for(lambda: self.rounds() >= wanted, f"came to round {wanted}")

    def answers(self):
        """Tells the driver to stop and returns what it found."""
        with open(os.path.join(self.run.folder, "stop"), "w"):
            pass
        self.wait_end()
        found = self.said(r"^answers (.*)$")
        if self.ending != 0 or found is None:
            raise self.failure("no answers")
        return json.loads(found.group(1))

    def kill(self):
        tree = tree_of(self.pid) if self.ending is None else []
        for pid in tree:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if self.ending is None:
            wait_until(lambda: not self.running(), f"{self.name} does not die", 20)

    # The checkpoint.

    def dump(self, *flags, between=lambda: None):
        """pre-dump while it runs, `between`, then dump; the tree has ended when this returns."""
        if self.run.straight:
            between()
            return
        first, last = (os.path.join(self.run.place.path, name) for name in ("first", "last"))
        before = ckpt("pre-dump", "--json", "-p", self.pid, "-f", first, *flags, timeout=120).expect(0).document()
        if not self.running():
            raise self.failure("ended by its pre-dump")
        between()
        count = len(tree_of(self.pid))
        done = ckpt("dump", "--json", "-p", self.pid, "-f", last, "--prev", first, *flags, timeout=120).expect(0).document()
        self.run.filters += re.findall(r'"packet_filter": *"(\w+)"', read_text(os.path.join(last, "manifest.json")))
        wait_until(lambda: not self.running(), f"{self.name} does not end after its dump", 20)
        self.run.reap_orphans()
        self.run.figures.append(
            f"{count} processes, {done['bytes_memory'] / 2**20:.1f} MiB in the delta; frozen: pre-dump "
            f"{before['frozen_us'] / 1000:.1f} ms, dump {done['frozen_us'] / 1000:.1f} ms")

    def restore(self, *flags):
        if self.run.straight:
            return
        image, pidfile = (os.path.join(self.run.place.path, name) for name in ("last", "pid"))
        done = ckpt_restore("--json", "-f", image, "-d", "--pidfile", pidfile, *flags, timeout=120).expect(0).document()
        if read_text(pidfile).strip() != str(self.pid):
            raise Failure(f"{self.name}: the pidfile does not hold {self.pid}")
        self.ending = None
        if not self.running():
            raise self.failure("ended right after its restore")
        self.run.figures.append(f"restored in {done['total_us'] / 1000:.1f} ms")
        for name in ("first", "last"):
            shutil.rmtree(os.path.join(self.run.place.path, name))

    def checkpoint(self, *flags, between=lambda: None):
        self.dump(*flags, between=between)
        self.restore(*flags)


class Run:
    """One run of one test: its folder, its variant, its processes, its figures."""

    def __init__(self, place, variant, straight):
        self.place, self.variant, self.straight = place, variant, straight
        self.folder = place.folder("work")
        os.chmod(self.folder, 0o777)
        self.processes, self.figures, self.filters = [], [], []
        self.tidy = lambda: None  # what is left outside of the folder, once the processes are gone

    def start(self, name, command, **popen):
        return Process(self, name, command, **popen)

    def start_driver(self, name="driver", **popen):
        command = [sys.executable, SCRIPT, "--drive", self.folder]
        return self.start(name, command + (["--variant", self.variant] if self.variant else []), **popen)

    def reap_orphans(self):
        """What is left of a tree has come to us, also processes that were young when it was dumped: it must end."""
        own = {process.pid for process in self.processes}

        def others():
            return [pid for pid in all_children() if pid not in own and exists_unreaped(pid)]
        try:
            wait_until(lambda: not others(), "", 20, 0.005)
        except Failure:
            raise Failure(f"of the dumped tree there is still {others()}") from None

    def kill_all(self):
        for process in self.processes:
            process.kill()
        self.tidy()
        for name in self.filters:
            remove_packet_filter(name)


def remove_packet_filter(name):
    """What holds off the connections of an image that was never restored."""
    try:
        library = ctypes.CDLL("libnftables.so.1")
    except OSError:
        return
    library.nft_ctx_new.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.nft_ctx_new(0))
    library.nft_ctx_buffer_error(context)  # most often there is none
    library.nft_run_cmd_from_buffer(context, f"delete table inet ckpt-{name}".encode())
    library.nft_ctx_free(context)


def ring_requests(pid):
    """How many the io_urings of a process have taken. The kernel shows nothing of a ring that it is working on."""
    total = 0
    for _ in range(200):
        for name in os.listdir(f"/proc/{pid}/fdinfo"):
            for line in read_text(f"/proc/{pid}/fdinfo/{name}").splitlines():
                if line.startswith("CachedSqHead:"):
                    total += int(line.split()[1])
        if total != 0:
            break
    return total


# For drivers.

def stopping():
    return os.path.exists("stop")


def report_round(number):
    print("round", number, flush=True)


def report_answers(answers):
    print("answers", json.dumps(answers, sort_keys=True), flush=True)


def expect(found, wanted, what):
    if found != wanted:
        raise Failure(f"{what}: {str(found)[:200]}, not {str(wanted)[:200]}")


def connect(where, seconds=20):
    """A connection to a unix socket's path, or to a port of this machine, once somebody listens there."""
    deadline = time.monotonic() + seconds
    while True:
        stream = socket.socket(socket.AF_UNIX if isinstance(where, str) else socket.AF_INET)
        try:
            stream.connect(where if isinstance(where, str) else ("127.0.0.1", where))
            return stream
        except OSError as refused:
            stream.close()
            if time.monotonic() > deadline:
                raise Failure(f"nobody listens at {where}: {refused}") from None
            time.sleep(0.05)


def wait_file(path, seconds=PATIENCE):
    wait_until(lambda: os.path.exists(path), f"{path} is never there", seconds)


def main(test, drive=None, variants=()):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    if variants:
        parser.add_argument("--variant", choices=variants, default=variants[0])
    parser.add_argument("--straight", action="store_true")
    parser.add_argument("--drive", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    variant = options.variant if variants else ""
    if options.drive:
        os.chdir(options.drive)
        drive(variant)
        sys.exit(0)
    name = os.path.splitext(os.path.basename(SCRIPT))[0] + (f"_{variant}" if variant else "")
    if os.environ.get("CKPT_APPS") != "1":
        print("skipped: the tests of whole programs need CKPT_APPS=1")
        sys.exit(SKIPPED)
    become_subreaper()
    sys.exit(run_test(name, test, variant, options.straight))


def run_test(name, test, variant, straight):
    start, status = time.monotonic(), 1
    with Workplace(f"app-{name}") as place:
        run = Run(place, variant, straight)
        try:
            test(run)
            status = 0
        except Skip as lacking:
            print(f"skipped {name}: {lacking}")
            status = SKIPPED
        except (Failure, OSError, subprocess.SubprocessError) as failure:
            print(f"FAIL {name}: {failure}", file=sys.stderr)
        try:
            run.kill_all()
            reap_strays(5 if status == 0 else 0.1)
        except Failure as left:
            if status == 0:
                print(f"FAIL {name}: {left}", file=sys.stderr)
                status = 1
    if status == 0:
        print(f"{name}: passed in {time.monotonic() - start:.1f} s" + "".join(f"; {figure}" for figure in run.figures))
    return status
