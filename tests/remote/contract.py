#!/usr/bin/env python3
"""One contract for every place where objects lie: the cases "backend: ..." of unit_repository, on each of them.

    contract.py UNIT_REPOSITORY [PLACE...]

Places of the tests' own, which are tried where none is named: s3, gs and http (servers.py), program (program.py). Those that others
wrote: moto and rclone (CKPT_MOTO and CKPT_RCLONE say where the programs are), rclone-program, which is spoken to by cmd:, and nginx
(CKPT_NGINX). A folder of this host is tried along with each.
"""
import contextlib
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from servers import S3, Files, Server  # noqa: E402

OWN = ("s3", "gs", "http", "program")
KEYS = {"AWS_ACCESS_KEY_ID": S3.KEY, "AWS_SECRET_ACCESS_KEY": S3.SECRET, "AWS_EC2_METADATA_DISABLED": "true"}
# rclone has no way to write only what is not there, Google's S3 face none to say so, and rclone's own server does not look at it.
NO_CONDITIONS = "*of many that want a name*"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def program(name):
    return os.environ.get(f"CKPT_{name.upper()}") or shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextlib.contextmanager
def started(command, port, log):
    with open(log, "wb") as out:
        process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        end = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < end, log.read_text()
                time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait()


def nginx_configuration(base, port, root, more=""):
    """Of a server that lists the folders of `root`."""
    temporary = " ".join(f"{kind}_temp_path {base}/tmp;" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    user = "user root;" if os.geteuid() == 0 else ""
    text = f"{user} worker_processes 1; pid {base}/pid; daemon off; error_log {base}/error.log; events {{}} http {{ {temporary} access_log off; " \
           f"server {{ listen 127.0.0.1:{port}; root {root}; autoindex on; {more} }} }}"
    (base / "nginx.conf").write_text(text)
    return [program("nginx"), "-p", base, "-c", base / "nginx.conf", "-e", base / "error.log"]


@contextlib.contextmanager
def place(kind, base):
    """What the suite is told, and the cases that are left out."""
    there, port = base / "there", free_port()
    there.mkdir()
    with contextlib.ExitStack() as stack:
        if kind in ("s3", "gs"):
            server = stack.enter_context(Server(S3, buckets={"bucket": {}}, page=1000))
            endpoint = {"AWS_ENDPOINT_URL": server.url} if kind == "s3" else {"GS_ENDPOINT_URL": server.url}
            yield {**KEYS, **endpoint, "CKPT_STORE_URL": f"{kind}://bucket"}, NO_CONDITIONS if kind == "gs" else ""
        elif kind in ("http", "nginx"):
            if kind == "http":
                url = stack.enter_context(Server(Files, root=str(there))).url
            else:
                stack.enter_context(started(nginx_configuration(base, port, there), port, base / "log"))
                url = f"http://127.0.0.1:{port}"
            yield {"CKPT_STORE_FOLDER": str(there), "CKPT_STORE_HTTP": url}, ""
        elif kind in ("moto", "rclone"):
            (there / "bucket").mkdir()
            command = [program("moto"), "-p", port] if kind == "moto" else \
                [program("rclone"), "serve", "s3", "--config", "", "--auth-key", f"{S3.KEY},{S3.SECRET}", "--addr", f"127.0.0.1:{port}", there]
            stack.enter_context(started(command, port, base / "log"))
            url = f"http://127.0.0.1:{port}"
            if kind == "moto":
                subprocess.run(["curl", "-sf", "-X", "PUT", f"{url}/bucket"], check=True, stdout=subprocess.DEVNULL)
            yield {**KEYS, "AWS_ENDPOINT_URL": url, "CKPT_STORE_URL": "s3://bucket"}, NO_CONDITIONS
        elif kind == "program":
            yield {"CKPT_STORE_URL": f"cmd:{sys.executable} {HERE / 'program.py'} {there}"}, ""
        elif kind == "rclone-program":
            yield {"CKPT_STORE_URL": f"cmd:{program('rclone')} --local-no-check-updated {there}", "RCLONE_CONFIG": str(base / "conf")}, NO_CONDITIONS
        else:
            raise SystemExit(f"{kind} is no place")


def asserted(unit, environment, left_out):
    """How much was looked at."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "GS_", "CKPT_STORE_"))}
    command = [unit, "--test-case=backend*", *([f"--test-case-exclude={left_out}"] if left_out else [])]
    done = subprocess.run(command, env={**clean, **environment}, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{environment}: {done.stdout}{done.stderr}")
    return int(re.search(r"assertions:\s*(\d+)", done.stdout)[1])


def main():
    unit, kinds = os.path.abspath(sys.argv[1]), sys.argv[2:] or OWN
    for kind in kinds:
        with tempfile.TemporaryDirectory(prefix="ckpt-contract-") as folder, place(kind, pathlib.Path(folder)) as (environment, left_out):
            environment["HOME"] = folder
            alone, both = asserted(unit, {"HOME": folder}, left_out), asserted(unit, environment, left_out)
            assert both > 1.5 * alone, f"{kind}: the contract was not tried there"
            print(f"{kind}: {both - alone} assertions hold{', but for ' + left_out.strip('*') if left_out else ''}")


if __name__ == "__main__":
    main()
