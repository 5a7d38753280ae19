"""Checkpoints behind nginx, which gives ranges as it should, or goes wrong on purpose: slow, cut off, 503, another length, another
range, a redirection, an object that changes between two reads."""
import contextlib
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import threading
import time

import pytest
from conftest import CKPT
from test_servers import nginx_program

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "remote"))
from contract import free_port, nginx_configuration, started  # noqa: E402

# What each place does with the same files. Of the last ones another server of the test's own stands behind nginx.
PLACES = """
location /slow/ { alias ROOT/; limit_rate 4m; }
location /slower/ { alias ROOT/; limit_rate 1m; access_log BASE/access.log; }
location /once/ { alias ROOT/; limit_req zone=few nodelay; limit_req_status 503; access_log BASE/access.log; }
location /busy/ { return 503; }
location /norange/ { alias ROOT/; max_ranges 0; }
location /moved/ { return 302 /plain/$uri_rest; }
location /loop/ { return 302 $uri; }
location /elsewhere/ { return 302 file:///etc/passwd; }
location /plain/ { alias ROOT/; autoindex on; }
location /refused/ { deny all; }
location /behind/ { proxy_pass http://127.0.0.1:BACK/; proxy_http_version 1.1; proxy_buffering off; proxy_set_header Connection ''; }
"""


class Liar(threading.Thread):
    """Answers one request after the other as `lie` has it."""

    def __init__(self, data):
        super().__init__(daemon=True)
        self.data, self.lie, self.asked = data, None, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.start()

    def run(self):
        while True:
            client = self.listener.accept()[0]
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        with client:
            request = b""
            while b"\r\n\r\n" not in request:
                more = client.recv(65536)
                if not more:
                    return
                request += more
            self.asked += 1
            head = request.startswith(b"HEAD")
            wanted = re.search(rb"[Rr]ange: bytes=(\d+)-(\d+)", request)
            first, last = (int(wanted[1]), min(int(wanted[2]), len(self.data) - 1)) if wanted else (0, len(self.data) - 1)
            with contextlib.suppress(OSError):  # who has seen enough hangs up
                client.sendall(self.lie(head, wanted is not None, first, last))


def answer(status, body, sent=None, length=None, content_range=None, etag='"one"'):
    length = len(body) if length is None else length
    lines = [f"HTTP/1.1 {status} x", f"Content-Length: {length}", f"ETag: {etag}", "Accept-Ranges: bytes", "Connection: close"]
    if content_range:
        lines.append(f"Content-Range: bytes {content_range}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + (body if sent is None else sent)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    root = tmp_path_factory.mktemp("files")
    subprocess.run([HERE.parent / "support" / "make_megatron_zarr.py", root / "megatron", "--mib", "12"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([CKPT, "convert", root / "megatron", root / "m.safetensors", "--to", "safetensors", "--tensors-only", "-q"], check=True)
    return root


@pytest.fixture(scope="module")
def server(files, tmp_path_factory):
    base, port, liar = tmp_path_factory.mktemp("nginx"), free_port(), Liar((files / "m.safetensors").read_bytes())
    os.environ["CKPT_NGINX"] = nginx_program()
    places = PLACES.replace("ROOT", str(files)).replace("BASE", str(base)).replace("BACK", str(liar.port)).replace("$uri_rest", "m.safetensors")
    command = nginx_configuration(base, port, files, places)
    text = (base / "nginx.conf").read_text()
    (base / "nginx.conf").write_text(text.replace("http {", "http { limit_req_zone $binary_remote_addr zone=few:1m rate=50r/s;"))
    subprocess.run(["chmod", "-R", "a+rX", files], check=True)
    with started(command, port, base / "log"):
        liar.log = base / "access.log"
        yield f"http://127.0.0.1:{port}", liar


def run(*args, code=0):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "HF_"))}
    done = subprocess.run([CKPT, *map(str, args)], capture_output=True, text=True, env=clean, check=False, timeout=200)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("place", ["plain", "slow", "once", "norange", "moved"])
