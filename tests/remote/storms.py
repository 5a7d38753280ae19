#!/usr/bin/env python3
"""Kills at random (kill -9) of ckpt or of the server, over a network that is slow and loses connections, during push, pull, dump,
convert and restore: what looks whole is so bit for bit, and the process that is dumped goes on.

    storms.py CKPT_BINARY [--kills 300] [--seed N] [--nodes]

--nodes: ckpt and the server are in two network namespaces, and on the way between them packets are lost and take their time; instead of
the proxy.
"""
import argparse
import collections
import contextlib
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]
from contract import free_port  # noqa: E402
from nodes import Nodes, Relay  # noqa: E402
from proxy import Proxy  # noqa: E402
from servers import S3  # noqa: E402
from small_checkpoints import safetensors  # noqa: E402

SKIPPED = 77
LOST, DELAY = 0.02, 0.002  # of packets, and seconds that each takes
# Tells the digest of its memory, and that it goes on, whenever it is asked by a signal.
PROGRAM = """
import hashlib, os, random, signal, sys
data = random.Random(int(sys.argv[2])).randbytes(6 << 20)
def tell(*_):
    with open(sys.argv[1] + ".new", "w") as out: out.write(hashlib.sha256(data).hexdigest())
    os.rename(sys.argv[1] + ".new", sys.argv[1])
signal.signal(signal.SIGUSR1, tell)
tell()
while True: signal.pause()
"""


