#!/usr/bin/env python3
"""Checkpoints and images on loopback against what others need for the same: eight parts of 8 MiB at a time everywhere.

    bench.py [--mib 512] [--rounds 5] [--only put,get,http,dump,metadata,large]

put, get    convert to and from a bucket against rclone's copy of the same file; rclone's own S3 server
http        convert from nginx (or rclone's HTTP server where that is missing) against rclone and curl, eight ranges at a time
dump        a process to the bucket against the longer of: dump to disk, rclone's upload of that image (root)
metadata    load-metadata of 100,000 tensors over HTTP against the same file here; a round trip is one request of curl's
large       load-metadata of a checkpoint of 100 GB, sparse, from a bucket: requests, and the part of its bytes that is sent

Every round runs each way once, in turn; the medians count. Wants the environment "servers" of tests/interop; CKPT_NGINX names nginx
where it is not in the PATH. Never fails on a time: ratios are printed, with the bar behind them.
"""
import argparse
import hashlib
import json
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

TESTS = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TESTS / "remote"))
from servers import S3, Server  # noqa: E402

CKPT = os.environ.get("CKPT_BIN", str(TESTS.parent / "build" / "ckpt"))
KEY, SECRET = "AKIDEXAMPLEKEY", "secret/with+signs="
NGINX = os.environ.get("CKPT_NGINX") or shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
# One object in parts, as the others send it: begun, eight parts at a time, completed; each with its MD5, by which the server checks what it
# gets (it costs curl nothing here), or without.
CURL_PUT = """
import base64, os, re, subprocess, sys
url, user, folder, known, checked = sys.argv[1:]
curl = ["curl", "-sf", "--aws-sigv4", "aws:amz:us-east-1:s3", "--user", user, "-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD"]
begun = subprocess.run([*curl, "-X", "POST", url + "?uploads="], check=True, capture_output=True, text=True).stdout
upload = re.search("<UploadId>(.*)</UploadId>", begun)[1]
parts, each, etags = sorted(os.listdir(folder)), ["curl", "-Z", "--parallel-max", "8"], open(known).read().split()
for i, (part, etag) in enumerate(zip(parts, etags)):
    md5 = base64.b64encode(bytes.fromhex(etag)).decode()
    each += ["--next"] * (i > 0) + [*curl[1:], *(["-H", f"Content-MD5: {md5}"] if checked == "1" else []), "-T", f"{folder}/{part}", f"{url}?partNumber={i + 1}&uploadId={upload}"]
subprocess.run(each, check=True, stdout=subprocess.DEVNULL)
document = "".join(f"<Part><PartNumber>{i + 1}</PartNumber><ETag>{etag}</ETag></Part>" for i, etag in enumerate(etags))
subprocess.run([*curl, "-X", "POST", "--data-binary", f"<CompleteMultipartUpload>{document}</CompleteMultipartUpload>", f"{url}?uploadId={upload}"],
               check=True, stdout=subprocess.DEVNULL)
"""
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}


def timed(command, env):
    """Seconds, and the peak of memory in MiB: of a small process's child, since a fork inherits its parent's."""
    measure = "import os,signal,subprocess,sys,time;s=time.monotonic();p=subprocess.Popen(sys.argv[1:],stdin=0,stdout=open(os.devnull,'w'),stderr=2);" \
              "signal.signal(signal.SIGALRM,lambda *_:p.kill());signal.alarm(100);" \
              "_,c,u=os.wait4(p.pid,0);print(time.monotonic()-s,u.ru_maxrss/1024);sys.exit(c!=0)"
    done = subprocess.run([sys.executable, "-S", "-c", measure, *map(str, command)], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (command, done.stderr)
    return tuple(map(float, done.stdout.split()))


def compare(rounds, ways, env, tidy=lambda: None):
    """The median time of each way, and its largest memory."""
    times, memory = {name: [] for name in ways}, {name: 0 for name in ways}
    for i in range(rounds + 1):
        for name, command in ways.items():
            tidy()
            seconds, most = timed(command(i) if callable(command) else command, env)
            times[name] += [seconds] * (i > 0)  # the first one fills caches
            memory[name] = max(memory[name], most)
    return {name: statistics.median(all_of) for name, all_of in times.items()}, memory


def row(what, ratio, bar, more=""):
    print(f"{what:42} {ratio:7.2f}   bar {bar:8} {more}", flush=True)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def started(command, port):
    """It ends with this process."""
    process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *map(str, command)], **QUIET)
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return process
        except OSError:
            assert process.poll() is None, command
            time.sleep(0.05)
    raise AssertionError(f"{command} does not listen")


