#!/usr/bin/env python3
"""Who a server is, and who asks it: certificates, session tokens, roles of containers and instances, ~/.netrc, tokens of a hub.

    identity.py CKPT_BINARY [TEST...]
"""
import base64
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support")]
from servers import S3, Files, Server  # noqa: E402
from small_checkpoints import safetensors  # noqa: E402

CKPT = os.path.abspath(sys.argv.pop(1))
SAID = {"AWS_ACCESS_KEY_ID": S3.KEY, "AWS_SECRET_ACCESS_KEY": S3.SECRET}
ROLE = json.dumps({"AccessKeyId": S3.KEY, "SecretAccessKey": S3.SECRET, "Token": "session/token+", "Expiration": "2999-01-01T00:00:00Z"})


class Metadata(Files):
    """Roles, to who shows the token that goes with them."""

    def do_PUT(self):
        self.server.requests.append((self.command, self.path))
        self.answer(200, b"of-the-session")

    def serve(self):
        wanted = {"/task": ("Authorization", "of-the-task")}.get(self.path, ("X-aws-ec2-metadata-token", "of-the-session"))
        if self.headers.get(wanted[0]) != wanted[1]:
            self.answer(401)
        else:
            super().serve()


class NoProxy(Files):
    def do_CONNECT(self):
        self.server.requests.append((self.command, self.path))
        self.answer(403)


