#!/usr/bin/env python3
"""Checkpoints written to a bucket: the same bytes as in a folder, and nothing that looks whole where something failed.

    writes.py CKPT_BINARY [TEST...]
"""
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import numpy

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from servers import S3, Files, Server  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
CKPT = os.path.abspath(sys.argv.pop(1))
ENV = {"AWS_ACCESS_KEY_ID": S3.KEY, "AWS_SECRET_ACCESS_KEY": S3.SECRET, "AWS_EC2_METADATA_DISABLED": "true"}
MIB = 1 << 20


def write_safetensors(path, arrays):
    header, size = {}, 0
    for name, array in arrays.items():
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [size, size + array.nbytes]}
        size += array.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            out.write(array.tobytes())


def once(answer):
    spent = threading.Lock()
    return lambda *request: spent.acquire(blocking=False) and answer(*request)


def when(wanted, answer):
    return lambda handler, what, key: what == wanted and answer(handler, what, key)


def hang_up(handler, what, key):
    handler.close_connection = True
    return True


def busy(handler, what, key):
    handler.answer(503, b"<Error><Code>SlowDown</Code></Error>")
    return True


def refuse(handler, what, key):
    handler.answer(403, b"<Error><Code>AccessDenied</Code></Error>")
    return True


def other_etag(handler, what, key):
    handler.answer(200, ETag='"%s"' % ("0" * 32))
    return True


