"""Partner copies: what a rank saves also lies in the memory of another node's agent, so that a node that is lost costs no step.

The nodes speak through what the job has (group.py): a gloo group of its own torch.distributed, or MPI. After each save, behind the
training loop, rank r sends its memory to the same local rank of the next node and takes that of the node before into an agent's
segment of its own. A step is protected once every rank's copy of it is complete."""
import contextlib
import ctypes
import json
import math
import struct
import threading
import warnings

from . import _library as library
from . import group
from ._library import FlashError, Library, LoadedInfo

CHUNK = 64 << 20  # bytes that are on the way at a time, in each direction


def _blob(*parts):
    """Some byte strings as one: their sizes as JSON, a newline, and they."""
    return json.dumps([len(part) for part in parts]).encode() + b"\n" + b"".join(parts)


def _unblob(blob):
    sizes, _, rest = blob.partition(b"\n")
    out, at = [], 0
    for size in json.loads(sizes):
        out.append(rest[at:at + size])
        at += size
    return out


def encode_objects(blobs):
    """(path, key, kind, bytes) of each, as bytes: nothing is pickled."""
    return _blob(json.dumps([(path, key, kind) for path, key, kind, _ in blobs]).encode(), *(blob for *_, blob in blobs))


def decode_objects(data):
    head, *blobs = _unblob(data)
    return [(path, key, kind, blob) for (path, key, kind), blob in zip(json.loads(head), blobs)]


class Memory:
    """Tensors of one rank and step as one range of bytes, and what describes it."""

    def __init__(self, shapes, places, sizes, blobs, capacity):
        self.shapes = json.dumps(shapes).encode()
        self.objects = encode_objects(blobs)
        self.capacity = capacity
        used = [(place, size) for place, size in zip(places, sizes) if size > 0]
        self.address = min((place for place, _ in used), default=0)
        self.bytes = max((place + size for place, size in used), default=0) - self.address

    @classmethod
    def of_loaded(cls, info):
        """Of what `look` gave; valid until that is unloaded."""
        shapes, sizes = [], []
        for at in range(info.tensors):
            one = info.tensor[at]
            shape, whole, offset = ([numbers[i] for i in range(one.dims)]
                                    for numbers in (one.shape, one.global_shape, one.global_offset))
            dtype = one.dtype.decode()
            shapes.append((one.key.decode(), dtype, shape, whole, offset, library.path_of(one.path, one.steps)))
            sizes.append(math.prod(shape) * library.ITEM_BYTES[dtype])
        blobs = [(library.path_of(one.path, one.steps), one.key.decode(), one.kind, ctypes.string_at(one.data, one.bytes))
                 for one in (info.object[at] for at in range(info.objects))]
        places = [info.data[at] for at in range(info.tensors)]
        return cls(shapes, places, sizes, blobs, max(1 << 20, 2 * sum(len(blob[3]) for blob in blobs) + (1 << 16)))


def check_ranks(rank, world, local_world):
    """ValueError: there can be no partners."""
    job = group.running(world)
    if job is None:
        raise ValueError(f"partners=1 needs torch.distributed or MPI (mpi4py) with these {world} ranks: the nodes speak through it")
    if job.rank != rank:  # what is sent to a rank has to come to that one
        raise ValueError(f"partners=1: rank {rank} is rank {job.rank} of the job's own group")
    if world == local_world or world % local_world:
        raise ValueError(f"partners=1 needs nodes of the same number of ranks, and two at least: "
                         f"{world} ranks, {local_world} on this node")


