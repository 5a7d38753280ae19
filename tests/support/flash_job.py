"""A job of trainers without torch, for tests of flash checkpoints: forked processes of one program that speak through socket pairs, with a
state of which every byte says which step and rank it is of."""
import array
import json
import mmap
import os
import select
import signal
import socket

ELEMENTS = 60_000
LEVELS = ("none", "memory", "partner", "storage")


class Links:
    """One socket to each other rank: what ckpt_flash/group.py calls a channel."""

    is_stuck = False

    def __init__(self, rank, sockets, visit=lambda: None):
        self._rank, self._sockets, self._visit = rank, sockets, visit

    def swap(self, mine, to, theirs, source):
        out, into = memoryview(mine or b""), memoryview(theirs or b"")
        if len(out) > 4096:
            self._visit()
        while out or into:
            ready, free, _ = select.select([self._sockets[source]] if into else [], [self._sockets[to]] if out else [], [])
            if free:
                out = out[self._sockets[to].send(out[:65536]):]
            if ready:
                into = into[self._some(source, into):]

    def gather(self, value):
        text = json.dumps(value).encode()
        for other in self._sockets.values():
            other.sendall(len(text).to_bytes(4, "little") + text)
        got = {other: json.loads(self._exactly(other, int.from_bytes(self._exactly(other, 4), "little"))) for other in self._sockets}
        return [got.get(rank, value) for rank in range(len(self._sockets) + 1)]

    def close(self):
        pass

    def _exactly(self, other, size):
        out = bytearray(size)
        into = memoryview(out)
        while into:
            into = into[self._some(other, into):]
        return out

    def _some(self, other, into):
        got = self._sockets[other].recv_into(into)
        if got == 0:
            raise ConnectionError(f"rank {other} is gone")
        return got


class Job:
    """What ckpt_flash/group.py calls a job."""

    def __init__(self, rank, world, visit=lambda: None):
        self.rank, self.world, self._visit = rank, world, visit
        self._sockets = [{}, {}]

    @classmethod
    def of(cls, world):
        """One for each rank; the ranks are forked afterwards, and each ends those of the others."""
        out = [cls(rank, world) for rank in range(world)]
        for a in range(world):
            for b in range(a):
                for which in (0, 1):
                    out[a]._sockets[which][b], out[b]._sockets[which][a] = socket.socketpair()
        return out

    def visited(self, visit):
        self._visit = visit

    def end(self):
        for which in self._sockets:
            for one in which.values():
                one.close()

    def gather(self, value):
        # A step, or a set of those, comes as what JSON can say.
        return [_from_json(one) for one in Links(self.rank, self._sockets[0]).gather(_to_json(value))]

    def channel(self, timeout):
        del timeout
        return Links(self.rank, self._sockets[1], self._visit)


def _to_json(value):
    if isinstance(value, (set, tuple)):
        return [type(value).__name__, [_to_json(one) for one in value]]
    return value


def _from_json(value):
    if isinstance(value, list):
        return {"set": set, "tuple": tuple}[value[0]](_from_json(one) for one in value[1])
    return value


def state_of(step, rank, wide=False):
    """`wide`: of another layout."""
    out = {"w": {str(rank): array.array("q", [step * 1000 + rank]) * ELEMENTS}, "both": array.array("q", [step]) * 1000,
           "rng": f"{step}/{rank}"}
    return out | {"wide": array.array("q", [step]) * 5000} if wide else out


def check(loaded, rank):
    """The step, if all of it is of that."""
    step = loaded.step
    wanted = state_of(step, rank, "wide" in loaded)
    for mine, other in ((loaded["w"][str(rank)], wanted["w"][str(rank)]), (loaded["both"], wanted["both"]),
                        (loaded.get("wide", b""), wanted.get("wide", b""))):
        assert bytes(memoryview(mine).cast("B")) == bytes(memoryview(other).cast("B")), f"rank {rank}: a torn step {step}"
    assert loaded["rng"] == wanted["rng"], loaded["rng"]
    return step


class Told:
    """Numbers that ranks tell whoever has started them: memory that outlives them."""
    NAMES = ("begun", "saved", "protected", "loaded", "level", "agent", "done", "failed")

    def __init__(self, world):
        self.world = world
        self._numbers = memoryview(mmap.mmap(-1, 8 * len(self.NAMES) * world)).cast("Q")

    def tell(self, rank, **numbers):
        for name, number in numbers.items():
            self._numbers[rank * len(self.NAMES) + self.NAMES.index(name)] = number

    def all(self, name):
        return [self._numbers[rank * len(self.NAMES) + self.NAMES.index(name)] for rank in range(self.world)]


def fork(body, *arguments):
    """A child that runs it and ends, whatever becomes of it; its pid. 1: it has failed."""
    pid = os.fork()
    if pid != 0:
        return pid
    status = 1
    try:
        body(*arguments)
        status = 0
    except ConnectionError:
        pass  # another rank is gone
    except BaseException:
        import traceback
        traceback.print_exc()
    finally:
        os._exit(status)


def end(pids):
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    for pid in pids:
        try:
            os.waitpid(pid, 0)
        except ChildProcessError:
            pass