def eventually(condition, what, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(what)
        time.sleep(0.02)


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Process:
    """One that is dumped or restored, by its pid alone: another ckpt may have made it again."""

    def __init__(self, base, number):
        self.told = base / f"told{number}"
        (base / "program.py").write_text(PROGRAM)
        self.popen = subprocess.Popen([sys.executable, base / "program.py", self.told, str(number)], stdin=subprocess.DEVNULL,
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        eventually(self.told.exists, "the program does not start")
        self.pid, self.digest = self.popen.pid, self.told.read_text()
        assert self.digest == hashlib.sha256(random.Random(number).randbytes(6 << 20)).hexdigest()

    def goes_on(self, may_end=False):
        """`may_end`: somebody else may end it at this moment."""
        self.popen.poll()
        if not alive(self.pid):
            return False
        self.told.unlink(missing_ok=True)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)
        eventually(lambda: self.told.exists() or not alive(self.pid), f"process {self.pid} is there and stands still")
        if may_end and not alive(self.pid):
            return False
        assert self.told.exists(), f"process {self.pid} died of the question"
        assert self.told.read_text() == self.digest, "its memory is another one"
        status = pathlib.Path(f"/proc/{self.pid}/status").read_text()
        assert "TracerPid:\t0" in status, "it is still traced"
        return True

    def end(self):
        if alive(self.pid):
            os.kill(self.pid, signal.SIGKILL)
        if self.popen.poll() is None:
            self.popen.wait()
        eventually(lambda: not os.path.exists(f"/proc/{self.pid}"), "it does not end")


class Storms:
    def __init__(self, base, ckpt, seed, nodes=None):
        self.base, self.ckpt, self.random = base, ckpt, random.Random(seed)
        self.nodes, self.host = nodes, nodes.address(0) if nodes else "127.0.0.1"
        self.port, self.server, self.figures = free_port(), None, collections.Counter()
        self.took = collections.defaultdict(lambda: 0.4)
        self.objects = base / "objects"
        self.objects.mkdir()
        self.start_server()
        # Large enough for parts.
        self.models = [base / f"model{i}" for i in range(3)]
        shared = os.urandom(9 << 20)
        for path in self.models:
            path.mkdir()
            safetensors(path / "a.safetensors", {"w": ("U8", [9 << 20], shared), "v": ("U8", [700_000], os.urandom(700_000))})
        self.proxy = None if nodes else Proxy(self.port, seed).__enter__()
        direct = f"http://{self.host}:{self.port}"
        (base / "tmp").mkdir()
        self.env = {**{k: v for k, v in os.environ.items() if not k.startswith("AWS_")}, "AWS_ACCESS_KEY_ID": S3.KEY, "AWS_SECRET_ACCESS_KEY": S3.SECRET,
                    "AWS_EC2_METADATA_DISABLED": "true", "AWS_ENDPOINT_URL": self.proxy.url if self.proxy else direct, "HOME": str(base), "TMPDIR": str(base / "tmp")}
        self.calm = {**self.env, "AWS_ENDPOINT_URL": direct}
        self.pushed, self.number = {}, 0
        for name in ("first", "second"):
            self.pushed[name] = self.models[len(self.pushed)]
            self.quietly("push", self.pushed[name], "--store", "s3://bucket/st", "--name", name)
        self.dumped, self.restored = Process(base, 1), Process(base, 2)
        self.quietly("dump", "-p", self.restored.pid, "-f", "s3://bucket/base")
        self.restored.end()

    def start_server(self):
        there = ["nsenter", f"--net=/run/netns/{self.nodes.names[0]}"] if self.nodes else []
        self.server = subprocess.Popen([*there, sys.executable, HERE / "servers.py", self.objects, self.host, str(self.port)], stdin=subprocess.DEVNULL,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        def listens():
            try:
                socket.create_connection((self.host, self.port), 1).close()
                return True
            except OSError:
                return False
        eventually(listens, "the server does not start")

    def kill_server(self):
        self.server.kill()
        self.server.wait()

    def run(self, *args):
        return self.start(self.calm, *args)[0]

    def start(self, env, *args, kill=None):
        """The exit code (negative: killed) and what it said; `kill` is called with the process meanwhile."""
        with tempfile.TemporaryFile() as out:  # what goes on behind a ckpt keeps its stderr
            process = subprocess.Popen([self.ckpt, *map(str, args)], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, start_new_session=True)
            if kill:
                kill(process)
            code = process.wait(200)
            out.seek(0)
            return code, out.read().decode(errors="replace")

    def quietly(self, *args, code=0):
        got, told = self.start(self.calm, *args)
        assert got == code, (args, got, told)
        return told

    def storm(self, verb, *args):
        """A verb during which one side is killed, at whatever moment; the server comes back, at once or once the verb has ended."""
        side, at = self.random.choice(("ckpt", "ckpt", "server", "server", "nobody")), self.random.random() * self.took[verb]
        pause = self.random.random() * 0.5

        def kill(process):
            if side == "nobody":
                return
            try:
                process.wait(at)
                self.figures["over before"] += 1
                return
            except subprocess.TimeoutExpired:
                pass
            self.figures["kills"] += 1
            self.figures[f"of {side} in {verb}"] += 1
            if side == "ckpt":
                process.kill()
            else:
                self.kill_server()
                time.sleep(pause)
                self.start_server()

        begun = time.monotonic()
        code, told = self.start(self.env, verb, *args, kill=kill)
        if code == 0 and side != "server":
            self.took[verb] += (time.monotonic() - begun - self.took[verb]) / 4
        assert code in (0, 1, 4, 7, 8, -signal.SIGKILL), (verb, args, code, told)
        assert side == "ckpt" or code != -signal.SIGKILL
        self.figures["went through" if code == 0 else "killed" if code < 0 else "failed"] += 1
        # A network that breaks off is no damage; an upload that the server lost when it was killed is gone (4).
        assert code not in (1, 4) or side == "server", (verb, args, code, told)
        return code

    def same(self, one, other):
        subprocess.run(["diff", "-r", one, other], check=True)

    def round_push(self):
        name, model = f"p{self.number}", self.random.choice(self.models)
        code = self.storm("push", model, "--store", "s3://bucket/st", "--name", name)
        names = {entry["name"] for entry in json.loads(self.quietly("list", "--store", "s3://bucket/st", "--json"))["names"]}
        assert code != 0 or name in names, "a push that went through is not there"
        assert set(self.pushed) <= names, "a name that was there is gone"
        if name in names:
            self.pushed[name] = model
            self.fetched(name)
        if len(self.pushed) > 6:
            gone = self.random.choice([n for n in self.pushed if n.startswith("p")])
            del self.pushed[gone]
            self.quietly("rm", gone, "--store", "s3://bucket/st")
            self.quietly("gc", "--store", "s3://bucket/st")
            self.quietly("verify", "--store", "s3://bucket/st")

    def fetched(self, name):
        place = self.base / "fetched"
        self.quietly("pull", name, "--store", "s3://bucket/st", "--dir", place)
        self.same(self.pushed[name], place)
        shutil.rmtree(place)

    def round_pull(self):
        name, place = self.random.choice(list(self.pushed)), self.base / "pulled"
        code = self.storm("pull", name, "--store", "s3://bucket/st", "--dir", place)
        assert code != 0 or place.exists()
        if place.exists():
            self.same(self.pushed[name], place)
            shutil.rmtree(place)
        self.fetched(name)

    def round_convert(self):
        url, model = f"s3://bucket/c{self.number}", self.random.choice(self.models)
        more = self.random.choice(([], ["--resume", "--files", "2"]))
        code = self.storm("convert", model, url, "--to", "dcp", *more)
        there = self.run("inspect", url)  # 1: begun, and without its metadata
        assert there in (0, 1, 4, 6), f"inspect says {there}"
        assert code != 0 or there == 0
        if there == 0:
            self.quietly("verify", url, "--against", model)
        else:
            self.quietly("convert", model, url, "--to", "dcp", *more, *([] if more else ["--force"]))
            self.quietly("verify", url, "--against", model)
        self.forget(f"c{self.number}")

    def round_dump(self):
        url, end = f"s3://bucket/d{self.number}", self.random.random() < 0.5
        code = self.storm("dump", "-p", self.dumped.pid, "-f", url, *([] if end else ["-R"]))
        # A ckpt that was killed after the image counts has ended the process, or a helper of it does now.
        whole = (self.objects / f"d{self.number}%2Fmanifest%2Ejson".replace("/", "%2F")).exists()
        if whole:
            self.quietly("verify", url)
        if code == 0 and end:
            eventually(lambda: not alive(self.dumped.pid), "it was to be ended")
        goes_on = self.dumped.goes_on(may_end=whole and end)
        assert goes_on or (whole and end), f"the process is lost: {code}, image {whole}"
        assert code != 0 or whole
        if whole:
            if goes_on and not (code == 0 and not end):
                self.figures["image and process"] += 1
            self.dumped.end()
            self.quietly("restore", "-f", url, "-d", "--trust")
            assert self.dumped.goes_on(), "it does not come back"
        self.forget(f"d{self.number}")

    def round_restore(self):
        lazy = self.random.choice(([], [], ["--lazy"]))
        code = self.storm("restore", "-f", "s3://bucket/base", "-d", "--trust", *lazy)
        if code == 0:
            assert alive(self.restored.pid) and self.restored.goes_on()
        else:  # all of it or nothing
            try:
                eventually(lambda: not alive(self.restored.pid), "", 5)
            except AssertionError:
                assert self.restored.goes_on(), "half a process is left"
                self.figures["came to life with ckpt's end"] += 1
        self.restored.end()

    def forget(self, prefix):
        """Objects that are not wanted any more, by the server's own files: it reads them when it starts."""
        self.kill_server()
        for path in self.objects.iterdir():
            if path.name.startswith(prefix + "%2F") or path.name.startswith("."):
                path.unlink()
        self.start_server()

    def go(self, kills):
        kinds = ["push", "pull", "dump", "convert", "restore"]
        while self.figures["kills"] < kills:
            self.number += 1
            kind = kinds[self.number % len(kinds)]
            begun = time.monotonic()
            getattr(self, f"round_{kind}")()
            if os.environ.get("CKPT_TEST_VERBOSE"):
                print(f"{self.number} {kind} {time.monotonic() - begun:.1f} s", flush=True)
        self.quietly("gc", "--store", "s3://bucket/st")
        self.quietly("verify", "--store", "s3://bucket/st")
        for name in self.pushed:
            self.fetched(name)

    def end(self):
        for process in (self.dumped, self.restored):
            process.end()
        self.kill_server()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("ckpt")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--nodes", action="store_true")
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("skipped: needs root")
        return SKIPPED
    if options.kills >= 100 and os.environ.get("CKPT_LONG") != "1":
        print("skipped: long, and for runs by hand (CKPT_LONG=1)")
        return SKIPPED
    print(f"seed {options.seed}", flush=True)
    nodes = Nodes(2, (LOST, DELAY)) if options.nodes else None
    try:
        return run(options, nodes)
    finally:
        if nodes:
            nodes.remove()


def run(options, nodes):
    base = pathlib.Path(tempfile.mkdtemp(prefix="ckpt-storms-"))
    if nodes:
        Relay.enter(os.open(f"/run/netns/{nodes.names[1]}", os.O_RDONLY))
    storms = Storms(base, os.path.abspath(options.ckpt), options.seed, nodes)
    try:
        storms.go(options.kills)
    except BaseException:
        print(f"in round {storms.number}; kept: {base}", flush=True)
        raise
    finally:
        storms.end()
    shutil.rmtree(base)
    proxy = f", {storms.proxy.connections} connections, {storms.proxy.broken} of them broken" if storms.proxy else ""
    print(f"{storms.number} rounds{proxy}: {dict(sorted(storms.figures.items()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
