#!/usr/bin/env python3
"""Stores at URLs: push, pull, gc and verify in a bucket, a server that fails, a store that is only read.

    stores.py CKPT_BINARY
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from servers import S3, Files, Server  # noqa: E402
from small_checkpoints import safetensors  # noqa: E402

CKPT = os.path.abspath(sys.argv.pop(1))
IMAGE = pathlib.Path(__file__).resolve().parent.parent / "images" / "format-3" / "terminal_session" / "image"


class Stores(unittest.TestCase):
    def setUp(self):
        self.base = pathlib.Path(tempfile.mkdtemp(prefix="ckpt-stores-"))
        self.addCleanup(shutil.rmtree, self.base)
        for name, seed in (("one", 1), ("two", 2)):
            (self.base / name).mkdir()
            safetensors(self.base / name / "own.safetensors", {"w": ("U8", [300_000], bytes([seed]) + os.urandom(299_999))})
        shared = os.urandom(2_000_000)
        for name in ("one", "two"):
            safetensors(self.base / name / "shared.safetensors", {"w": ("U8", [2_000_000], shared)})
        self.server = Server(S3, buckets={"bucket": {}}, page=1000)
        self.server.__enter__()
        self.addCleanup(self.server.__exit__)
        self.objects = self.server.http.buckets["bucket"]
        self.env = {**{k: v for k, v in os.environ.items() if not k.startswith("AWS_")}, "AWS_ACCESS_KEY_ID": S3.KEY, "AWS_SECRET_ACCESS_KEY": S3.SECRET,
                    "AWS_EC2_METADATA_DISABLED": "true", "AWS_ENDPOINT_URL": self.server.url, "HOME": str(self.base)}

    def ckpt(self, *arguments, code=0, store="s3://bucket/st"):
        result = subprocess.run([CKPT, *map(str, arguments), "--store", store], env=self.env, cwd=self.base, text=True, capture_output=True, check=False)
        self.assertEqual(result.returncode, code, (arguments, result.stderr))
        return result.stdout + result.stderr

    def same(self, one, other):
        for path in (self.base / one).iterdir():
            there = self.base / other / path.name
            self.assertEqual(path.read_bytes(), there.read_bytes(), path)
            self.assertEqual(path.stat().st_mtime_ns, there.stat().st_mtime_ns)

    def size(self):
        return sum(map(len, self.objects.values()))

    def test_a_store_in_a_bucket(self):
        self.ckpt("push", "one")
        before = self.size()
        self.ckpt("push", "two")
        self.assertLess(self.size() - before, 400_000)
        self.ckpt("push", "one", code=2)
        for name in ("one", "two"):
            self.ckpt("pull", name, "--dir", f"back/{name}")
            self.same(name, f"back/{name}")
        self.assertIn("fetched_bytes", told := self.ckpt("pull", "two", "--dir", "back/one", "--force", "--json"))
        self.assertIn('"reused_bytes": 2', told)
        self.same("two", "back/one")
        self.assertIn("is sound", self.ckpt("verify"))
        self.ckpt("rm", "one")
        self.ckpt("gc")
        self.ckpt("pull", "two", "--dir", "again")
        self.same("two", "again")
        self.objects.update({f"c/{path.name}": path.read_bytes() for path in (self.base / "two").iterdir()})
        self.ckpt("push", "s3://bucket/c", "--name", "from-a-bucket", store="local")
        self.ckpt("pull", "from-a-bucket", "--dir", "here", store="local")
        self.assertEqual((self.base / "here" / "own.safetensors").read_bytes(), (self.base / "two" / "own.safetensors").read_bytes())
        for path in (self.base / "two").iterdir():
            del self.objects[f"c/{path.name}"]
        self.ckpt("rm", "two")
        self.ckpt("gc")
        self.assertEqual(list(self.objects), ["st/config"])

    def test_an_image_from_a_bucket_is_not_believed_without_a_key(self):
        self.ckpt("push", IMAGE)
        self.assertIn("--trust", self.ckpt("pull", "image", "--dir", "no", code=5))
        self.assertFalse((self.base / "no").exists())
        self.ckpt("pull", "image", "--dir", "yes", "--trust")
        (self.base / "key").write_bytes(os.urandom(32))
        self.ckpt("push", IMAGE, "--store-key", "key", store="s3://bucket/keyed")
        self.ckpt("pull", "image", "--dir", "keyed", "--store-key", "key", store="s3://bucket/keyed")
        self.assertEqual((self.base / "keyed" / "pages").read_bytes(), (IMAGE / "pages").read_bytes())

    def test_a_server_that_fails_leaves_what_is_there(self):
        self.ckpt("push", "one")
        before = {name: body for name, body in self.objects.items()}
        for failing in ("/packs/", "/index/", "/images/"):
            def refuse(handler, what, key, failing=failing):
                if what == "put" and failing in key:
                    handler.answer(403, b"<Error><Code>AccessDenied</Code></Error>")
                    return True
                return False
            self.server.http.write_faults = [refuse]
            self.ckpt("push", "two", code=5)
            self.server.http.write_faults = []
            self.assertNotIn("st/images/two", self.objects)
            for name, body in before.items():
                self.assertEqual(self.objects[name], body)
            self.ckpt("verify")
        self.ckpt("push", "two")
        self.ckpt("gc")
        self.assertLess(self.size(), 2_700_000)
        self.assertFalse([name for name in self.objects if "/pushes/" in name or "/condemned/" in name])
        self.ckpt("pull", "two", "--dir", "two2")
        self.same("two", "two2")

    def test_a_folder_behind_http_is_read(self):
        self.ckpt("push", "one", store="local")
        with Server(Files, root=str(self.base)) as files:
            url = files.url + "/local"
            self.assertIn("one", self.ckpt("list", store=url))
            self.ckpt("pull", "one", "--dir", "fetched", store=url)
            self.same("one", "fetched")
            self.assertIn("is sound", self.ckpt("verify", store=url))
            self.ckpt("push", "two", code=6, store=url)
            self.ckpt("rm", "one", code=6, store=url)


if __name__ == "__main__":
    unittest.main()