class Identity(unittest.TestCase):
    def setUp(self):
        self.base = pathlib.Path(tempfile.mkdtemp(prefix="ckpt-identity-"))
        self.addCleanup(shutil.rmtree, self.base)
        (self.base / "root").mkdir()
        safetensors(self.base / "root" / "model.safetensors", {"w": ("U8", [300], os.urandom(300))})
        self.objects = {"model.safetensors": (self.base / "root" / "model.safetensors").read_bytes()}

    def ckpt(self, url, code=0, **env):
        full = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "HF_", "GS_", "SSL_", "CURL_")) and not k.lower().endswith("_proxy")}
        done = subprocess.run([CKPT, "load-metadata", url], env={**full, "HOME": str(self.base), **env}, capture_output=True, text=True, check=False, timeout=100)
        told = done.stdout + done.stderr
        self.assertEqual(done.returncode, code, told)
        for secret in (S3.SECRET, "session/token+", "of-the-", "hub-token", "netrc-password"):
            self.assertNotIn(secret, told)
        return told

    def test_certificates(self):
        if shutil.which("openssl") is None:
            self.skipTest("openssl is not installed")
        key, own, other = self.base / "key", self.base / "own", self.base / "other"
        for place, name in ((own, "IP:127.0.0.1"), (other, "DNS:elsewhere")):
            subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{key}-{place.name}", "-out", place, "-subj", "/CN=test",
                            "-addext", f"subjectAltName={name}"], check=True, capture_output=True)
        with Server(S3, buckets={"bucket": self.objects}).speak_tls(own, f"{key}-own") as server:
            env = {**SAID, "AWS_ENDPOINT_URL": server.url}
            self.assertIn("certificate", self.ckpt("s3://bucket/model.safetensors", code=8, **env))
            self.assertEqual(server.http.requests, [], "a server that is not known was asked")
            for variable in ("SSL_CERT_FILE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE"):
                self.ckpt("s3://bucket/model.safetensors", **env, **{variable: str(own)})
        with Server(S3, buckets={"bucket": self.objects}).speak_tls(other, f"{key}-other") as server:
            told = self.ckpt("s3://bucket/model.safetensors", code=8, **SAID, AWS_ENDPOINT_URL=server.url, SSL_CERT_FILE=str(other))
            self.assertIn("127.0.0.1", told)
        with Server(Files, root=str(self.base / "root")) as plain, Server(Files, root=str(self.base / "root")).speak_tls(own, f"{key}-own") as server:
            self.ckpt(server.url + "/model.safetensors", SSL_CERT_FILE=str(own))
            server.http.redirects["/away"] = plain.url + "/model.safetensors"
            self.ckpt(server.url + "/away", code=8, SSL_CERT_FILE=str(own))
            self.assertEqual(plain.http.requests, [], "a redirection led out of TLS")

    def test_tokens_of_sessions(self):
        with Server(S3, buckets={"bucket": self.objects}, token="session/token+") as server:
            self.ckpt("s3://bucket/model.safetensors", **SAID, AWS_ENDPOINT_URL=server.url, AWS_SESSION_TOKEN="session/token+")
            self.ckpt("s3://bucket/model.safetensors", code=5, **SAID, AWS_ENDPOINT_URL=server.url)

    def test_the_role_of_a_container(self):
        with Server(Metadata, root=str(self.base), pages={"/task": ROLE}) as metadata, Server(S3, buckets={"bucket": self.objects}, token="session/token+") as server:
            env = {"AWS_ENDPOINT_URL": server.url, "AWS_CONTAINER_CREDENTIALS_FULL_URI": metadata.url + "/task"}
            self.ckpt("s3://bucket/model.safetensors", **env, AWS_CONTAINER_AUTHORIZATION_TOKEN="of-the-task")
            (self.base / "token").write_text("of-the-task\n")
            self.ckpt("s3://bucket/model.safetensors", **env, AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=str(self.base / "token"))
            self.ckpt("s3://bucket/model.safetensors", code=5, **env)

    def test_the_role_of_an_instance(self):
        """Asked for Amazon alone, whose servers a proxy keeps out of reach here."""
        roles = "/latest/meta-data/iam/security-credentials/"
        with Server(Metadata, root=str(self.base), pages={roles: "role-1\n", roles + "role-1": ROLE}) as metadata, Server(NoProxy) as proxy:
            env = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": metadata.url, "https_proxy": proxy.url, "no_proxy": "127.0.0.1"}
            self.ckpt("s3://bucket/model.safetensors", code=8, **env)
            self.assertEqual(metadata.http.requests, [("PUT", "/latest/api/token"), ("GET", roles), ("GET", roles + "role-1")])
            self.assertIn(("CONNECT", "bucket.s3.us-east-1.amazonaws.com:443"), proxy.http.requests)
            metadata.http.requests.clear()
            self.ckpt("s3://bucket/model.safetensors", code=8, **env, AWS_EC2_METADATA_DISABLED="true")
            self.assertEqual(metadata.http.requests, [])

    def authorizations(self, server):
        out = {head.get("Authorization", "") for head in server.http.heads}
        server.http.heads.clear()
        return out

    def test_netrc_and_the_token_of_a_hub(self):
        with Server(Files, root=str(self.base / "root")) as hub, Server(Files, root=str(self.base / "root")) as other:
            there = {"HF_ENDPOINT": hub.url, "HF_TOKEN": "hub-token"}
            self.ckpt(hub.url + "/model.safetensors", **there)
            self.assertEqual(self.authorizations(hub), {"Bearer hub-token"})
            self.ckpt(other.url + "/model.safetensors", **there)
            self.assertEqual(self.authorizations(other), {""})
            # As the hub has it: large files lie at another host.
            hub.http.redirects["/large.safetensors"] = other.url.replace("127.0.0.1", "localhost") + "/model.safetensors"
            self.ckpt(hub.url + "/large.safetensors", **there)
            self.assertEqual(self.authorizations(other), {""}, "the token went to another host")
            (self.base / ".netrc").write_text("machine 127.0.0.1 login user password netrc-password\n")
            (self.base / ".netrc").chmod(0o600)
            self.ckpt(other.url + "/model.safetensors")
            self.assertEqual(self.authorizations(other), {"Basic " + base64.b64encode(b"user:netrc-password").decode()})


if __name__ == "__main__":
    unittest.main(verbosity=2)
