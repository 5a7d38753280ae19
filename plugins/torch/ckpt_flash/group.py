"""What a job's ranks speak through: its own torch.distributed, or MPI where it has that; nothing of our own.

`running` finds it. A channel is a group of all ranks that nothing else uses, for partner copies, from another thread than the training's."""
import datetime
import json
import struct
import sys
import time

from . import state as states

POLLED = 4096  # bytes: a message that somebody may be late for


class TorchJob:
    def __init__(self, torch):
        self._torch, self._dist = torch, torch.distributed
        self.rank, self.world = self._dist.get_rank(), self._dist.get_world_size()

    def gather(self, value):
        """Every rank's value."""
        out = [None] * self.world
        self._dist.all_gather_object(out, value)
        return out

    def channel(self, timeout):
        return TorchChannel(self._torch, self.world, timeout)


class TorchChannel:
    """A gloo group: the memory that goes through it is the host's."""

    is_stuck = False  # gloo ends what took too long

    def __init__(self, torch, world, timeout):
        self._torch, self._dist, self._world = torch, torch.distributed, world
        self._group = self._dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=timeout))

    def swap(self, mine, to, theirs, source):
        """`mine` goes to one rank, `theirs` comes from another: buffers. None: there is nothing to send, or to wait for."""
        work = []
        if mine is not None and len(mine) > 0:
            work.append(self._dist.isend(self._tensor(mine), to, group=self._group))
        if theirs is not None and len(theirs) > 0:
            work.append(self._dist.irecv(self._tensor(theirs), source, group=self._group))
        for one in work:
            one.wait()

    def gather(self, value):
        """Every rank's value, which JSON can say."""
        text = json.dumps(value).encode()
        sizes = [self._torch.zeros(1, dtype=self._torch.int64) for _ in range(self._world)]
        self._dist.all_gather(sizes, self._torch.tensor([len(text)]), group=self._group)
        most = max(int(size) for size in sizes)
        texts = [self._torch.empty(most, dtype=self._torch.uint8) for _ in sizes]
        self._dist.all_gather(texts, self._tensor(text.ljust(most)), group=self._group)
        return [json.loads(one[:int(size)].numpy().tobytes()) for one, size in zip(texts, sizes)]

    def close(self):
        """torch.distributed ends its groups itself."""

    def _tensor(self, data):
        return self._torch.frombuffer(bytearray(data) if isinstance(data, bytes) else data, dtype=self._torch.uint8)


class MpiJob:
    """MPI_COMM_WORLD, by mpi4py."""

    def __init__(self, mpi):
        self._mpi = mpi
        self.rank, self.world = mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size()

    def gather(self, value):
        return self._mpi.COMM_WORLD.allgather(value)

    def channel(self, timeout):
        if self._mpi.Query_thread() != self._mpi.THREAD_MULTIPLE:
            raise ValueError("partners=1 over MPI needs an MPI that was initialised with MPI_THREAD_MULTIPLE: copies go behind the loop")
        # One that was closed, the same on every rank: freeing a communicator is a call of all ranks, which no longer run together.
        spare = set.intersection(*map(set, self.gather(sorted(MpiChannel.spare))))
        if spare:
            number = min(spare)
            comm = MpiChannel.spare.pop(number)
        else:
            MpiChannel.made = number = MpiChannel.made + 1
            comm = self._mpi.COMM_WORLD.Dup()
        return MpiChannel(self._mpi, comm, number, timeout)


class MpiChannel:
    """`number`: of its communicator, alike on every rank. `timeout`: seconds that an exchange may take, as gloo's. After one that
    took longer there are no more: what MPI may still write to, or read, has to stay (`is_stuck`)."""

    made, spare = 0, {}

    def __init__(self, mpi, comm, number, timeout):
        self._mpi, self._comm, self.number, self._timeout = mpi, comm, number, timeout
        self._stuck = []

    @property
    def is_stuck(self):
        return bool(self._stuck)

    def close(self):
        """After the last exchange, which all have had a part in."""
        if self._comm is not None and not self._stuck:
            MpiChannel.spare[self.number] = self._comm
        self._comm = None

    def swap(self, mine, to, theirs, source):
        self._check()
        work = []
        if mine is not None and len(mine) > 0:
            work.append(self._comm.Isend([mine, self._mpi.BYTE], dest=to))
        if theirs is not None and len(theirs) > 0:
            work.append(self._comm.Irecv([theirs, self._mpi.BYTE], source=source))
        self._wait(work, all(len(one) <= POLLED for one in (mine, theirs) if one is not None))

    def gather(self, value):
        """Every rank's value, which JSON can say."""
        self._check()
        text = json.dumps(value).encode()
        sizes = bytearray(8 * self._comm.Get_size())
        self._wait([self._comm.Iallgather([struct.pack("<q", len(text)), self._mpi.BYTE], [sizes, 8, self._mpi.BYTE])])
        sizes = struct.unpack(f"<{self._comm.Get_size()}q", sizes)
        most = max(sizes)
        texts = bytearray(most * len(sizes))
        self._wait([self._comm.Iallgather([text.ljust(most), self._mpi.BYTE], [texts, most, self._mpi.BYTE])])
        return [json.loads(texts[at * most:at * most + size]) for at, size in enumerate(sizes)]

    def _check(self):
        if self._stuck:
            raise TimeoutError("an exchange before this one has not ended")
        if self._comm is None:
            raise ValueError("the channel is closed")

    def _wait(self, work, small=True):
        """MPI's own waiting takes a core as long as it lasts, and lasts for ever. So much only a second of bytes that flow gets."""
        began = time.monotonic()
        while not self._mpi.Request.Testall(work):
            waited = time.monotonic() - began
            if waited >= self._timeout:
                self._stuck.append(work)  # requests keep their buffers
                _STUCK.append(self)
                raise TimeoutError(f"the other ranks did not answer for {self._timeout:g} seconds")
            time.sleep(0.0005 if small or waited > 1 else 0)


_STUCK = []  # channels as long as the process is


def running(world=None):
    """The job that this process is a rank of, of as many ranks as `world` where that is said; None: there is none."""
    torch = states.torch_module()
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        job = TorchJob(torch)
    else:
        mpi = sys.modules.get("mpi4py.MPI")
        job = MpiJob(mpi) if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized() else None
    return job if job is not None and world in (None, job.world) else None