def test_what_is_right_all_the_same(server, files, place):
    """Slow; 503 to most; no ranges; led elsewhere."""
    begun = time.monotonic()
    run("verify", f"{server[0]}/{place}/m.safetensors", "--against", files / "m.safetensors")
    if place == "slow":
        assert time.monotonic() - begun > 0.3, "it was not slow"
    if place == "once":
        assert re.search(r'/once/[^"]*" 503 ', server[1].log.read_text()), "nothing was refused"


def test_a_folder_and_a_conversion(server, files, tmp_path):
    for name in ("megatron", "megatron/"):
        run("verify", f"{server[0]}/plain/{name}", "--against", files / "megatron")
    run("convert", f"{server[0]}/plain/megatron/", tmp_path / "written", "--to", "torch_dist", "--verify")
    run("verify", tmp_path / "written", "--against", files / "megatron")


def test_what_is_refused(server):
    assert "503" in run("inspect", f"{server[0]}/busy/m.safetensors", code=8)
    assert "403" in run("inspect", f"{server[0]}/refused/m.safetensors", code=5)
    run("inspect", f"{server[0]}/plain/none.safetensors", code=4)
    for place in ("loop", "elsewhere"):
        run("inspect", f"{server[0]}/{place}/m.safetensors", code=8)


def lies(data):
    """What is said of a range, and what is to be said of that."""
    size = len(data)

    def head_or(ranged):
        return lambda head, wanted, first, last: answer(200, data, b"" if head else None) if head or not wanted else ranged(first, last)

    def good(first, last):
        return answer(206, data[first : last + 1], content_range=f"{first}-{last}/{size}")

    changes = iter([good] + 100 * [lambda f, l: answer(206, data[f : l + 1], content_range=f"{f}-{l}/{size}", etag='"two"')])
    cuts = iter([lambda f, l: answer(206, data[f : l + 1], data[f : (f + l) // 2], content_range=f"{f}-{l}/{size}")] * 3 + [good] * 100)
    return {
        "cut off, and gone on with": (head_or(lambda f, l: next(cuts)(f, l)), 0, ""),
        "another length": (head_or(lambda f, l: answer(206, data[f : l + 1], content_range=f"{f}-{l}/{size + 1}")), 1, "changed while it was read"),
        "another range": (head_or(lambda f, l: answer(206, data[f + 1 : l + 2], content_range=f"{f + 1}-{l + 1}/{size}")), 1, "another range"),
        "no range named": (head_or(lambda f, l: answer(206, data[f : l + 1])), 1, "which range"),
        "shorter than it says": (head_or(lambda f, l: answer(206, b"", b"", 0, f"{f}-{l}/{size}")), 1, "ends at byte"),
        "changed between two reads": (head_or(lambda f, l: next(changes)(f, l)), 1, "changed while it was read"),
    }


@pytest.mark.parametrize("lie", ["cut off, and gone on with", "another length", "another range", "no range named", "shorter than it says",
                                 "changed between two reads"])
def test_servers_that_lie(server, files, lie):
    url, liar = server
    liar.lie, code, words = lies(liar.data)[lie]
    assert words in run("verify", f"{url}/behind/m.safetensors", "--against", files / "m.safetensors", code=code)


def test_a_file_that_changes_between_two_reads(server, files, tmp_path):
    """Its ETag is of the size and the second."""
    moving = files / "moving.safetensors"
    shutil.copy(files / "m.safetensors", moving)
    moving.chmod(0o644)
    os.utime(moving, (1, 1))
    command = [CKPT, "verify", f"{server[0]}/slower/moving.safetensors", "--against", str(files / "m.safetensors")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    end = time.monotonic() + 60
    while "HEAD /slower/" not in server[1].log.read_text():  # since then it has a size and an ETag
        assert time.monotonic() < end
        time.sleep(0.01)
    replaced = tmp_path / "replaced"
    replaced.write_bytes(bytes(reversed((files / "m.safetensors").read_bytes())))
    replaced.chmod(0o644)
    shutil.move(replaced, moving)
    told = process.communicate(timeout=100)[0]
    assert process.returncode == 1 and "changed while it was read" in told, told
