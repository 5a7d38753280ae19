#!/usr/bin/env python3
"""Checkpoints at URLs: what the verbs say of one is what they say of the folder; a server that fails or lies is named, and nothing is left.

    urls.py CKPT_BINARY [TEST...]
"""
import fcntl
import hashlib
import json
import os
import pathlib
import re
import shutil
import socket
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


def write_safetensors(path, arrays):
    header, body = {}, b""
    for name, array in arrays.items():
        raw = array.tobytes()
        header[name] = {"dtype": {"f": "F32", "i": "I64"}[array.dtype.kind], "shape": list(array.shape),
                        "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def once(answer):
    """A fault that is answered once."""
    spent = threading.Lock()
    return lambda *request: spent.acquire(blocking=False) and answer(*request)


def hang_up(handler, name, data):
    handler.wfile.flush()
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True
    return True


def cut(handler, name, data):
    """Half of the range that was asked for."""
    first, last = map(int, re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers["Range"]).groups())
    handler.send_response(206)
    handler.send_header("Content-Length", str(last + 1 - first))
    handler.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
    handler.end_headers()
    handler.wfile.write(data[first : (first + last) // 2])
    return hang_up(handler, name, data)


def busy(handler, name, data):
    handler.answer(503, b"slow down")
    return True


class Urls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.base = pathlib.Path(tempfile.mkdtemp(prefix="ckpt-urls-"))
        random = numpy.random.default_rng(7)
        cls.folder = cls.base / "root" / "run=1 +a" / "iter_1"
        subprocess.run([sys.executable, HERE.parent / "support" / "make_megatron_zarr.py", cls.folder, "--mib", "8"], check=True,
                       stdout=subprocess.DEVNULL)
        cls.arrays = {f"layer.{i}.weight": random.random((300, 1000), "float32") for i in range(9)} | {"step": numpy.array([3], "<i8")}
        cls.file = cls.base / "root" / "model.safetensors"
        write_safetensors(cls.file, cls.arrays)
        cls.dcp = cls.base / "root" / "dcp"
        subprocess.run([CKPT, "convert", cls.file, cls.dcp, "--to", "dcp", "-q"], check=True)
        cls.objects = {str(p.relative_to(cls.base / "root")): p.read_bytes() for p in (cls.base / "root").rglob("*") if p.is_file()}
        cls.scratch = cls.base / "scratch"
        cls.scratch.mkdir()

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.base)

    def tearDown(self):
        self.assertEqual(os.listdir(self.scratch), [], "placeholders stay behind")

    def run_ckpt(self, *args, code=0, env=None, timeout=100):
        full = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "HF_"))}
        done = subprocess.run([CKPT, *map(str, args)], capture_output=True, timeout=timeout,
                              env={**full, **ENV, "TMPDIR": str(self.scratch), "HOME": str(self.base), **(env or {})}, check=False)
        self.assertEqual(done.returncode, code, f"{args}: {done.stderr.decode()}")
        self.assertNotIn(str(self.scratch), (done.stdout + done.stderr).decode(errors="replace"), "a placeholder's path is shown")
        return done.stdout if code == 0 else (done.stdout + done.stderr).decode()

    def same(self, url, path, env=None):
        """All verbs say the same of both, but for where they are."""
        for line in (["load-metadata"], ["inspect"], ["inspect", "--files"]):
            there = self.run_ckpt(*line, url, env=env).decode().replace(url.rstrip("/"), "PATH")
            self.assertEqual(there, self.run_ckpt(*line, path).decode().replace(str(path), "PATH"), line)
        self.run_ckpt("verify", url, "--against", path, env=env)
        written = self.base / "written"
        self.run_ckpt("convert", url, written, "--to", "dcp", "--verify", env=env)
        shutil.rmtree(written) if written.is_dir() else written.unlink()

    def test_http_file_with_and_without_ranges(self):
        for ranges in (True, False):
            with Server(Files, root=str(self.base / "root"), ranges=ranges) as server:
                self.same(server.url + "/model.safetensors", self.file)
                raw = self.run_ckpt("cat", server.url + "/model.safetensors", "layer.3.weight", "--slice", "5:7")
                self.assertEqual(raw, self.arrays["layer.3.weight"][5:7].tobytes())

    def test_http_folders_that_are_listed(self):
        with Server(Files, root=str(self.base / "root")) as server:
            self.same(server.url + "/dcp/", self.dcp)
            self.same(server.url + "/run=1%20+a/iter_1/", self.folder)

    def test_repository_of_models(self):
        index = {"weight_map": {name: f"part-{i % 3}.safetensors" for i, name in enumerate(self.arrays)}}
        repository = self.base / "root" / "owner" / "name" / "resolve" / "main"
        repository.mkdir(parents=True)
        for i in range(3):
            write_safetensors(repository / f"part-{i}.safetensors", {n: a for j, (n, a) in enumerate(self.arrays.items()) if j % 3 == i})
        (repository / "model.safetensors.index.json").write_text(json.dumps(index))
        try:
            with Server(Files, root=str(self.base / "root"), lists=False) as server:
                self.same(server.url + "/owner/name/resolve/main", repository)
                files = [{"type": "file", "path": p.name, "size": p.stat().st_size} for p in sorted(repository.iterdir())]
                server.http.pages["/api/models/owner/name/tree/main"] = json.dumps(files)
                server.http.requests.clear()
                self.same(server.url + "/owner/name/resolve/main/", repository)
                self.assertNotIn("HEAD", {verb for verb, path in server.http.requests if "part-" in path}, "its API tells the sizes")
        finally:
            shutil.rmtree(self.base / "root" / "owner")

    def test_s3_signed_and_paged(self):
        with Server(S3, buckets={"bucket": dict(self.objects)}) as server:
            env = {"AWS_ENDPOINT_URL": server.url}
            self.same("s3://bucket/dcp", self.dcp, env)
            self.same("s3://bucket/model.safetensors", self.file, env)
            server.http.buckets["bucket"] = {k.replace(" ", "_"): v for k, v in self.objects.items()}
            self.same("s3://bucket/run=1_+a/iter_1", self.folder, env)

    def test_profiles_and_refused_credentials(self):
        config = self.base / "aws"
        with Server(S3, buckets={"bucket": dict(self.objects)}) as server:
            config.write_text(f"[profile p]\nendpoint_url = {server.url}\naws_access_key_id = {S3.KEY}\naws_secret_access_key = {S3.SECRET}\n")
            profile = {"AWS_CONFIG_FILE": str(config), "AWS_PROFILE": "p", "AWS_ACCESS_KEY_ID": ""}
            self.run_ckpt("inspect", "s3://bucket/dcp", env=profile)
            self.assertIn("no profile", self.run_ckpt("inspect", "s3://bucket/dcp", env={**profile, "AWS_PROFILE": "q"}, code=2))
            env = {"AWS_ENDPOINT_URL": server.url}
            wrong = self.run_ckpt("inspect", "s3://bucket/dcp", env={**env, "AWS_SECRET_ACCESS_KEY": "wrong-secret"}, code=5)
            self.assertIn("SignatureDoesNotMatch", wrong)
            self.assertNotIn("wrong-secret", wrong)
            self.assertIn("no credentials were found", self.run_ckpt("inspect", "s3://bucket/dcp", env={**env, "AWS_ACCESS_KEY_ID": ""}, code=5))
            self.run_ckpt("inspect", "s3://bucket/none", env=env, code=4)
            self.run_ckpt("inspect", "s3://other/dcp", env=env, code=4)

    def test_a_bucket_in_the_host(self):
        (self.base / ".aws").mkdir()
        with Server(S3, buckets={"bucket": dict(self.objects)}) as server:
            env = {"AWS_ENDPOINT_URL": server.url.replace("127.0.0.1", "localhost")}
            for style, begin in (("virtual", "/dcp/"), ("path", "/bucket/dcp/"), ("auto", "/bucket/dcp/")):
                (self.base / ".aws" / "config").write_text(f"[default]\ns3 =\n  addressing_style = {style}\n")
                server.http.requests.clear()
                self.run_ckpt("verify", "s3://bucket/dcp", "--against", self.dcp, env=env)
                read = [path for verb, path in server.http.requests if path.endswith(".distcp")]
                self.assertTrue(read and all(path.startswith(begin) for path in read), (style, read))
        shutil.rmtree(self.base / ".aws")

    def test_metadata_costs_few_requests_and_few_bytes(self):
        with Server(S3, buckets={"bucket": dict(self.objects)}, page=1000) as server:
            self.run_ckpt("load-metadata", "s3://bucket/dcp", env={"AWS_ENDPOINT_URL": server.url})
            self.assertLess(len(server.http.requests), 10, server.http.requests)

    def test_what_fails_once_is_tried_again(self):
        with Server(S3, buckets={"bucket": dict(self.objects)}) as server:
            env = {"AWS_ENDPOINT_URL": server.url}
            for fault in (busy, cut, hang_up):
                server.http.faults = [once(fault), once(fault)]
                self.run_ckpt("verify", "s3://bucket/model.safetensors", "--against", self.file, env=env)

    def test_a_server_that_goes_away_is_no_damage(self):
        with Server(S3, buckets={"bucket": dict(self.objects)}) as server:
            server.http.faults = [lambda handler, name, data: name.endswith(".distcp") and busy(handler, name, data)]
            told = self.run_ckpt("verify", "s3://bucket/dcp", env={"AWS_ENDPOINT_URL": server.url}, code=8)
            self.assertIn("503", told)
            self.assertNotIn("damaged", told)

    def test_placeholders_of_a_killed_ckpt_go_with_the_next(self):
        with Server(Files, root=str(self.base / "root")) as server:
            left = self.scratch / "ckpt-url-abcdef"
            (left / "model").mkdir(parents=True)
            os.utime(left, (1, 1))
            other = self.scratch / "ckpt-url-locked"
            other.mkdir()
            os.utime(other, (1, 1))
            held = os.open(other, os.O_RDONLY)
            fcntl.flock(held, fcntl.LOCK_EX)
            self.run_ckpt("inspect", server.url + "/model.safetensors")
            self.assertEqual(os.listdir(self.scratch), ["ckpt-url-locked"])
            os.close(held)
            other.rmdir()

    def test_a_folder_that_cannot_be_listed_is_told(self):
        with Server(Files, root=str(self.base / "root")) as server:
            server.http.pages["/run/"] = '<a href="a/">a</a><a href="b/">b</a>'
            server.http.pages["/run/a/"] = '<a href="model.safetensors">m</a>'
            server.http.refused = {"/run/b/"}
            self.assertIn("403", self.run_ckpt("inspect", server.url + "/run/", code=5))

    def test_servers_that_lie_are_named(self):
        def other_range(handler, name, data):
            handler.answer(206, data[1:11], Content_Range=f"bytes 1-10/{len(data)}")
            return True

        def no_range(handler, name, data):
            handler.answer(206, data[:10])
            return True

        def shorter(handler, name, data):
            handler.answer(200, data[:-1])
            return True

        def changed(handler, name, data):
            handler.answer(206, data[:10], ETag='"other"', Content_Range=f"bytes 0-9/{len(data)}")
            return True

        def refused(handler, name, data):
            handler.answer(403, b"<Error><Code>AccessDenied</Code></Error>")
            return True

        with Server(S3, buckets={"bucket": dict(self.objects)}) as server:
            env = {"AWS_ENDPOINT_URL": server.url}
            for fault, code, words in ((other_range, 1, "another range"), (no_range, 1, "which range"), (shorter, 1, "changed while it was read"),
                                       (changed, 1, "changed while it was read"), (refused, 5, "AccessDenied")):
                server.http.faults = [fault]
                self.assertIn(words, self.run_ckpt("load-metadata", "s3://bucket/model.safetensors", env=env, code=code))

    def test_an_object_that_changes_between_two_reads(self):
        with Server(Files, root=str(self.base / "root")) as server:
            moving = self.base / "root" / "moving.safetensors"
            shutil.copy(self.file, moving)

            def replace(handler, name, data):
                write_safetensors(moving, {n: a + 1 for n, a in self.arrays.items()})
                return False

            server.http.faults = [once(lambda *request: False), replace]
            told = self.run_ckpt("verify", server.url + "/moving.safetensors", "--against", self.file, code=1)
            self.assertIn("changed while it was read", told)
            moving.unlink()

    def test_no_server(self):
        told = self.run_ckpt("inspect", "http://127.0.0.1:1/x.safetensors", code=8)
        self.assertIn("in a row", told)

    def test_redirections(self):
        with Server(Files, root=str(self.base / "root")) as server:
            server.http.redirects["/here"] = server.url + "/model.safetensors"
            self.run_ckpt("verify", server.url + "/here", "--against", self.file)
            server.http.redirects["/loop"] = "/loop"
            self.run_ckpt("inspect", server.url + "/loop", code=8)
            server.http.redirects["/file"] = "file:///etc/passwd"
            self.run_ckpt("inspect", server.url + "/file", code=8)

    def test_folders_without_their_slash(self):
        """The server leads to the name with one."""
        with Server(Files, root=str(self.base / "root")) as server:
            self.run_ckpt("verify", server.url + "/dcp", "--against", self.dcp)

    def test_no_more_than_a_bandwidth(self):
        size = self.file.stat().st_size
        with Server(S3, buckets={"bucket": dict(self.objects)}) as server:
            env = {"AWS_ENDPOINT_URL": server.url}
            for source, there in (("s3://bucket/model.safetensors", self.base / "slow"), (self.file, "s3://bucket/slow")):
                begun = time.monotonic()
                self.run_ckpt("convert", source, there, "--to", "dcp", env={**env, "CKPT_URL_BANDWIDTH": "6M"})
                self.assertGreater(time.monotonic() - begun, 0.9 * size / (6 << 20))
            shutil.rmtree(self.base / "slow")
            self.assertIn("CKPT_URL_BANDWIDTH", self.run_ckpt("inspect", "s3://bucket/dcp", env={**env, "CKPT_URL_BANDWIDTH": "fast"}, code=2))

    def test_a_core_has_no_memory_of_who_has_credentials(self):
        seen = []

        def look(handler, name, data):
            found = subprocess.run(["pgrep", "-f", "s3://bucket/of-cores.safetensors"], capture_output=True, text=True, check=True).stdout.split()
            seen.extend(int(pathlib.Path(f"/proc/{pid}/coredump_filter").read_text(), 16) for pid in found)
            return False

        with Server(S3, buckets={"bucket": dict(self.objects)}) as server:
            server.http.buckets["bucket"]["of-cores.safetensors"] = server.http.buckets["bucket"]["model.safetensors"]
            server.http.faults = [once(look)]
            self.run_ckpt("load-metadata", "s3://bucket/of-cores.safetensors", env={"AWS_ENDPOINT_URL": server.url})
        self.assertEqual(set(seen), {0})

    def test_names_that_lead_elsewhere(self):
        for name in ("../evil", "a/../../evil", "/evil", "a//evil"):
            with Server(S3, buckets={"bucket": {"dir/" + name: b"x", "dir/model.safetensors": b""}}) as server:
                told = self.run_ckpt("inspect", "s3://bucket/dir", env={"AWS_ENDPOINT_URL": server.url}, code=1)
                self.assertIn("leads elsewhere", told)
        self.assertFalse((self.base / "evil").exists())

    def test_an_object_above_others(self):
        with Server(S3, buckets={"bucket": {"dir/a": b"x", "dir/a/b": b"y"}}) as server:
            self.run_ckpt("inspect", "s3://bucket/dir", env={"AWS_ENDPOINT_URL": server.url}, code=6)

    def test_what_is_not_written_to(self):
        self.assertIn("on this host", self.run_ckpt("squash", self.file, "s3://bucket/x", code=6))
        with Server(Files, root=str(self.base / "root")) as server:
            url = server.url + "/model.safetensors"
            self.assertIn("not written to", self.run_ckpt("verify", url, "--write-manifest", "default", code=2))

    def test_checkpoint_hash_over_the_net(self):
        """Every byte of every tensor, against digests that numpy's own arrays give."""
        with Server(S3, buckets={"bucket": dict(self.objects)}) as server:
            for name, array in self.arrays.items():
                raw = self.run_ckpt("cat", "s3://bucket/dcp", name, env={"AWS_ENDPOINT_URL": server.url})
                self.assertEqual(hashlib.sha256(raw).hexdigest(), hashlib.sha256(array.tobytes()).hexdigest(), name)


if __name__ == "__main__":
    unittest.main(verbosity=2)