class Partner:
    """Of one engine. Every rank calls the same methods in the same order."""

    def __init__(self, engine):
        self._engine = engine
        self._to = (engine.rank + engine.local_world) % engine.world
        self._source = (engine.rank - engine.local_world) % engine.world
        self._channel = group.running(engine.world).channel(engine.timeout)
        self._channel.user = self  # stays as long as memory that is on the way
        self._copy = None          # the handle to our own agent, as the rank whose copies we keep
        self._job = None
        #: Why there are no more copies; empty: there are. Nobody knows then which ranks take the last step for protected, so that
        #: neither it nor the one before may be written over: saves are skipped.
        self.broken = ""
        #: The newest step of which every rank's copy is complete.
        self.protected_step = None
        agents = self._channel.gather(_agent_of(engine))
        if agents[self._to] == agents[engine.rank]:
            raise ValueError(f"rank {engine.rank} and its partner, rank {self._to}, have the same agent: they are on one node")

    @property
    def channel(self):
        """For somebody else's exchange. In one that failed half-way there may be messages left, which the next would take for its own."""
        if self.broken:
            raise RuntimeError(f"the ranks' channel is not used any more: {self.broken}")
        return self._channel

    # --- after a save ---

    def protect(self, step, memory, done):
        """Sends `memory` behind the loop once done() says that it is complete; None: this rank has skipped the step.
        `memory` stays as it is until `settle` has returned."""
        self._job = threading.Thread(target=self._run, args=(step, memory, done), name="ckpt-partner", daemon=True)
        self._job.start()

    def settle(self):
        """Waits for the copy that is under way; then the engine's handle knows which step to keep."""
        if self._job is None:
            return
        self._job.join()
        self._job = None
        if self.protected_step is not None:
            engine = self._engine
            engine._again(lambda: engine._library.keep(self.protected_step))

    def is_busy(self):
        return self._job is not None and self._job.is_alive()

    def close(self):
        """True: MPI may still write to memory, or read it, so that it has to stay until the process has ended."""
        self.settle()
        if self._channel.is_stuck:
            return True
        if not self.broken:
            self._channel.close()
        if self._copy is not None:
            self._copy.close()
        return False

    def _run(self, step, memory, done):
        try:
            while not done():
                threading.Event().wait(0.001)
            if self._exchange(step, memory):
                self.protected_step = step
                handle = self._copy_handle()
                self._engine._again(lambda: handle.keep(step), handle)
        except Exception as error:  # a rank that is gone: the launcher hears of it by the job's own calls
            self.broken = f"the partner copies of step {step} are not complete: {error}"
            warnings.warn(self.broken, stacklevel=1)

    def _exchange(self, step, memory):
        """Whether every rank's copy is complete."""
        told = bytearray(16)
        self._channel.swap(struct.pack("<qq", step, memory is not None), self._to, told, self._source)
        their_step, there = struct.unpack("<qq", told)
        if their_step != step:
            raise RuntimeError(f"rank {self._source} saves step {their_step}, and this one step {step}")
        receive = _Receive(self, self._copy_handle, step) if there else None
        self._transfer(memory, self._to, receive, self._source)
        why = receive.finish() if receive else ""
        if why:
            warnings.warn(f"the partner copy of rank {self._source}, step {step}, was not kept: {why}", stacklevel=1)
        return self._all(memory is not None and receive is not None and not why)

    def _copy_handle(self):
        if self._copy is None:
            engine = self._engine
            self._copy = Library(engine.checkpoint_dir, engine.socket, self._source, engine.world, engine.local_world, 1, True)
            self._copy.check(self._copy.opened)
        return self._copy

    # --- for a load ---

    def gather_step(self):
        """`_gather_step`. Where the others did not answer there are no more copies, as after a save."""
        try:
            return self._gather_step()
        finally:
            if self._channel.is_stuck:
                self.broken = self.broken or "the other ranks did not answer when a step was loaded"

    def _gather_step(self):
        """(the newest step that every rank has somewhere in memory, whether this rank's came from a partner). Ranks that
        have lost it have it in their agent's memory again when this returns; (None, False): there is none."""
        engine, status = self._engine, self._engine.status()
        held = {kind: {one["rank"]: one["steps"] for one in status[kind]} for kind in ("ranks", "partner_copies")}
        reports = [{kind: {int(rank): set(steps) for rank, steps in ranks.items()} for kind, ranks in report.items()}
                   for report in self._channel.gather(held)]
        common = None
        for rank in range(engine.world):
            steps = set().union(*(report[kind].get(rank, set()) for report in reports for kind in report))
            common = steps if common is None else common & steps
        if not common:
            return None, False
        step = max(common)
        lost = [rank for rank in range(engine.world) if step not in reports[rank]["ranks"].get(rank, set())]
        why = ""
        for rank in lost:  # one after the other, as every rank sees them: nobody waits for somebody who waits for him
            keepers = [q for q in range(engine.world) if any(step in reports[q][kind].get(rank, set()) for kind in reports[q])]
            keeper = keepers[rank % len(keepers)]
            if keeper == engine.rank:
                self._give(rank, step)
            elif rank == engine.rank:
                receive = _Receive(self, lambda: engine._library, step)
                self._transfer(None, None, receive, keeper)
                why = receive.finish()
        if not self._all(not why):
            warnings.warn(f"step {step} was not brought back from partners" + (f": {why}" if why else ""), stacklevel=1)
            return None, False
        self._protect_again(step, reports)
        return step, engine.rank in lost

    def _protect_again(self, step, reports):
        """What the job goes on from is protected before anything is saved: only what a partner lacks is sent."""
        engine = self._engine
        lacks = [step not in reports[(rank + engine.local_world) % engine.world]["partner_copies"].get(rank, set())
                 for rank in range(engine.world)]
        why = ""
        receive = _Receive(self, self._copy_handle, step) if lacks[self._source] else None
        with self._look(engine.rank, step) if lacks[engine.rank] else contextlib.nullcontext() as memory:
            if memory or receive:
                self._transfer(memory, self._to, receive, self._source)
        why = receive.finish() if receive else ""
        if self._all(not why):
            handle = self._copy_handle()
            engine._again(lambda: handle.keep(step), handle)
            engine._again(lambda: engine._library.keep(step))
            self.protected_step = step

    @contextlib.contextmanager
    def _look(self, rank, step):
        """What our agent has of it, as a Memory."""
        result = ctypes.POINTER(LoadedInfo)()
        self._engine._again(lambda: self._engine._library.look(rank, step, ctypes.byref(result)))
        try:
            yield Memory.of_loaded(result.contents)
        finally:
            self._engine._library.unload(result)

    def _give(self, rank, step):
        with self._look(rank, step) as memory:
            self._transfer(memory, rank, None, None)

    # --- between ranks ---

    def _transfer(self, memory, to, receive, source):
        """Sends a Memory, receives one, or both at once: sizes, descriptions, objects, then the bytes in chunks."""
        numbers = bytearray(32)
        self._channel.swap(struct.pack("<4q", len(memory.shapes), len(memory.objects), memory.bytes, memory.capacity) if memory else None,
                           to, numbers if receive else None, source)
        shapes_bytes, objects_bytes, nbytes, capacity = struct.unpack("<4q", numbers)
        shapes, objects = bytearray(shapes_bytes), bytearray(objects_bytes)
        self._channel.swap(memory.shapes if memory else None, to, shapes, source)
        self._channel.swap(memory.objects if memory else None, to, objects, source)
        view = _view(memory.address, memory.bytes) if memory else b""
        into = b""  # nowhere
        if receive:
            address = receive.begin(bytes(shapes), bytes(objects), nbytes, capacity)
            into = _view(address, nbytes) if address else b""
        scratch = None
        for at in range(0, max(len(view), nbytes), CHUNK):
            part = into[at:at + CHUNK]
            if at < nbytes and not into:  # it cannot be kept, and has to be taken all the same
                scratch = scratch or bytearray(min(CHUNK, nbytes))
                part = memoryview(scratch)[:min(CHUNK, nbytes - at)]
            self._channel.swap(view[at:at + CHUNK], to, part, source)

    def _all(self, good):
        """Whether it is so on every rank."""
        return all(self._channel.gather(bool(good)))


