#!/usr/bin/env python3
"""ckpt convert to a bucket against rclone's copy of the same file, both eight parts of 8 MiB at a time, to rclone's own server on loopback.

    bench.py [--mib 512] [--rounds 3]

Wants the environment "servers" of tests/interop. Never fails on a time: ratios are printed.
"""
import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import tempfile
import time

TESTS = pathlib.Path(__file__).resolve().parents[2]
CKPT = os.environ.get("CKPT_BIN", str(TESTS.parent / "build" / "ckpt"))
KEY, SECRET = "AKIDEXAMPLEKEY", "secret/with+signs="


def timed(command, env):
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, command
    return time.monotonic() - start, usage.ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    python = subprocess.run([TESTS / "interop" / "make_env.sh", "servers"], check=True, capture_output=True, text=True).stdout.strip()
    rclone = pathlib.Path(python).parent / "rclone"
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="ckpt-bench-") as folder:
        base = pathlib.Path(folder)
        (base / "store" / "bucket").mkdir(parents=True)
        size = options.mib << 20
        header = json.dumps({"t": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
        with open(base / "m.safetensors", "wb") as out:
            out.write(len(header).to_bytes(8, "little") + header)
            for _ in range(options.mib):
                out.write(os.urandom(1 << 20))
        url = f"http://127.0.0.1:{port}"
        server = subprocess.Popen([rclone, "serve", "s3", "--config", "", "--auth-key", f"{KEY},{SECRET}", "--addr", f"127.0.0.1:{port}", base / "store"],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        env = {**os.environ, "AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}
        remote = f":s3,provider=Rclone,env_auth=true,endpoint='{url}',force_path_style=true:bucket/r"
        ways = {"rclone": lambda i: [rclone, "--config", "", "copyto", "--s3-upload-concurrency", "8", "--s3-chunk-size", "8M", "--s3-upload-cutoff", "8M",
                                     base / "m.safetensors", f"{remote}{i}"],
                "ckpt": lambda i: [CKPT, "convert", base / "m.safetensors", f"s3://bucket/c{i}.safetensors", "--to", "safetensors"]}
        times, memory = {name: [] for name in ways}, {name: 0 for name in ways}
        try:
            time.sleep(1)
            for i in range(options.rounds):
                for name, command in ways.items():
                    seconds, most = timed(command(i), env)
                    times[name].append(seconds)
                    memory[name] = max(memory[name], most)
        finally:
            server.kill()
            server.wait()
        median = {name: statistics.median(all_of) for name, all_of in times.items()}
        for name in ways:
            print(f"{name}: {options.mib / median[name]:.0f} MiB/s, {memory[name]:.0f} MiB of memory")
        print(f"ckpt / rclone: {median['rclone'] / median['ckpt']:.2f}")


if __name__ == "__main__":
    main()
