#!/usr/bin/env python3
"""fio writes and reads a file through io_uring, or through AIO contexts (libaio), past the page cache where the disk allows it,
with sixteen requests in flight all the time. It is dumped twice in a row, and verifies every block by its checksum."""
import os
import subprocess

from app import expect, find, install, main, ring_requests
from harness import read_text

SIZE = 48 << 20
BLOCK = 4096


def allows_direct(folder):
    probe = os.path.join(folder, "probe")
    done = subprocess.run(["dd", "if=/dev/zero", f"of={probe}", "bs=4096", "count=1", "oflag=direct"], capture_output=True,
                          check=False)
    return done.returncode == 0


def aio_requests(pid):
    """As many as the blocks that it has moved, about."""
    moved = [int(line.split()[1]) for line in read_text(f"/proc/{pid}/io").splitlines() if line.startswith(("read_bytes", "write_bytes"))]
    return sum(moved) // BLOCK


def test(run):
    install(fio="fio")
    direct = int(allows_direct(run.folder))
    requests = ring_requests if run.variant == "io_uring" else aio_requests
    fio = run.start("fio", [find("fio"), "--name=verify", "--thread", f"--filename={run.folder}/data", f"--size={SIZE}",
                            f"--ioengine={run.variant}", "--rw=randrw", f"--bs={BLOCK}", "--iodepth=16", f"--direct={direct}",
                            "--verify=crc32c", "--verify_fatal=1", "--verify_backlog=256", "--loops=40", "--rate_iops=6000",
                            "--randseed=7"])
    for _ in range(2):
        at = requests(fio.pid)
        fio.wait_for(lambda: requests(fio.pid) > at + 2000, "made requests")
        fio.checkpoint(between=lambda: None)
    at = requests(fio.pid)
    fio.wait_for(lambda: requests(fio.pid) > at + 2000, "made requests after its restore")
    os.kill(fio.pid, 2)  # it ends its work and prints what it found
    fio.wait_end()
    expect(fio.said(r"err= *(\d+)").group(1), "0", "what fio found wrong")
    expect(fio.said(r"verify: bad|bad magic"), None, "a block that is wrong")


if __name__ == "__main__":
    main(test, variants=("io_uring", "libaio"))