class Bench:
    def __init__(self, base, rclone, options):
        self.base, self.rclone, self.options = base, rclone, options
        (base / "store" / "bucket").mkdir(parents=True)
        self.model = base / "model.safetensors"
        size = options.mib << 20
        header = json.dumps({"t": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
        with open(self.model, "wb") as out:
            out.write(len(header).to_bytes(8, "little") + header)
            for _ in range(options.mib):
                out.write(os.urandom(1 << 20))
        os.link(self.model, base / "store" / "bucket" / "get.safetensors")  # before the server looks
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.servers = [started([rclone, "serve", "s3", "--config", "", "--auth-key", f"{KEY},{SECRET}", "--addr", f"127.0.0.1:{port}", base / "store"], port)]
        self.env = {**os.environ, "AWS_ENDPOINT_URL": self.url, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}
        self.bucket = f":s3,provider=Rclone,env_auth=true,endpoint='{self.url}',force_path_style=true:bucket"
        self.web = self.serve_folder()

    def serve_folder(self):
        port = free_port()
        if NGINX:
            config = f"worker_processes 2; pid {self.base}/pid; daemon off; error_log /dev/null; events {{}}" \
                     f" http {{ {' '.join(f'{kind}_temp_path {self.base}/tmp;' for kind in ('client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'))} access_log off; sendfile on; server {{ listen 127.0.0.1:{port}; root {self.base}; autoindex on; }} }}"
            (self.base / "nginx.conf").write_text(f"user root; {config}" if os.geteuid() == 0 else config)
            command = [NGINX, "-p", self.base, "-c", self.base / "nginx.conf", "-e", "/dev/null"]
        else:
            command = [self.rclone, "serve", "http", "--config", "", "--addr", f"127.0.0.1:{port}", self.base]
        self.servers.append(started(command, port))
        print(f"HTTP by {pathlib.Path(command[0]).name}")
        return f"http://127.0.0.1:{port}"

    def close(self):
        for server in self.servers:
            server.terminate()
            server.wait()

    def tell(self, what, mine, others, memory):
        for name, seconds in others.items():
            row(f"{what}: against {name}", seconds / mine, ">= 0.8", f"{self.options.mib / mine:.0f} and {self.options.mib / seconds:.0f} MiB/s")
        row(f"{what}: memory in MiB", memory, "< 256")

    def put(self):
        copy = [self.rclone, "--config", "", "copyto", "--s3-upload-concurrency", "8", "--s3-chunk-size", "8M", "--s3-upload-cutoff", "8M", self.model]
        pieces, etags = self.base / "pieces", self.base / "etags"
        pieces.mkdir()
        subprocess.run(["split", "-b", "8M", "-a", "4", self.model, pieces / "p"], check=True)
        etags.write_text("\n".join(hashlib.md5(piece.read_bytes()).hexdigest() for piece in sorted(pieces.iterdir())))
        ways = {"ckpt": lambda i: [CKPT, "convert", self.model, f"s3://bucket/c{i}.safetensors", "--to", "safetensors"],
                "rclone": lambda i: [*copy, f"{self.bucket}/r{i}"],
                **{name: lambda i, checked=checked: [sys.executable, "-S", "-c", CURL_PUT, f"{self.url}/bucket/u{checked}{i}", f"{KEY}:{SECRET}", pieces, etags, checked]
                   for name, checked in (("curl", "1"), ("curl, unchecked", "0"))}}
        times, memory = compare(self.options.rounds, ways, self.env)
        self.tell("put", times.pop("ckpt"), times, memory["ckpt"])

    def fetch(self, what, source, others):
        here = self.base / "here"

        def tidy():
            shutil.rmtree(here, ignore_errors=True)
            here.mkdir()

        ckpt = [CKPT, "convert", source, here / "c.safetensors", "--to", "safetensors", "--no-sync"]
        times, memory = compare(self.options.rounds, {"ckpt": ckpt, **others}, self.env, tidy)
        self.tell(what, times.pop("ckpt"), times, memory["ckpt"])

    def rclone_get(self, source):
        return [self.rclone, "--config", "", "copyto", "--multi-thread-streams", "8", "--multi-thread-cutoff", "8M", "--multi-thread-chunk-size", "8M", source,
                self.base / "here" / "r"]

    def get(self):
        self.fetch("get", "s3://bucket/get.safetensors", {"rclone": self.rclone_get(f"{self.bucket}/get.safetensors")})

    def http(self):
        size, url = self.model.stat().st_size, f"{self.web}/model.safetensors"
        curl, step = ["curl", "-sfZ", "--parallel-max", "8"], (size + 7) // 8
        for i in range(8):
            curl += ["-r", f"{i * step}-{min(size, (i + 1) * step) - 1}", "-o", self.base / "here" / f"part{i}", url] + (["--next", "-sf"] if i < 7 else [])
        self.fetch("http", url, {"rclone": self.rclone_get(f":http,url='{self.web}':model.safetensors"), "curl": curl})

    def dump(self):
        if os.geteuid() != 0:
            print("dump: needs root")
            return
        program = f"import os\ndata = [os.urandom(1 << 20) for _ in range({self.options.mib})]\nprint(flush=True)\nos.read(0, 1)\n"
        with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
            process.stdout.readline()
            dump = [CKPT, "dump", "-R", "-p", process.pid, "--no-prev", "--external-pipes", "null", "--force", "-f"]
            copy = [self.rclone, "--config", "", "copy", "--transfers", "8", "--s3-upload-concurrency", "8", "--s3-chunk-size", "8M", "--s3-upload-cutoff", "8M"]
            ways = {"ckpt": [*dump, "s3://bucket/image"], "disk": [*dump, self.base / "image"],
                    "rclone": lambda i: [*copy, self.base / "image", f"{self.bucket}/copy{i}"]}
            times, memory = compare(self.options.rounds, ways, self.env)
            process.kill()
        slower = max(times["disk"], times["rclone"])
        row("dump: against disk or rclone, the slower", slower / times["ckpt"], ">= 0.8",
            f"{times['ckpt']:.2f} s; disk {times['disk']:.2f} s, rclone {times['rclone']:.2f} s")
        row("dump: memory in MiB", memory["ckpt"], "< 256")

    def metadata(self):
        many = self.base / "many.safetensors"
        count, header = 100_000, {}
        for i in range(count):
            header[f"model.layers.{i // 10}.block.{i % 10}.weight"] = {"dtype": "BF16", "shape": [16, 32], "data_offsets": [i * 1024, (i + 1) * 1024]}
        text = json.dumps(header).encode()
        with open(many, "wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            out.truncate(out.tell() + count * 1024)
        trip, _ = compare(9, {"one": ["curl", "-sf", "-r", "0-7", "-o", os.devnull, f"{self.web}/many.safetensors"], "none": ["curl", "--version"]}, self.env)
        round_trip = max(trip["one"] - trip["none"], 0)
        times, memory = compare(2 * self.options.rounds, {"there": [CKPT, "load-metadata", f"{self.web}/many.safetensors"], "here": [CKPT, "load-metadata", many]},
                                self.env)
        allowed = 1.5 * times["here"] + 10 * round_trip
        row("metadata: of what is allowed", times["there"] / allowed, "<= 1",
            f"{times['there'] * 1e3:.0f} ms; here {times['here'] * 1e3:.0f} ms, a round trip {round_trip * 1e3:.1f} ms")
        row("metadata: memory in MiB", memory["there"], "< 256")

    def large(self):
        """One file of safetensors; twenty of them with an index, whose shapes lie in the files; and torch's format, of which one file says all."""
        files, count, size = 20, 5000, 100_000_000_000
        tensor, objects, index = size // count // 4 * 4, {}, {}

        def safetensors(names, length):
            header = {name: {"dtype": "F32", "shape": [length // 4], "data_offsets": [i * length, (i + 1) * length]} for i, name in enumerate(names)}
            text = json.dumps(header).encode()
            return Sparse(len(text).to_bytes(8, "little") + text, 8 + len(text) + len(header) * length)

        keys = [f"t.{i}" for i in range(count)]
        for f in range(files):
            name, own = f"model-{f + 1:05}-of-{files:05}.safetensors", keys[f * count // files : (f + 1) * count // files]
            objects[f"hub/{name}"] = safetensors(own, tensor)
            index.update({key: name for key in own})
        objects["hub/model.safetensors.index.json"] = json.dumps({"metadata": {"total_size": count * tensor}, "weight_map": index}).encode()
        objects["one.safetensors"] = safetensors(keys, tensor)
        small = safetensors(keys, 4)
        (self.base / "small.safetensors").write_bytes(small[0 : len(small)])
        subprocess.run([CKPT, "convert", self.base / "small.safetensors", self.base / "dcp", "--to", "dcp", "--files", str(files), "-q"], check=True)
        for path in (self.base / "dcp").iterdir():
            objects[f"dcp/{path.name}"] = path.read_bytes() if path.name.startswith(".") else Sparse(b"", size // files)
        for name, what, bar in (("one.safetensors", "one file", 10), ("dcp", "torch's", 10), ("hub", f"{files} files", files + 10)):
            SparseS3.sent = 0
            with Server(SparseS3, buckets={"bucket": objects}, page=1000) as server:
                env = {**self.env, "AWS_ENDPOINT_URL": server.url, "AWS_ACCESS_KEY_ID": S3.KEY, "AWS_SECRET_ACCESS_KEY": S3.SECRET}
                seconds, _ = timed([CKPT, "load-metadata", f"s3://bucket/{name}"], env)
                row(f"large: requests, {what}", len(server.http.requests), f"< {bar}", f"{SparseS3.sent / size * 100:.5f} % of its bytes, {seconds:.2f} s")


class Sparse:
    """Bytes of which only the first are kept."""

    def __init__(self, head, size):
        self.head, self.size = head, size

    def __len__(self):
        return self.size

    def __getitem__(self, part):
        begin, end, _ = part.indices(self.size)
        return self.head[begin:end] + bytes(end - max(begin, min(end, len(self.head))))


class SparseS3(S3):
    sent = 0

    def etag_of(self, data):
        return '"%032x"' % len(data)

    def answer(self, status, body=b"", **headers):
        SparseS3.sent += len(body) if self.command == "GET" else 0
        super().answer(status, body, **headers)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="put,get,http,dump,metadata,large")
    options = parser.parse_args()
    python = subprocess.run([TESTS / "interop" / "make_env.sh", "servers"], check=True, capture_output=True, text=True).stdout.strip()
    with tempfile.TemporaryDirectory(prefix="ckpt-bench-") as folder:
        bench = Bench(pathlib.Path(folder), pathlib.Path(python).parent / "rclone", options)
        try:
            for name in options.only.split(","):
                getattr(bench, name)()
        finally:
            bench.close()


if __name__ == "__main__":
    main()