def _view(address, size):
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B") if size > 0 else memoryview(b"")


class _Receive:
    """A step that comes in, as a save of a handle: complete in the agent's memory when `finish` returns "", else as if it had not
    been. What goes wrong is kept for `finish`, so that the other end is not left waiting."""

    def __init__(self, partner, handle, step):
        self._partner, self._handle, self._step = partner, handle, step
        self._objects, self._begun, self._why = [], False, ""

    def begin(self, shapes, objects, nbytes, capacity):
        """Where the bytes go; 0: nowhere."""
        try:
            shapes, self._objects = json.loads(shapes), decode_objects(objects)
            places = (ctypes.c_void_p * max(1, len(shapes)))()
            handle, engine = self._handle(), self._partner._engine

            def begin():
                handle.declare(library.tensors_of(shapes), len(shapes), capacity)
                handle.begin(self._step, library.WAIT, int(engine.timeout * 1000), places)

            engine._again(begin, handle)
            self._begun = True
            sizes = [math.prod(shape) * library.ITEM_BYTES[dtype] for _, dtype, shape, *_ in shapes]
            used = [(place, size) for place, size in zip(places, sizes) if size > 0]
            if not used:
                return 0
            address = min(place for place, _ in used)
            if max(place + size for place, size in used) - address != nbytes:
                raise FlashError(1, "the sender's layout is another")
            return address
        except (FlashError, ValueError, KeyError) as error:
            self._why = str(error)
            return 0

    def finish(self):
        try:
            if self._begun and not self._why:
                self._handle().commit(library.objects_of(self._objects), len(self._objects), 0, None)
            elif self._begun:
                self._handle().abort()
        except FlashError as error:
            self._why = self._why or str(error)
        return self._why


def _agent_of(engine):
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot:
        return [boot.read().strip(), engine.status()["pid"]]
