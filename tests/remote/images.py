#!/usr/bin/env python3
"""Process images at URLs: what the verbs say of a chain of them is what they say of the folders, and its processes run again.

    images.py CKPT_BINARY [TEST...]
"""
import concurrent.futures
import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parents[1] / "support")]
from harness import state_of  # noqa: E402
from servers import S3, Files, Server  # noqa: E402

CKPT = os.path.abspath(sys.argv.pop(1))
ENV = {"AWS_ACCESS_KEY_ID": S3.KEY, "AWS_SECRET_ACCESS_KEY": S3.SECRET, "AWS_EC2_METADATA_DISABLED": "true"}
# Writes the digest of all of its memory to the file when it is told to.
PROGRAM = """
import hashlib, os, random, signal, sys
data = bytearray(random.Random(7).randbytes(10 << 20))
def tell(*_):
    with open(sys.argv[1] + ".new", "w") as out: out.write(hashlib.sha256(data).hexdigest())
    os.rename(sys.argv[1] + ".new", sys.argv[1])
def change(*_):
    data[::65536] = bytes(reversed(data[::65536]))
    tell()
signal.signal(signal.SIGUSR1, tell)
signal.signal(signal.SIGUSR2, change)
tell()
while True: signal.pause()
"""


def eventually(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("it did not come to pass")
        time.sleep(0.02)


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Images(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.base = pathlib.Path(tempfile.mkdtemp(prefix="ckpt-images-"))
        cls.scratch = cls.base / "scratch"
        cls.scratch.mkdir()
        (cls.base / "program.py").write_text(PROGRAM)
        cls.told = cls.base / "told"
        cls.process = subprocess.Popen([sys.executable, cls.base / "program.py", cls.told], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL, start_new_session=True)
        eventually(cls.told.exists)
        images = cls.base / "run"
        images.mkdir()
        cls.pid = cls.process.pid
        subprocess.run([CKPT, "pre-dump", "-p", str(cls.pid), "-f", images / "a", "-q"], check=True)
        cls.digest = cls.ask(signal.SIGUSR2)
        subprocess.run([CKPT, "dump", "-p", str(cls.pid), "-f", images / "b", "--prev", images / "a", "-q"], check=True)
        cls.process.wait()
        cls.images = images
        cls.objects = {f"x/{p.relative_to(images)}": p.read_bytes() for p in images.rglob("*") if p.is_file() and not p.is_symlink()}

    @classmethod
    def ask(cls, number=signal.SIGUSR1):
        cls.told.unlink(missing_ok=True)
        os.kill(cls.pid, number)
        eventually(cls.told.exists)
        return cls.told.read_text()

    @classmethod
    def tearDownClass(cls):
        if os.path.exists(f"/proc/{cls.pid}"):  # of a test that failed
            os.kill(cls.pid, signal.SIGKILL)
        shutil.rmtree(cls.base)

    def setUp(self):
        self.server = Server(S3, buckets={"bucket": dict(self.objects)}, page=1000)
        self.server.__enter__()
        self.addCleanup(self.server.__exit__)

    def run_ckpt(self, *args, code=0, scratch=None):
        full = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "HF_"))}
        with tempfile.TemporaryFile() as out:  # what goes on behind ckpt keeps its stderr
            done = subprocess.run([CKPT, *map(str, args)], stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=100, check=False,
                                  env={**full, **ENV, "AWS_ENDPOINT_URL": self.server.url, "TMPDIR": str(scratch or self.scratch), "HOME": str(self.base)})
            out.seek(0)
            told = out.read().decode(errors="replace")
        self.assertEqual(done.returncode, code, f"{args}: {told}")
        self.assertNotIn(str(self.scratch), told, "a placeholder's path is shown")
        self.assertNotIn(S3.SECRET, told)
        self.assertEqual(os.listdir(self.scratch), [], "placeholders stay behind")
        return told

    def test_what_is_said_of_it(self):
        for line in (["inspect"], ["inspect", "--json"], ["inspect", "--maps"], ["verify"], ["list", "--json"]):
            for image in ("b", "a") if line[0] != "list" else ("",):
                url = f"s3://bucket/x/{image}".rstrip("/")
                there, here = self.run_ckpt(*line, url), self.run_ckpt(*line, self.images / image)
                if line != ["verify"]:
                    self.assertEqual(there.replace(url, "PATH"), here.replace(str(self.images / image).rstrip("/"), "PATH"), line)
        del self.server.http.buckets["bucket"]["x/a/manifest.json"]
        self.assertIn("s3://bucket/x/a", self.run_ckpt("verify", "s3://bucket/x/b", code=4))

    def test_damage_is_found(self):
        pages = bytearray(self.objects["x/a/pages"])
        pages[len(pages) // 2] ^= 1
        self.server.http.buckets["bucket"]["x/a/pages"] = bytes(pages)
        self.run_ckpt("verify", "s3://bucket/x/b", code=1)

    def test_it_is_rehearsed(self):
        """In namespaces of which none has a network."""
        self.assertIn("--trust", self.run_ckpt("verify", "--rehearse", "s3://bucket/x/b", code=5))
        asked = [path for command, path in self.server.http.requests if command == "GET"]
        self.assertFalse([path for path in asked if "/pages" in path], "the image is read before it is refused")
        self.assertIn("would be restored as it was", self.run_ckpt("verify", "--rehearse", "s3://bucket/x/b", "--trust"))

    def test_a_chain_becomes_one(self):
        self.assertIn("--trust", self.run_ckpt("squash", "s3://bucket/x/b", self.base / "one", code=5))
        self.run_ckpt("squash", "s3://bucket/x/b", self.base / "one", "--trust")
        self.run_ckpt("verify", self.base / "one")
        self.run_ckpt("restore", "-f", self.base / "one", "-d")
        self.runs_and_ends()

    def runs_and_ends(self):
        self.assertEqual(self.ask(), self.digest)
        os.kill(self.pid, signal.SIGKILL)
        eventually(lambda: not os.path.exists(f"/proc/{self.pid}"))

    def test_it_runs_again(self):
        self.assertIn("--trust", self.run_ckpt("restore", "-f", "s3://bucket/x/b", code=5))
        for how in ([], ["--lazy"]):
            self.run_ckpt("restore", "-f", "s3://bucket/x/b", "-d", "--trust", *how)
            self.runs_and_ends()
        with Server(Files, root=str(self.base)) as server:
            self.run_ckpt("restore", "-f", server.url + "/run/b/", "-d", "--trust")
            self.runs_and_ends()

    def start(self):
        """The process, from the image in the folder."""
        self.run_ckpt("restore", "-f", self.images / "b", "-d")

    def test_it_is_written_there(self):
        self.start()
        for verb, name, more in (("pre-dump", "p", []), ("dump", "r", ["-R"]), ("dump", "e", [])):
            told = self.run_ckpt(verb, "-p", self.pid, "-f", f"s3://bucket/y/{name}", *more)
            self.assertIn(f"s3://bucket/y/{name}", told)
            changes = [p for v, p in self.server.http.requests if v == "PUT" and "partNumber" not in p]
            self.assertTrue(changes[-1].endswith("/manifest.json"), changes)
            self.run_ckpt("verify", f"s3://bucket/y/{name}")
            if verb == "pre-dump" or more:
                self.assertEqual(self.ask(), self.digest)
        eventually(lambda: not os.path.exists(f"/proc/{self.pid}"))
        self.assertEqual(self.server.http.uploads, {})
        for name in ("p", "e"):
            self.run_ckpt("restore", "-f", f"s3://bucket/y/{name}", "-d", "--trust")
            self.runs_and_ends()

    @contextlib.contextmanager
    def holding(self, setup):
        """A process that has run `setup` and waits."""
        program = f"import mmap, os\n{setup}\nprint(flush=True)\nwhile True: os.read(0, 1)\n"
        with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
            try:
                process.stdout.readline()
                yield process.pid
            finally:
                process.kill()

    def test_pages_go_up_while_the_process_runs(self):
        """More of them than may be on their way at a time."""
        seen = []

        def look(handler, asked, key):
            if asked == "part" and key.endswith("/pages"):
                seen.append((state_of(pid), sum(p.stat().st_blocks for p in self.scratch.rglob("*")) * 512))
            return False

        self.server.http.write_faults = [look]
        with self.holding("data = os.urandom(96 << 20)") as pid:
            for verb, *more in (["pre-dump"], ["dump", "-R"], ["dump", "--hash", "sha256"]):
                seen.clear()
                url = f"s3://bucket/z/{verb}{len(more)}"
                self.run_ckpt(verb, "-p", pid, "-f", url, "--external-pipes", "null", "--rounds", "1", "--jobs", "1", *more)
                self.assertIn(seen[0][0], "SR", f"{verb}: the first part of the pages goes up while the process stands still")
                self.assertLess(max(size for _, size in seen), 1 << 20, "pages lie on this host")
        self.run_ckpt("verify", "s3://bucket/z/dump2")
        self.run_ckpt("verify", "s3://bucket/z/pre-dump0")

    def test_pages_that_were_outdated_meanwhile(self):
        """What went up cannot be taken back: it is no damage."""
        change = "import itertools, threading\ndata = bytearray(os.urandom(8 << 20))\n"
        change += "def change():\n    for i in itertools.count(): data[i * 4099 % len(data)] ^= 1\nthreading.Thread(target=change, daemon=True).start()"
        with self.holding(change) as pid:
            self.run_ckpt("pre-dump", "-p", pid, "-f", "s3://bucket/o/a", "--external-pipes", "null")
        files = json.loads(self.server.http.buckets["bucket"]["o/a/manifest.json"])["files"]
        self.assertTrue(any(file.get("outdated") for file in files), files)
        self.run_ckpt("verify", "s3://bucket/o/a")

    def test_a_parent_there(self):
        self.start()
        self.run_ckpt("pre-dump", "-p", self.pid, "-f", "s3://bucket/w/a")
        self.run_ckpt("pre-dump", "-p", self.pid, "-f", "s3://bucket/w/b", "--prev", "s3://bucket/w/a")
        digest = self.ask(signal.SIGUSR2)
        self.server.http.requests.clear()
        told = self.run_ckpt("dump", "-p", self.pid, "-f", "s3://bucket/w/c", "--prev", "s3://bucket/w/b")
        eventually(lambda: not os.path.exists(f"/proc/{self.pid}"))
        self.assertNotIn("no write tracking", told)
        self.assertIn("needs ../b", told)
        read = {path.split("?")[0].rpartition("/")[2] for verb, path in self.server.http.requests if verb == "GET" and "/w/" in path and "prefix" not in path}
        self.assertLessEqual(read, {"manifest.json", "manifest.sha256", "pagemap", "xstate", "pipes"})
        pages = {name: sum(len(o) for key, o in self.server.http.buckets["bucket"].items() if key.startswith(f"w/{name}/pages")) for name in "ac"}
        self.assertLess(pages["c"], pages["a"] / 3)
        self.run_ckpt("verify", "s3://bucket/w/c")
        self.run_ckpt("restore", "-f", "s3://bucket/w/c", "-d", "--trust")
        self.assertEqual(self.ask(), digest)
        os.kill(self.pid, signal.SIGKILL)
        eventually(lambda: not os.path.exists(f"/proc/{self.pid}"))

    def test_a_stop_does_not_wait_for_the_network(self):
        """Shared memory is copied while the process stands still, more of it here than may be in memory."""
        waited_for = []

        def answer_once_it_runs(handler, asked, key):
            if asked == "part":
                eventually(lambda: state_of(pid) in "SR")
                waited_for.append(key)
            return False

        self.server.http.write_faults = [answer_once_it_runs]
        with self.holding("memory = mmap.mmap(-1, 160 << 20)\nmemory.write(os.urandom(160 << 20))") as pid:
            told = self.run_ckpt("dump", "-p", pid, "-f", "s3://bucket/v/a", "-R", "--external-pipes", "null", "--max-memory", "1M", "--json")
        done = json.loads([line for line in told.splitlines() if line.startswith("{")][-1])
        self.assertLess(done["frozen_us"], 20_000_000)
        self.assertGreater(len(waited_for), 160 >> 4)
        self.assertGreater(sum(len(o) for key, o in self.server.http.buckets["bucket"].items() if key.startswith("v/a/pages")), 160 << 20)
        self.server.http.write_faults = []
        self.run_ckpt("verify", "s3://bucket/v/a")

    def test_a_full_tmpdir_has_the_process_wait_instead(self):
        """Little room, and none at all, also for the image's other files."""
        small = self.base / "small"
        small.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "ckpt-small", small], check=False, capture_output=True).returncode != 0:
            self.skipTest("no tmpfs can be mounted here")
        self.addCleanup(subprocess.run, ["umount", "-l", small], check=False)
        self.server.http.write_faults = [lambda handler, asked, key: asked == "part" and time.sleep(1) is not None]
        with self.holding("memory = mmap.mmap(-1, 160 << 20)\nmemory.write(os.urandom(160 << 20))") as pid:
            for name in ("little", "none"):
                if name == "none":
                    with contextlib.suppress(OSError), open(small / "full", "wb", buffering=0) as full:
                        while full.write(bytes(1 << 20)):
                            pass
                told = self.run_ckpt("dump", "-p", pid, "-f", f"s3://bucket/f/{name}", "-R", "--external-pipes", "null", "--max-memory", "1M", scratch=small)
                self.assertIn("TMPDIR had no room", told)
                self.assertEqual(os.listdir(small), ["full"] * (name == "none"))
        self.server.http.write_faults = []
        for name in ("little", "none"):
            self.run_ckpt("verify", f"s3://bucket/f/{name}")

    def test_a_process_in_other_namespaces(self):
        """The network is that of whoever calls ckpt: where the process is there is none."""
        program = f"import os, sys\nmemory = os.urandom(3 << 20)\nopen('{self.base}/ready', 'w').close()\nwhile True: os.read(0, 1)"
        for end in (False, True):  # the first process of the namespace, and one that it waits for
            command = [sys.executable, "-c", program]
            inside = command if end else ["sh", "-c", '"$@"; exit 0', "sh", *command]
            with subprocess.Popen(["unshare", "--pid", "--net", "--ipc", "--uts", "--fork", "--mount-proc", *inside], stdin=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL, start_new_session=True) as outside:
                try:
                    eventually((self.base / "ready").exists)
                    pid = outside.pid
                    for _ in range(1 if end else 2):
                        pid = int(pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
                    name, how = f"s3://bucket/n/{end}", ["--external-pipes", "null"]
                    self.assertIn("in their hands", self.run_ckpt("dump", "-p", pid, "-f", "cmd:/bin/false x/y", *how, code=6))
                    self.run_ckpt("pre-dump", "-p", pid, "-f", f"{name}/a", *how)
                    self.run_ckpt("dump", "-p", pid, "-f", f"{name}/b", "--prev", f"{name}/a", "-R", *how)
                    told = self.run_ckpt("dump", "-p", pid, "-f", f"{name}/c", "--prev", f"{name}/b", *how)
                    self.assertIn(f"{name}/c", told)
                    eventually(lambda: not os.path.exists(f"/proc/{pid}"))
                finally:
                    outside.kill()
            (self.base / "ready").unlink()
            self.assertEqual(self.server.http.uploads, {})
            for image in "abc":
                self.run_ckpt("verify", f"{name}/{image}")
            self.runs_in_other_namespaces(f"{name}/c")

    def runs_in_other_namespaces(self, url):
        """Each of them has a network that leads nowhere."""
        pidfile, place = self.base / "pidfile", self.base / "placed"
        self.run_ckpt("squash", url, place / "x", "--trust")
        program = f"cmd:{sys.executable} {pathlib.Path(__file__).resolve().parent / 'program.py'} {place}/x"
        self.run_ckpt("verify", program)
        self.assertIn("in their hands", self.run_ckpt("restore", "-f", program, "-d", "--trust", code=6))
        shutil.rmtree(place)
        with concurrent.futures.ThreadPoolExecutor() as pool:  # ckpt stays, and ends as the process does
            waits = pool.submit(self.run_ckpt, "restore", "-f", url, "--trust", "--pidfile", pidfile, "--external-pipes", "null", code=128 + signal.SIGKILL)
            eventually(lambda: pidfile.exists() and pidfile.read_text().strip())
            pid = int(pidfile.read_text())
            # Whoever ends it before ckpt has let it go fails the restore.
            status = pathlib.Path(f"/proc/{pid}/status")
            eventually(lambda: "TracerPid:\t0" in status.read_text() and state_of(pid) in "SR")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            waits.result(60)
            pidfile.unlink()
        for more in ([], ["--lazy"]):
            self.run_ckpt("restore", "-f", url, "-d", "--trust", "--pidfile", pidfile, "--external-pipes", "null", *more)
            pid = int(pidfile.read_text())
            try:
                for kind in ("net", "pid", "ipc", "uts"):
                    self.assertNotEqual(os.readlink(f"/proc/{pid}/ns/{kind}"), os.readlink(f"/proc/self/ns/{kind}"), kind)
                self.run_ckpt("dump", "-p", pid, "-f", self.base / "again", "--external-pipes", "null")
                self.run_ckpt("verify", self.base / "again")
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                pidfile.unlink()
                shutil.rmtree(self.base / "again", ignore_errors=True)

    def test_what_fails_leaves_the_process_and_no_object(self):
        self.start()
        try:
            objects = self.server.http.buckets["bucket"]
            before = dict(objects)
            for what in ("part", "complete"):
                self.server.http.write_faults = [lambda handler, asked, key: asked == what and (handler.answer(403, b"") or True)]
                self.run_ckpt("dump", "-p", self.pid, "-f", "s3://bucket/y/c", code=5)
                self.assertEqual((objects, self.server.http.uploads), (before, {}))
                self.assertEqual(self.ask(), self.digest)
            self.server.http.write_faults = []
            self.assertIn("is there already", self.run_ckpt("dump", "-p", self.pid, "-f", "s3://bucket/x/b", code=2))
            for dump, parent in (("s3://bucket/y/c", self.images / "a"), ("s3://bucket/y/c", "s3://bucket/x/a"), (self.base / "c", "s3://bucket/x/a"),
                                 ("s3://bucket/x/b", "s3://bucket/x/a")):
                self.run_ckpt("dump", "-p", self.pid, "-f", dump, "--prev", parent, code=2)
            self.assertIn("read only", self.run_ckpt("dump", "-p", self.pid, "-f", self.server.url + "/x", code=6))
            self.run_ckpt("dump", "-p", self.pid, "-f", "s3://bucket/y/c", "--dry-run")
            self.assertEqual(objects, before)
        finally:
            self.runs_and_ends()

    def test_a_server_that_goes_away_leaves_no_process(self):
        def gone(handler, name, data):
            if not name.endswith("/pages"):
                return False
            handler.answer(503, b"")
            return True

        self.server.http.faults = [gone]
        self.assertIn("503", self.run_ckpt("restore", "-f", "s3://bucket/x/b", "-d", "--trust", code=8))
        self.assertFalse(os.path.exists(f"/proc/{self.pid}"))

    def test_what_is_refused_by_name(self):
        copies = ["--copies", "2", "--new-pidns", "-d"]
        self.assertIn("copies cannot share", self.run_ckpt("restore", "-f", "s3://bucket/x/b", "--trust", *copies, code=6))
        self.assertIn("on this host", self.run_ckpt("rm", "s3://bucket/x/b", code=6))


if __name__ == "__main__":
    unittest.main(verbosity=2)