class Writes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.base = pathlib.Path(tempfile.mkdtemp(prefix="ckpt-writes-"))
        random = numpy.random.default_rng(7)
        arrays = {f"layer.{i}.weight": random.random((513, 1001), "float32") for i in range(9)}
        arrays["large"] = random.random((3000, 1003), "float32")
        cls.file = cls.base / "model.safetensors"
        write_safetensors(cls.file, arrays)
        cls.megatron = cls.base / "megatron"
        subprocess.run([sys.executable, HERE.parent / "support" / "make_megatron_zarr.py", cls.megatron, "--mib", "8"], check=True,
                       stdout=subprocess.DEVNULL)
        cls.scratch = cls.base / "scratch"
        cls.scratch.mkdir()

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.base)

    def setUp(self):
        self.server = Server(S3, buckets={"bucket": {}})
        self.server.__enter__()
        self.addCleanup(self.server.__exit__)
        self.objects = self.server.http.buckets["bucket"]

    def tearDown(self):
        self.assertEqual(os.listdir(self.scratch), [], "placeholders stay behind")

    def start(self, *args, env=None):
        full = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "HF_"))}
        return subprocess.Popen([CKPT, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env={**full, **ENV, "AWS_ENDPOINT_URL": self.server.url, "TMPDIR": str(self.scratch), "HOME": str(self.base), **(env or {})})

    def run_ckpt(self, *args, code=0, env=None):
        process = self.start(*args, env=env)
        out, err = process.communicate(timeout=100)
        self.assertEqual(process.returncode, code, f"{args}: {err.decode()}")
        told = (out + err).decode(errors="replace")
        for secret in (S3.SECRET, str(self.scratch)):
            self.assertNotIn(secret, told)
        return told

    def convert(self, *args, source=None, **more):
        return self.run_ckpt("convert", source or self.file, *args, **more)

    def nothing_is_left(self):
        self.assertEqual((dict(self.objects), self.server.http.uploads), ({}, {}))

    def test_the_same_bytes_as_in_a_folder(self):
        for source, name, more in ((self.file, "a b/dcp", ["--to", "dcp"]), (self.file, "td", ["--to", "torch_dist", "--shard-size", "1MiB"]),
                                   (self.file, "model.pt", ["--to", "torch"]), (self.file, "st", ["--to", "safetensors", "--file-size", "12MB"]),
                                   (self.file, "one.safetensors", ["--to", "safetensors"]), (self.megatron, "meg", ["--to", "torch_dist"]),
                                   (self.file, "zarr", ["--to", "zarr3"]), (self.file, "npy", ["--to", "npy"])):
            local = self.base / "local" / name
            local.parent.mkdir(parents=True, exist_ok=True)
            self.run_ckpt("convert", source, local, *more)
            self.server.http.requests.clear()
            # No object may have a space in its URL as it is typed.
            url = "s3://bucket/" + name.replace(" ", "_")
            self.run_ckpt("convert", source, url, *more, "--verify")
            files = {str(p.relative_to(local)): p.read_bytes() for p in local.rglob("*") if p.is_file()} if local.is_dir() else {"": local.read_bytes()}
            prefix = url.removeprefix("s3://bucket/")
            there = {k.removeprefix(prefix).removeprefix("/"): v for k, v in self.objects.items() if k.startswith(prefix)}
            self.assertEqual(there.keys(), files.keys(), name)
            self.assertEqual([k for k in files if files[k] != there[k]], [], name)
            changes = [p.split("?")[0] for v, p in self.server.http.requests if (v == "PUT" and "partNumber" not in p) or (v == "POST" and "uploadId" in p)]
            markers = [p for p in changes if p.endswith((".metadata", "metadata.json", "index.json", ".pt", "one.safetensors"))]
            if markers:
                self.assertEqual(changes[-1], markers[-1], "what makes it readable comes last")
        self.assertEqual(self.server.http.uploads, {})
        shutil.rmtree(self.base / "local")

    def test_from_one_bucket_to_another(self):
        self.objects["src/model.safetensors"] = self.file.read_bytes()
        self.server.http.buckets["other"] = {}
        self.convert("s3://other/dcp", "--to", "dcp", "--verify", source="s3://bucket/src")
        self.run_ckpt("verify", "s3://other/dcp", "--against", self.file)
        self.assertIn("lies inside", self.convert("s3://bucket/src/dcp", "--to", "dcp", source="s3://bucket/src", code=2))
        self.assertIn("holds the source", self.convert("s3://bucket/src", "--to", "dcp", "--force", source="s3://bucket/src/model.safetensors", code=2))

    def test_what_is_there_stays_unless_forced(self):
        self.objects.update({"dcp/.metadata": b"old", "dcp/old.distcp": b"old", "dcpx": b"beside"})
        self.assertIn("is there already", self.convert("s3://bucket/dcp", "--to", "dcp", code=2))
        self.assertIn("is there already", self.convert("s3://bucket/dcp", "--to", "dcp", "--dry-run", code=2))
        self.assertEqual(self.objects["dcp/.metadata"], b"old")
        self.convert("s3://bucket/dcp/", "--to", "dcp", "--force")
        self.run_ckpt("verify", "s3://bucket/dcp", "--against", self.file)
        self.assertNotIn("dcp/old.distcp", self.objects)
        self.assertEqual(self.objects["dcpx"], b"beside")

    def test_somebody_else_was_faster(self):
        theirs = {"dcp/.metadata": b"theirs", "dcp/__0_0.distcp": b"theirs too"}

        def appears(handler, what, key):
            if what == "begin":
                self.objects.update(theirs)
            return False

        self.server.http.write_faults = [appears]
        self.assertIn("appeared meanwhile", self.convert("s3://bucket/dcp", "--to", "dcp", code=2))
        self.assertEqual(dict(self.objects), theirs)
        self.assertEqual(self.server.http.uploads, {})

    def test_what_is_refused_by_name(self):
        with Server(Files, root=str(self.base)) as server:
            self.assertIn("read only", self.convert(server.url + "/x", "--to", "dcp", code=6))
        self.assertIn("--part", self.convert("s3://bucket/x", "--to", "dcp", "--part", "1/2", code=6))
        self.assertIn("--no-sync", self.convert("s3://bucket/x", "--to", "dcp", "--no-sync", code=2))
        self.assertIn("whole bucket", self.convert("s3://bucket", "--to", "dcp", "--force", code=2))
        self.convert("s3://none/x", "--to", "dcp", code=4)
        self.assertIn("AccessDenied", self.with_fault([refuse], code=5))
        self.nothing_is_left()

    def with_fault(self, faults, code):
        self.server.http.write_faults = faults
        return self.convert("s3://bucket/dcp", "--to", "dcp", code=code)

    def test_what_fails_once_is_tried_again(self):
        for what in ("begin", "part", "complete", "put"):
            for fault in (busy, hang_up):
                self.with_fault([once(when(what, fault))], code=0)
                self.assertIn("dcp/.metadata", self.objects)
                self.objects.clear()
        self.server.http.uploads.clear()  # of those whose beginning was not answered

    def test_an_answer_that_is_lost_after_the_deed(self):
        def lost(handler, what, key):
            handler.server.write_faults = []
            handler.answer = lambda *a, **k: None
            handler.write(self.objects, key, dict([p.split("=") for p in handler.path.partition("?")[2].replace("%2F", "/").replace("%2B", "+").split("&") if p]))
            del handler.answer
            return hang_up(handler, what, key)

        for what in ("complete", "put"):
            self.with_fault([once(when(what, lost))], code=0)
            self.run_ckpt("verify", "s3://bucket/dcp", "--against", self.file)
            self.objects.clear()

    def test_a_server_that_goes_on_failing_leaves_nothing(self):
        # The pauses between the tries take seconds.
        for what in ("begin", "part", "put") if os.environ.get("CKPT_LONG") == "1" else ("part",):
            self.assertIn("503", self.with_fault([when(what, busy)], code=8))
            self.nothing_is_left()
        self.with_fault([lambda handler, what, key: key.endswith(".metadata") and what in ("put", "complete") and refuse(handler, what, key)], code=5)
        self.nothing_is_left()

    def test_a_server_that_has_other_bytes(self):
        for what in ("part", "put"):
            self.assertIn("other bytes than were sent", self.with_fault([when(what, other_etag)], code=1))
            self.nothing_is_left()

        def late(handler, what, key):
            """Wrong from the moment on that it is complete."""
            handler.server.write_faults = [late] if what != "put" else []
            for parts in (u[1] for u in handler.server.uploads.values()):
                for number, data in parts.items():
                    if what == "put" and len(data) > 4 * MIB:
                        parts[number] = data
            for name in [k for k in self.objects if k.endswith(".distcp")]:
                data = self.objects[name]
                self.objects[name] = data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]
            return False

        self.server.http.write_faults = [late]
        self.convert("s3://bucket/dcp", "--to", "dcp", "--verify", code=1)
        self.nothing_is_left()

    def stop_in_the_middle(self, number):
        begun = threading.Event()

        def slow(handler, what, key):
            if what == "part":
                begun.set()
                time.sleep(0.5)
            return False

        self.server.http.write_faults = [slow]
        process = self.start("convert", self.file, "s3://bucket/dcp", "--to", "dcp")
        if not begun.wait(20):
            process.send_signal(signal.SIGABRT)
            self.fail(f"no part came: {process.communicate()}, {self.server.http.requests}")
        process.send_signal(number)
        process.communicate(timeout=60)
        time.sleep(0.6)  # what the server was doing
        return process.returncode

    def test_an_interrupt_takes_everything_back(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            self.assertEqual(self.stop_in_the_middle(number), 130)
            self.nothing_is_left()

    def test_a_killed_one_leaves_no_object(self):
        self.stop_in_the_middle(signal.SIGKILL)
        self.assertEqual(dict(self.objects), {})
        self.server.http.write_faults, self.server.http.uploads = [], {}
        self.convert("s3://bucket/dcp", "--to", "dcp")

    RESUMED = ("s3://bucket/dcp", "--to", "dcp", "--files", "3", "-j", "1", "--resume")

    def stop_after_a_file(self, number):
        """One that can be gone on with."""
        begun, first = threading.Event(), []

        def slow(handler, what, key):
            if what == "put" and key.endswith(".ckpt-convert.json"):
                begun.set()
            elif what == "part" and key != (first or first.append(key) or first)[0]:
                time.sleep(2)
            return False

        self.server.http.write_faults = [slow]
        process = self.start("convert", self.file, *self.RESUMED)
        self.assertTrue(begun.wait(60), "no file was finished")
        time.sleep(0.3)  # until its journal is there
        process.send_signal(number)
        process.communicate(timeout=60)
        time.sleep(2.1)
        self.server.http.write_faults = []
        self.assertEqual(list(self.objects), ["dcp/.ckpt-convert.json"])
        return json.loads(self.objects["dcp/.ckpt-convert.json"])["files"]

    def test_a_killed_one_goes_on(self):
        self.convert(*self.RESUMED[:-1])
        whole = dict(self.objects)
        for number in (signal.SIGKILL, signal.SIGINT):
            self.objects.clear()
            self.server.http.uploads.clear()
            done = self.stop_after_a_file(number)
            self.assertIn("--resume", self.convert(*self.RESUMED[:-1], code=2))
            self.assertIn("another conversion", self.convert(*self.RESUMED, "--dtype", "**=bfloat16", code=7))
            self.assertEqual(list(self.objects), ["dcp/.ckpt-convert.json"])
            self.server.http.requests.clear()
            report = json.loads(self.convert(*self.RESUMED, "--verify", "--json").splitlines()[0])
            self.assertEqual((report["kept_files"], report["verified"]), (len(done), True))
            sent = {path.split("?")[0] for verb, path in self.server.http.requests if verb == "PUT" and "partNumber" in path}
            for file in done:
                self.assertNotIn(f"/bucket/dcp/{file['name']}", sent, "what was there went up again")
            self.assertEqual(dict(self.objects), whole)

    def test_one_that_was_killed_while_its_objects_appeared_goes_on(self):
        """Whether its server's ETags say what is in them, or not."""
        self.convert(*self.RESUMED[:-1])
        whole = dict(self.objects)
        for tells in (True, False):
            self.objects.clear()
            file = self.stop_after_a_file(signal.SIGKILL)[0]
            parts = self.server.http.uploads.pop(file["upload"])[1]
            data = self.objects["dcp/" + file["name"]] = b"".join(data for _, data in sorted(parts.items()))
            if tells:
                etag = hashlib.md5(b"".join(hashlib.md5(data).digest() for _, data in sorted(parts.items()))).hexdigest()
                self.server.http.etags[id(data)] = (data, f'"{etag}-{len(parts)}"')
            report = json.loads(self.convert(*self.RESUMED, "--json").splitlines()[0])
            self.assertEqual((report["kept_files"], dict(self.objects)), (int(tells), whole))

    def test_what_the_server_has_lost_is_made_again(self):
        self.convert(*self.RESUMED[:-1])
        whole = dict(self.objects)
        self.objects.clear()
        for file in self.stop_after_a_file(signal.SIGKILL):
            parts = self.server.http.uploads[file["upload"]][1]
            parts[1] = bytes(len(parts[1]))
        self.convert(*self.RESUMED)
        self.assertEqual(dict(self.objects), whole)

    def test_memory_stays_bounded(self):
        """Of a bucket that wants the MD5 of each part, too, which others are spared once their ETags have proved to be it."""
        refused = []

        def insist(handler, what, key):
            if what != "part" or "Content-MD5" in handler.headers:
                return False
            refused.append(key)
            handler.answer(400, b"<Error><Code>InvalidRequest</Code></Error>")
            return True

        self.server.http.write_faults = [insist]
        large = self.base / "large.safetensors"
        write_safetensors(large, {f"t{i}": numpy.zeros((12 * MIB,), "float32") for i in range(6)})
        process, most = self.start("convert", large, "s3://bucket/large.pt", "--to", "torch"), 0
        while process.poll() is None:  # not by wait4: its figure counts what this process had when it forked
            found = re.search(r"Name:\s+ckpt\n(?s:.*)VmHWM:\s+(\d+) kB", pathlib.Path(f"/proc/{process.pid}/status").read_text())
            most = max(most, int(found[1]) if found else 0)
            time.sleep(0.02)
        process.communicate()
        large.unlink()
        self.assertEqual(process.returncode, 0)
        self.assertGreater(len(self.objects["large.pt"]), 280 * MIB)
        self.assertTrue(0 < len(refused) <= 8, refused)
        print(f"{most >> 10} MiB", file=sys.stderr, end=" ")
        self.assertTrue(0 < most < 256 << 10, most)


if __name__ == "__main__":
    unittest.main(verbosity=2)
