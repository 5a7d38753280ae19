"""The process that tests move, and what a migration made of it."""
import os
import signal
import subprocess

from harness import Failure, state_of, wait_until
from prompt import CKPT

PEER = os.path.join(os.path.dirname(CKPT), "migrate_peer")


class Peer:
    """A process that counts; it and what a migration made of it."""

    def __init__(self, mib=4):
        self.file = os.path.abspath("count")
        with open("errors", "wb") as errors:
            self.process = subprocess.Popen([PEER, self.file, str(mib)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
                                            start_new_session=True)
        self.pid = self.process.pid
        wait_until(lambda: self.count() > 2, "the peer counts")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in self.all():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        wait_until(lambda: not self.all(), "all have ended")

    def count(self):
        try:
            with open(self.file, "rb") as stream:
                return int.from_bytes(stream.read(8), "little")
        except OSError:
            return 0

    def all(self):
        """Those that live, stopped ones too."""
        out = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    with open(f"/proc/{entry}/cmdline", "rb") as stream:
                        words = stream.read().split(b"\0")
                except OSError:
                    continue
                if words[0] == PEER.encode() and words[1:2] == [self.file.encode()] and state_of(entry) not in ("", "Z", "X"):
                    out.append(int(entry))
        return out

    def problem(self):
        """One of them counts, and only one of them is not stopped."""
        before = self.count()
        try:
            wait_until(lambda: self.count() > before + 5, "somebody counts", 10)
        except Failure:
            return f"nobody counts: {[(pid, state_of(pid)) for pid in self.all()]}"
        if os.path.exists(self.file + ".bad"):
            with open(self.file + ".bad", encoding="ascii") as stream:
                return stream.read()
        running = [pid for pid in self.all() if state_of(pid) not in ("T", "t")]
        return None if len(running) == 1 else f"{len(running)} run"
