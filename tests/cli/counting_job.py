"""The job of the tests of watch and guard: it counts in memory, says so in a file of its folder, and checks itself; and what it says."""
import contextlib
import json
import os
import time

# Ends with the code in the file "stop". starts.PID tells how often it began anew. An argument: so many MiB of ballast.
COUNTER = """
import os, sys, time
table, count, told = [7 * i for i in range(200000)], 0, os.open("count", os.O_CREAT | os.O_WRONLY)
os.close(os.open("starts." + str(os.getpid()), os.O_CREAT | os.O_WRONLY))
ballast = os.urandom(int(sys.argv[1]) << 20) if len(sys.argv) > 1 else b""
while not os.path.exists("stop"):
    assert all(table[i] == 7 * i for i in range(count % 1000, len(table), 1000)), "memory"
    count += 1
    os.pwrite(told, b"%010d" % count, 0)
    time.sleep(0.005)
sys.exit(int(open("stop").read() or 0))
"""


def read(path):
    with open(path, encoding="utf-8", errors="replace") as stream:
        return stream.read()


def wait_until(what, condition, seconds=30):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.01)
    told = [read(path)[-3000:] for path in ("events", "errors") if os.path.exists(path)]
    raise TimeoutError(f"{what}: {' '.join(told)}")


def count():
    with contextlib.suppress(OSError, ValueError):
        return int(read("count"))
    return 0


def events(kind=None):
    """What watch or guard has told with --json, into the file "events"."""
    lines = [json.loads(line) for line in read("events").splitlines(True) if line.endswith("\n")]
    return [line for line in lines if kind is None or line["event"] == kind]


def is_alive(pid):
    with contextlib.suppress(OSError):
        return read(f"/proc/{pid}/stat").rpartition(") ")[2][0] not in "ZX"
    return False
