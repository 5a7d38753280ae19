"""Checkpoints in buckets of servers that others wrote: moto's S3, which Amazon's own library fills, and rclone's, which checks signatures."""
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest
from conftest import CKPT, fixture

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "remote"))
from contract import free_port, program, started  # noqa: E402

KEY, SECRET = "AKIDEXAMPLEKEY", "secret/with+signs="
UPLOAD = """
import os, sys, boto3
s3 = boto3.client("s3", endpoint_url=sys.argv[1], region_name="us-east-1", aws_access_key_id=sys.argv[2], aws_secret_access_key=sys.argv[3])
s3.create_bucket(Bucket="bucket")
for folder, _, names in os.walk(sys.argv[4]):
    for name in names:
        path = os.path.join(folder, name)
        s3.upload_file(path, "bucket", "a=1/b+c/" + os.path.relpath(path, sys.argv[4]))
"""


@pytest.fixture(scope="session")
def python():
    return subprocess.run([HERE / "make_env.sh", "servers"], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """Real ones by other software, and one of a few MiB, whose objects are read in parts."""
    root = tmp_path_factory.mktemp("checkpoints")
    for name in ("dcp-2.9.1", "dcp-2.9.1-zstd", "dcp-2.9.1-file-per-item"):
        shutil.copytree(fixture("generated-dcp", name), root / name)
    subprocess.run([HERE.parent / "support" / "make_megatron_zarr.py", root / "megatron", "--mib", "24"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([CKPT, "convert", root / "megatron", root / "file.safetensors", "--to", "safetensors", "--tensors-only", "-q"], check=True)
    return root


def nginx_program():
    return program("nginx") or pytest.skip("nginx is not installed")


@pytest.fixture(params=["moto", "rclone"])
def server(request, python, checkpoints, tmp_path):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    tools = pathlib.Path(python).parent
    if request.param == "moto":
        command = [tools / "moto_server", "-p", str(port)]
    else:
        (tmp_path / "store").mkdir()
        command = [tools / "rclone", "serve", "s3", "--config", "", "--auth-key", f"{KEY},{SECRET}", "--addr", f"127.0.0.1:{port}", tmp_path / "store"]
    with started(command, port, tmp_path / "log"):
        subprocess.run([python, "-c", UPLOAD, url, KEY, SECRET, checkpoints], check=True)
        yield request.param, {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}


def run(env, *args, code=0):
    done = subprocess.run([CKPT, *map(str, args)], capture_output=True, env={**os.environ, **env}, check=False)
    assert done.returncode == code, done.stderr.decode()
    return done.stdout


UPLOADS_LEFT = """
import sys, boto3
s3 = boto3.client("s3", endpoint_url=sys.argv[1], region_name="us-east-1", aws_access_key_id=sys.argv[2], aws_secret_access_key=sys.argv[3])
print(len(s3.list_multipart_uploads(Bucket="bucket").get("Uploads", [])))
"""
DOWNLOAD = """
import os, sys, boto3
s3 = boto3.client("s3", endpoint_url=sys.argv[1], region_name="us-east-1", aws_access_key_id=sys.argv[2], aws_secret_access_key=sys.argv[3])
for page in s3.get_paginator("list_objects_v2").paginate(Bucket="bucket", Prefix=sys.argv[4]):
    for entry in page.get("Contents", []):
        path = os.path.join(sys.argv[5], os.path.relpath(entry["Key"], sys.argv[4])) if entry["Key"] != sys.argv[4] else sys.argv[5]
        os.makedirs(os.path.dirname(path), exist_ok=True)
        s3.download_file("bucket", entry["Key"], path)
"""


def test_what_is_written_is_what_others_read(server, checkpoints, python, tmp_path):
    """In parts and whole, replaced, and withdrawn: Amazon's own library finds the bytes that a folder has."""
    kind, env = server
    boto = [env["AWS_ENDPOINT_URL"], KEY, SECRET]
    for name, *how in (("dcp", "--to", "dcp"), ("file.pt", "--to", "torch"), ("st", "--to", "safetensors", "--tensors-only", "--file-size", "10MB"),
                       ("zarr", "--to", "zarr3", "--tensors-only")):
        run({}, "convert", checkpoints / "megatron", tmp_path / "here" / name, *how)
        url = f"s3://bucket/w=1/b+c/{name}"
        run(env, "convert", checkpoints / "megatron", url, *how, "--verify")
        run(env, "convert", checkpoints / "megatron", url, *how, code=2)
        run(env, "convert", checkpoints / "megatron", url, *how, "--force")
        subprocess.run([python, "-c", DOWNLOAD, *boto, f"w=1/b+c/{name}", tmp_path / "there" / name], check=True)
    subprocess.run(["diff", "-r", tmp_path / "here", tmp_path / "there"], check=True)
    if kind == "rclone":
        run({**env, "AWS_SECRET_ACCESS_KEY": "wrong"}, "convert", checkpoints / "megatron", "s3://bucket/w=1/other", "--to", "dcp", code=5)
    begun = subprocess.Popen([CKPT, "convert", checkpoints / "megatron", "s3://bucket/w=1/interrupted", "--to", "dcp"], env={**os.environ, **env})
    time.sleep(0.05)
    begun.terminate()
    assert begun.wait(60) in (0, 130, -15)
    if begun.returncode == 130:
        run(env, "inspect", "s3://bucket/w=1/interrupted", code=4)
    left = subprocess.run([python, "-c", UPLOADS_LEFT, *boto], check=True, capture_output=True, text=True).stdout
    assert int(left) == 0, left


def test_checkpoints_in_a_bucket_are_those_of_the_folder(server, checkpoints, tmp_path):
    kind, env = server
    for path in sorted(checkpoints.iterdir()):
        url = f"s3://bucket/a=1/b+c/{path.name}"
        run(env, "verify", url, "--against", path)
        there, here = (json.loads(run(env, "load-metadata", at)) for at in (url, path))
        assert {**there, "path": ""} == {**here, "path": ""}, path.name
    written = tmp_path / "written"
    run(env, "convert", "s3://bucket/a=1/b+c/megatron", written, "--to", "torch_dist", "--verify")
    run(env, "verify", written, "--against", checkpoints / "megatron")
    name = json.loads(run({}, "load-metadata", checkpoints / "file.safetensors"))["tensors"][0]["key"]
    digests = {hashlib.sha256(run(env, "cat", at, name)).digest() for at in ("s3://bucket/a=1/b+c/file.safetensors", checkpoints / "file.safetensors")}
    assert len(digests) == 1
    run(env, "inspect", "s3://bucket/nothing", code=4)
    if kind == "rclone":  # moto takes every signature
        run({**env, "AWS_SECRET_ACCESS_KEY": "wrong"}, "inspect", "s3://bucket/a=1/b+c/dcp-2.9.1", code=5)


def test_a_store_in_their_buckets(server, checkpoints, tmp_path):
    """Pushed, pulled, checked, collected: byte for byte, and equal chunks once."""
    _, env = server
    store = ["--store", "s3://bucket/s=1/b+c/store"]
    for name in ("dcp-2.9.1", "megatron", "file.safetensors"):
        run(env, "push", checkpoints / name, *store)
        run(env, "push", checkpoints / name, *store, code=2)
        run(env, "push", checkpoints / name, *store, "--name", f"{name}.again")
        run(env, "pull", name, *store, "--dir", tmp_path / name)
        there = tmp_path / name / (name if (checkpoints / name).is_file() else "")
        subprocess.run(["diff", "-r", checkpoints / name, there], check=True)
    listed = json.loads(run(env, "list", *store, "--json"))
    assert len(listed["names"]) == 6 and listed["stored_bytes"] < 0.6 * listed["bytes"], listed
    run(env, "verify", *store)
    run(env, "rm", *store, "--keep-last", "1", "megatron*")
    run(env, "rm", *store, "file.safetensors", "file.safetensors.again")
    run(env, "gc", *store)
    assert json.loads(run(env, "list", *store, "--json"))["stored_bytes"] <= listed["stored_bytes"]
    run(env, "pull", "megatron.again", *store, "--dir", tmp_path / "after")
    subprocess.run(["diff", "-r", checkpoints / "megatron", tmp_path / "after"], check=True)
    run(env, "verify", *store)


def unit_repository():
    unit = pathlib.Path(CKPT).parent / "unit_repository"
    if not unit.exists():
        pytest.skip("unit_repository is not built")
    return unit


@pytest.mark.parametrize("place", ["moto", "rclone", "rclone-program", "nginx"])
def test_the_contract(python, place):
    """The one of every backend: tests/remote/contract.py."""
    tools = pathlib.Path(python).parent
    environment = {**os.environ, "CKPT_MOTO": str(tools / "moto_server"), "CKPT_RCLONE": str(tools / "rclone")}
    if place == "nginx":
        environment["CKPT_NGINX"] = nginx_program()
    subprocess.run(["/usr/bin/python3", HERE.parent / "remote" / "contract.py", unit_repository(), place], env=environment, check=True)


def test_rclone_speaks_for_a_place(python):
    """cmd:rclone ...: stores and checkpoints, as tests/remote/programs.py has it."""
    environment = {**os.environ, "CKPT_RCLONE": str(pathlib.Path(python).parent / "rclone")}
    subprocess.run(["/usr/bin/python3", HERE.parent / "remote" / "programs.py", CKPT, "Programs.test_rclone"], env=environment, check=True)
