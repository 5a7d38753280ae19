#!/usr/bin/env python3
"""fio writes and reads a file through io_uring, past the page cache where the disk allows it, with sixteen requests in
flight all the time. It is dumped twice in a row, and verifies every block by its checksum."""
import os
import subprocess

from app import expect, find, install, main, ring_requests

SIZE = 48 << 20


def allows_direct(folder):
    probe = os.path.join(folder, "probe")
    done = subprocess.run(["dd", "if=/dev/zero", f"of={probe}", "bs=4096", "count=1", "oflag=direct"], capture_output=True,
                          check=False)
    return done.returncode == 0


def test(run):
    install(fio="fio")
    direct = int(allows_direct(run.folder))
    fio = run.start("fio", [find("fio"), "--name=verify", "--thread", f"--filename={run.folder}/data", f"--size={SIZE}",
                            "--ioengine=io_uring", "--rw=randrw", "--bs=4k", "--iodepth=16", f"--direct={direct}",
                            "--verify=crc32c", "--verify_fatal=1", "--verify_backlog=256", "--loops=40", "--rate_iops=6000",
                            "--randseed=7"])
    for more in (2000, 4000):
        fio.wait_for(lambda: ring_requests(fio.pid) > more, "made requests")
        fio.checkpoint(between=lambda: None)
    at = ring_requests(fio.pid)
    fio.wait_for(lambda: ring_requests(fio.pid) > at + 2000, "made requests after its restore")
    os.kill(fio.pid, 2)  # it ends its work and prints what it found
    fio.wait_end()
    expect(fio.said(r"err= *(\d+)").group(1), "0", "what fio found wrong")
    expect(fio.said(r"verify: bad|bad magic"), None, "a block that is wrong")


if __name__ == "__main__":
    main(test)
