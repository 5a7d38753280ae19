"""The engine that a training loop holds."""
import atexit
import ctypes
import json
import math
import os
import subprocess
import sys
import time
import warnings
import weakref
from ctypes import byref, c_void_p

from . import _library as library
from . import group
from . import state as states
from ._library import ANY_STEP, Busy, FlashError, LEVELS, Library, Lost, NotFound, SavedInfo
from .partner import Memory, Partner, check_ranks
from .pinned import Pinned

_agents = []  # that this process started: kept, for they are nobody's to wait for
_IF_BUSY = {"skip": library.SKIP, "wait": library.WAIT, "fail": library.FAIL}
_FROM = {"best": 0, "memory": 1, "storage": 2}


class Saved:
    """What a save did. False where it was skipped."""

    def __init__(self, step, skipped="", info=None, under_way=None):
        self.step, self.skipped = step, skipped
        self._under_way = under_way
        #: Of a snapshot: bytes that are copied behind the trainer.
        self.protected_bytes = info.protected_bytes if info else 0
        self.copy_us = info.copy_us if info else 0
        self.total_us = info.total_us if info else 0
        self.bytes = info.bytes if info else 0
        newest = info.newest_step if info else ANY_STEP
        #: The newest step that every rank of this node has in memory.
        self.newest_step = None if newest == ANY_STEP else newest

    def __bool__(self):
        return not self.skipped

    def done(self):
        """Whether the step is complete in the agent's memory: at once, but for a snapshot."""
        return self._under_way is None or self._under_way(self, False)

    def wait(self):
        """Until it is."""
        if self._under_way is not None:
            self._under_way(self, True)
        return self

    def __repr__(self):
        return f"Saved(step={self.step}, skipped={self.skipped!r}, total_us={self.total_us}, bytes={self.bytes})"


class Loaded(dict):
    """The state dict, with the step it is of, which level served it (memory, partner, storage), and how long that took."""

    step = None
    level = None
    total_us = 0
    bytes = 0


class Engine:
    """Saves to the memory of the node's agent, which it starts if there is none, and loads from there or from storage.

    checkpoint_dir         the folder of checkpoints; it also names the agent
    max_to_keep            checkpoints in it; 0: all. Computed from what is on disk
    save_mem_interval      steps between saves to memory; 0: every call of save is one
    save_storage_interval  steps between those that the agent writes to storage; 0: only when a trainer or the agent ends
    auto_save              measures what a save costs and saves to memory as often as one percent of the time allows

    format       dcp, torch_dist, torch or safetensors: what is written to storage
    if_busy      skip, wait or fail, where the agent still writes what a save would overwrite. A step that goes to storage
                 waits in any case
    timeout      seconds that a save waits for a buffer, and an exchange of partner copies for the other ranks: where one took longer, this
                 rank's saves are skipped from there on
    rank, world, local_world  of this process; found in torch.distributed, MPI (mpi4py) or the launcher's environment. Where neither says how
                 many ranks a node has, they ask one another: all ranks make their engines then
    start_agent  False: somebody else starts `ckpt agent`
    partners     1: every rank's memory lies in the next node's agent, too, so that a lost node costs no step. All ranks make
                 their engines at the same time, after torch.distributed or MPI is up, and save the same steps
    persist_on_death  the agent writes the newest step when a trainer dies. On several nodes it waits for the others, and may skip saves
    linger       seconds after which an agent without trainers ends; where all of them closed in order, one second
    connect_timeout  seconds to wait for an agent, and for the trainer before this one to be gone
    """

    def __init__(self, checkpoint_dir, max_to_keep=1, save_mem_interval=0, save_storage_interval=0, auto_save=False, *,
                 format="dcp", if_busy="skip", timeout=600.0, rank=None, world=None, local_world=None, threads=0,
                 socket=None, start_agent=True, linger=600, rate=0, connect_timeout=30.0, partners=0,
                 persist_on_death=True):
        if if_busy not in _IF_BUSY:
            raise ValueError("if_busy is skip, wait or fail")
        if partners not in (0, 1) or (partners and auto_save):
            raise ValueError("partners is 0 or 1, and not for auto_save: all ranks have to save the same steps")
        self.checkpoint_dir = os.path.abspath(checkpoint_dir)
        self.save_mem_interval, self.save_storage_interval = save_mem_interval, save_storage_interval
        self.auto_save, self.if_busy, self.timeout, self.format = auto_save, if_busy, timeout, format
        self.skipped = 0
        self.socket = socket
        self._agent = {"max_to_keep": max_to_keep, "linger": linger, "rate": rate, "start": start_agent, "socket": socket,
                       "persist_on_death": persist_on_death}
        self.rank, self.world, self.local_world = _ranks(rank, world, local_world)
        self._threads, self._connect_timeout = threads, connect_timeout
        self._declared = None
        self._warned = False  # of memory for one buffer alone
        self._pinned = Pinned()
        self._tensors = None  # of a snapshot that is under way
        self._channel = None
        self._object_bytes = 0
        self._pace = None
        self._cost = 0.0
        if partners:
            check_ranks(self.rank, self.world, self.local_world)
        if self.world > self.local_world and format not in ("dcp", "torch_dist"):
            raise ValueError(f"several nodes write dcp or torch_dist, not {format}: ckpt convert makes the others of it")
        os.makedirs(self.checkpoint_dir, exist_ok=True)
        self._library = self._open()
        self._finalizer = weakref.finalize(self, _end, self._pinned, self._library)
        atexit.unregister(_exits)
        atexit.register(_exits)  # after weakref's own, so that it is called before that
        self._partner = Partner(self) if partners else None

    # --- saving ---

    def wants(self, step):
        """(to memory, to storage): whether `save` of this step does something."""
        storage = self.save_storage_interval > 0 and step % self.save_storage_interval == 0
        interval = self._interval() if self.auto_save else self.save_mem_interval
        return storage or interval == 0 or step % interval == 0, storage

    def save(self, step, state_dict, *, force=False, persist=None, mode="copy"):
        """Copies the state into the agent's memory if the step is a multiple of an interval; returns a Saved, or None.

        When it returns the step is complete in the agent's memory: it outlives this process. `persist`: whether it goes
        to storage, too; None: by save_storage_interval.

        mode="snapshot": returns once the tensors' pages are held: moved away or, of memory that is shared or was loaded, write-protected.
        They are copied behind the loop, what the loop touches meanwhile first. The step is complete when Saved.done() says
        so, and at the latest when the next call of this engine returns; a trainer that is killed before leaves the step
        before. Tensors that are freed meanwhile are kept until then, and must not give up their memory otherwise (`resize_`
        of a storage). os.fork() waits for it. Where the kernel cannot do it (no right to userfaultfd) it copies."""
        if mode not in ("copy", "snapshot"):
            raise ValueError("mode is copy or snapshot")
        memory, storage = self.wants(step)
        storage = storage if persist is None else persist
        if not (memory or storage or force):
            return None
        began = time.monotonic()
        tensors, objects = states.flatten(state_dict)
        blobs = self._objects(objects)
        if_busy = "wait" if storage else self.if_busy
        saved = self._again(lambda: self._save(step, tensors, blobs, if_busy, storage, mode == "snapshot"))
        if saved:
            cost = time.monotonic() - began
            self._cost = cost if self._cost == 0 else 0.8 * self._cost + 0.2 * cost
        else:
            self.skipped += 1
        return saved

    def prepare(self, state_dict):
        """Tells the agent what will be saved, so that the memory is there when the first save comes."""
        self._settle()
        tensors, objects = states.flatten(state_dict)
        blobs = self._objects(objects)
        self._again(lambda: self._declare(tensors, sum(len(blob) for _, _, _, blob in blobs)))

    def ready(self):
        """Waits until the memory is ready, as benchmarks want it."""
        self._library.ready()

    def persist(self, step=None, directory=None, wait=True):
        """The newest step, or this one, to storage now."""
        where = os.fsencode(os.path.abspath(directory)) if directory else None
        self._again(lambda: self._library.persist(ANY_STEP if step is None else step, where, int(wait)))

    def status(self):
        """What the agent holds, as a dict."""
        text = ctypes.c_char_p()
        self._again(lambda: self._library.status(byref(text)))
        return json.loads(text.value)

    # --- loading ---

    def load(self, path="", *, step=None, level="best", kind=None, trust=False):
        """The newest step that every rank has, as a Loaded; None where there is none anywhere.

        `path`: a checkpoint folder; then it is that. Tensors lie over memory of this process alone, copied when they are
        written to: a load costs next to nothing, and the saved step stays as it is. `kind`: torch, numpy or buffer, what
        tensors become; None: torch where the program has imported it, else numpy where that is there. `trust`: objects that
        came from storage may be of any class, whose code runs when they are loaded.

        On several nodes all ranks call it, and without `path`, `step` and `level` all get the same step."""
        self._settle()
        from_partner = False
        agrees = step is None and not path and level == "best"
        if step is None and not path and level in ("best", "memory") and self._partner is not None:
            step, from_partner = self._partner.gather_step()
            self._declared = None
            if step is None and level == "memory":
                return None
        elif step is None and not path and level == "best":
            step = self._agreed_step()
        if step is None and level == "best" and self.world > self.local_world:
            level = "storage"
        kind = kind or _kind()
        self._pinned.release()  # its memory may go with what a load brings

        def load(path, step):
            result = ctypes.POINTER(library.LoadedInfo)()
            where = os.fsencode(os.path.abspath(path)) if path else None
            self._declared = None  # a load from storage brings memory of its own
            try:
                self._again(lambda: self._library.load(ANY_STEP if step is None else step,
                                                       _FROM["storage" if path else level], where, byref(result)))
            except NotFound:
                return None
            return self._unpack(result, kind, trust)

        loaded = self._same_step(load, step) if agrees else load(path, step)
        if from_partner and loaded is not None and loaded.level == "memory":
            loaded.level = "partner"
        return loaded

    def close(self):
        """This trainer ends in order. Once all of the node have, the agent writes what is not yet on disk, and ends. Where an
        exception is under way it is no end in order, but `leave`. After an exchange over MPI that did not end, memory has to stay until
        the process has ended: then that is its end, with a warning, and no end in order either."""
        if _fails():
            self.leave()
        elif not self._end_partner():
            if self._library.is_own:
                warnings.warn("an exchange of partner copies has not ended: the engine stays open until this process ends, which the agent "
                              "takes for a death", stacklevel=2)
        elif self._finalizer.detach():
            self._pinned.release()
            self._library.close()

    def leave(self):
        """This trainer ends, and is to be started again: the agent keeps its memory, as it does where it is killed."""
        if self._end_partner():
            self._finalizer()

    def _end_partner(self):
        """False in a forked child, which has nothing to end, and where memory has to stay until the process has ended."""
        return self._library.is_own and (self._partner is None or not self._partner.close())

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if error is None or _is_order(error):
            self.close()
        else:
            self.leave()

    # --- the agent ---

    def _open(self):
        deadline = time.monotonic() + self._connect_timeout
        started = None
        while True:
            opened = Library(self.checkpoint_dir, self._agent["socket"], self.rank, self.world, self.local_world,
                             self._threads)
            if opened.opened == 0:
                return opened
            try:
                opened.check(opened.opened)
            except NotFound:
                if not self._agent["start"] or time.monotonic() > deadline:
                    raise
            except (Busy, Lost):  # the trainer before this one, or the agent, is not quite gone
                if time.monotonic() > deadline:
                    raise
            finally:
                opened.close()
            if self._agent["start"]:
                started = self._start_agent(started)
            time.sleep(0.01)

    def _start_agent(self, before):
        """Again where the one that was started `before` has ended: the one that was killed may not quite have been gone."""
        if before is not None and before.poll() is None:
            return before
        if before is not None:
            time.sleep(0.05)
        options = ["--to", self.format]
        for flag, name in (("--keep-last", "max_to_keep"), ("--linger", "linger"), ("--rate", "rate"), ("--socket", "socket")):
            if self._agent[name]:
                options += [flag, str(self._agent[name])]
        if not self._agent["persist_on_death"]:
            options.append("--no-persist-on-death")
        binary = library.find_binary(Library.shared().path)
        with open(os.path.join(self.checkpoint_dir, "ckpt-agent.log"), "ab") as log:
            # A session of its own: what kills the trainer's group leaves the agent. Nothing of the trainer's stays open in it.
            _agents.append(subprocess.Popen([binary, "agent", self.checkpoint_dir, *options], stdin=subprocess.DEVNULL, stdout=log,
                             stderr=log, start_new_session=True, close_fds=True, cwd="/",
                             env={k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}))
        return _agents[-1]

    def _again(self, work, handle=None):
        """Once more with a new agent where the one that was is gone: it takes over the memory that this process holds."""
        try:
            return work()
        except Lost:
            deadline = time.monotonic() + 30
            started = None
            while True:
                try:
                    (handle or self._library).reconnect()
                    if self.protected_step is not None:
                        (handle or self._library).keep(self.protected_step)
                    break
                except (NotFound, Busy, Lost):
                    if time.monotonic() > deadline or not self._agent["start"]:
                        raise
                started = self._start_agent(started)
                time.sleep(0.01)
            return work()

    # --- for torch.distributed.checkpoint ---

    def save_parts(self, step, leaves, blobs, *, if_busy="wait", persist=None):
        """Leafs and (path, key, kind, bytes) as somebody else has cut them."""
        storage = self.wants(step)[1] if persist is None else persist
        return self._again(lambda: self._save(step, leaves, blobs, if_busy, storage, False))

    def common_step(self, step=None):
        """(the newest step, or this one, that all ranks have in memory, whether this rank's came from its partner just now); (None, False):
        there is none. Of a job on several nodes, whose ranks all call it."""
        self._settle()
        if step is None and self._partner is not None:
            self._declared = None
            return self._partner.gather_step()
        return self._agreed_step(step), False

    def channel(self):
        """Of all ranks, while no partner copy is under way. The first call is one that all ranks make at the same time."""
        if self._partner is not None:
            return self._partner.channel
        if self._channel is None:
            self._channel = group.running(self.world).channel(self.timeout)
        return self._channel

    def look(self, rank, step):
        """(leaves, objects) that a rank of this node has of a step in memory: [(key, dtype, shape, global shape, offset,
        tensor)], [(key, path, bytes)]. To be copied before anybody saves again."""
        result = ctypes.POINTER(library.LoadedInfo)()
        self._again(lambda: self._library.look(rank, step, byref(result)))
        info, block = self._block(result)
        leaves = []
        for at in range(info.tensors):
            one = info.tensor[at]
            shape, whole, offset = (tuple(numbers[i] for i in range(one.dims))
                                    for numbers in (one.shape, one.global_shape, one.global_offset))
            dtype = one.dtype.decode()
            value = states.array(block, info.data[at] - info.data[0], math.prod(shape) * library.ITEM_BYTES[dtype], dtype, shape, "torch")
            leaves.append((one.key.decode(), dtype, shape, whole, offset, value))
        objects = [(info.object[at].key.decode(), library.path_of(info.object[at].path, info.object[at].steps),
                    ctypes.string_at(info.object[at].data, info.object[at].bytes))
                   for at in range(info.objects) if info.object[at].kind != library.COMMON]
        return leaves, objects

    # --- details ---

    def _interval(self):
        """So that saves take one percent of the time, by what steps and saves have taken so far."""
        now = time.monotonic()
        if self._pace is None:
            self._pace = [now, 0]
        self._pace[1] += 1
        steps, passed = self._pace[1] - 1, now - self._pace[0]
        if steps < 1 or self._cost == 0:
            return 1
        wanted = max(1, math.ceil(self._cost / (0.01 * passed / steps)))
        # Every rank measures for itself: among powers of two the longer interval's steps are the shorter one's, too.
        return wanted if self.world == 1 else 1 << (wanted - 1).bit_length()

    def _objects(self, objects):
        megatron = self.format == "torch_dist"
        out = [(path, key, library.PRIVATE if megatron else library.VALUE, states.dump(value))
               for path, key, value in objects]
        if megatron and objects:  # its loaders know one object, the common state
            common = states.nest([(path, value) for path, _, value in objects])
            out.append(((), "common", library.COMMON, states.dump(common)))
        return out

    def _declare(self, tensors, object_bytes):
        shape = [(leaf.key, leaf.dtype, leaf.shape, leaf.global_shape, leaf.global_offset, leaf.path) for leaf in tensors]
        if self._declared == shape and object_bytes <= self._object_bytes:
            return
        capacity = max(1 << 20, 2 * object_bytes + (1 << 16))
        self._pinned.release()  # the memory may be other memory afterwards
        self._library.declare(library.tensors_of(shape), len(shape), capacity)
        self._declared, self._object_bytes = shape, capacity // 2
        if self._partner is not None and not self._warned:
            self._warned = True
            if any(one["rank"] == self.rank and one["buffers"] == 1 for one in self.status()["ranks"]):
                warnings.warn("memory allows one buffer a rank: while a save is under way, no step is protected", stacklevel=2)

    def _save(self, step, tensors, blobs, if_busy, storage, snapshot):
        self._settle()
        if self._partner is not None and self._partner.broken:
            return Saved(step, skipped=self._partner.broken)
        try:
            saved = self._save_here(step, tensors, blobs, if_busy, storage, snapshot)
        except Lost:
            raise
        except BaseException:
            if self._partner is not None:  # the other ranks are not left waiting
                self._partner.protect(step, None, lambda: True)
            raise
        if self._partner is not None:
            memory = self._memory(tensors, blobs) if saved else None
            self._partner.protect(step, memory, self._is_complete)
        return saved

    def _memory(self, tensors, blobs):
        """Where the last save lies."""
        places = (c_void_p * max(1, len(tensors)))()
        self._library.places(places)
        return Memory(self._declared, places, _sizes(tensors), blobs, 2 * self._object_bytes)

    def _is_complete(self):
        """Of the last save. To be asked by another thread, too."""
        return not self._library.handle or self._library.lib.ckpt_flash_done(self._library.handle) != 0

    def _settle(self):
        """Until the partner has what was saved last: its buffer is not to be used before that."""
        if self._partner is not None:
            self._partner.settle()

    @property
    def protected_step(self):
        """The newest step of which every rank's memory is complete on another node, too. Where memory allows one buffer a rank
        it is gone with the beginning of the next save."""
        return self._partner.protected_step if self._partner is not None else None

    def _save_here(self, step, tensors, blobs, if_busy, storage, snapshot):
        self._declare(tensors, sum(len(blob) + 256 for _, _, _, blob in blobs))
        pointers = [leaf.pointer() for leaf in tensors]
        objects = library.objects_of(blobs)
        info = SavedInfo()
        timeout = int(self.timeout * 1000)
        if snapshot and None not in pointers:
            self._library.wait(None)  # of the one before, whose tensors are let go now
            done = self._library.snapshot(step, (c_void_p * len(pointers))(*pointers), objects, len(blobs),
                                          _IF_BUSY[if_busy], timeout, int(storage), byref(info))
            if done == library.SKIPPED:
                return Saved(step, skipped=self._why())
            self._tensors = tensors
            return Saved(step, info=info, under_way=self._under_way)
        places = (c_void_p * len(tensors))()
        if self._library.begin(step, _IF_BUSY[if_busy], timeout, places) == library.SKIPPED:
            return Saved(step, skipped=self._why())
        self._tensors = None
        try:
            self._copy(tensors, pointers, places)
            self._library.commit(objects, len(blobs), int(storage), byref(info))
        except Lost:
            raise
        except BaseException:
            try:
                self._library.abort()
            except FlashError:
                pass
            raise
        return Saved(step, info=info)

    def _why(self):
        return self._library.lib.ckpt_flash_error(self._library.handle).decode(errors="replace")

    def _under_way(self, saved, wait):
        """Of the last snapshot; an earlier one is complete."""
        if not wait:
            if not self._is_complete():
                return False
            if self._partner is not None and self._partner.is_busy():
                return True  # the rest when the copy is through
        self._settle()
        info = SavedInfo()
        self._again(lambda: self._library.wait(byref(info)))
        saved._under_way = None
        if info.total_us:
            saved.total_us, saved.newest_step = info.total_us, None if info.newest_step == ANY_STEP else info.newest_step
        self._tensors = None
        return True

    def _copy(self, tensors, pointers, places):
        """Host memory by the library's threads; of a device straight into the shared memory."""
        on_device = [at for at, pointer in enumerate(pointers) if pointer is None]
        if on_device:
            self._pinned.pin(min(places), max(place + size for place, size in zip(places, _sizes(tensors))))
        for at in on_device:
            leaf = tensors[at]
            local = leaf.value.contiguous()
            if local.numel() > 0:
                size = local.numel() * local.element_size()
                block = (ctypes.c_char * size).from_address(places[at])
                target = states.array(block, 0, size, leaf.dtype, leaf.shape, "torch")
                target.copy_(local, non_blocking=True)
        self._library.copy((c_void_p * len(pointers))(*pointers))
        if on_device:
            torch = states.torch_module()
            for device in {tensors[at].value.device for at in on_device}:
                getattr(torch, device.type).synchronize(device)

    def _unpack(self, result, kind, trust):
        info, block = self._block(result)
        leaves = []
        for at in range(info.tensors):
            tensor = info.tensor[at]
            shape = tuple(tensor.shape[i] for i in range(tensor.dims))
            dtype = tensor.dtype.decode()
            value = states.array(block, info.data[at] - info.data[0], math.prod(shape) * library.ITEM_BYTES[dtype], dtype, shape, kind)
            leaves.append((library.path_of(tensor.path, tensor.steps), value))
        for at in range(info.objects):
            one = info.object[at]
            if one.kind != library.COMMON:
                value = states.restore(ctypes.string_at(one.data, one.bytes),
                                       trust or LEVELS.get(info.level) == "memory")
                leaves.append((library.path_of(one.path, one.steps), value))
        out = Loaded(states.nest(leaves))
        out.step, out.level = info.step, LEVELS.get(info.level, "?")
        out.total_us, out.bytes = info.total_us, info.bytes
        return out

    def _block(self, result):
        """One block below everything: when the last tensor over it is gone, so is the mapping."""
        info = result.contents
        block = (ctypes.c_char * max(info.bytes, 1)).from_address(info.data[0] if info.tensors else info.mapping)
        weakref.finalize(block, self._library.unload, result).atexit = False
        return info, block

    def _gather(self, value):
        """Every rank's value, where there are several nodes, and something through which ranks can speak; else None."""
        job = group.running(self.world) if self.world > self.local_world else None
        return job.gather(value) if job is not None else None

    def _agreed_step(self, step=None):
        """The newest step, or this one, that all nodes have in memory."""
        if self.world == self.local_world:
            return None

        def steps():
            ranks = self.status()["ranks"]
            return set.intersection(*(set(one["steps"]) for one in ranks)) if len(ranks) == self.local_world else set()

        _, told = self._tell(steps, lambda own: own)
        common = set.intersection(*told) if told else set()
        return max(common if step is None else common & {step}, default=None)

    def _tell(self, work, share):
        """(what work() gives, share(that) of every rank or None). Where it fails on one rank it fails on all: none is left waiting."""
        done, failed, shared = None, None, None
        try:
            done = work()
            shared = share(done)
        except Exception as error:
            failed = error
        told = self._gather((shared, f"{failed}" or "fails" if failed else ""))
        if failed:
            raise failed
        for rank, (_, why) in enumerate(told or ()):
            if why:
                raise FlashError(1, f"rank {rank}: {why}")
        return done, [one for one, _ in told] if told else None

    def _same_step(self, load, step):
        """What load("", step) gives, of one step on all ranks: while an agent still writes they may find different ones in storage.
        Then it is the oldest of those, by load(its folder, it)."""
        def tell(work):
            loaded, told = self._tell(work, lambda loaded: loaded.step if loaded is not None else None)
            return loaded, set(told) if told else {None}

        for attempt in range(5):
            time.sleep(0.2 * attempt)
            loaded, steps = tell(lambda: load("", step))
            if len(steps) > 1 and None not in steps:
                oldest = min(steps)
                folder = os.path.join(self.checkpoint_dir, f"iter_{oldest:07}")
                loaded, again = tell(lambda: loaded if loaded.step == oldest else load(folder, oldest))
                if again == {oldest}:
                    return loaded
            elif len(steps) == 1:
                return loaded
        raise FlashError(8, f"the ranks find different steps: {', '.join(sorted(map(str, steps)))}")


def _sizes(leaves):
    """In bytes."""
    return [math.prod(leaf.shape) * library.ITEM_BYTES[leaf.dtype] for leaf in leaves]


_exiting = False


def _exits():
    global _exiting
    _exiting = True


def _is_order(error):
    return isinstance(error, SystemExit) and error.code in (None, 0)


def _fails():
    """Whether the caller is in the handling of an exception."""
    error = sys.exc_info()[1]
    return error is not None and not _is_order(error)


def _end(pinned, opened):
    """Nobody has closed the engine: for the agent the trainer is dead. Memory is let go of by CUDA before it is unmapped."""
    if not opened.is_own:
        return
    pinned.release()
    if not _exiting:
        opened.leave()
    elif opened.handle:
        # A snapshot is completed; the rest is the end of the process's. What was loaded need not be copied for that.
        opened.lib.ckpt_flash_wait(opened.handle, None)


def _kind():
    if states.torch_module() is not None:
        return "torch"
    try:
        import numpy  # noqa: F401
        return "numpy"
    except ImportError:
        return "buffer"


def _ranks(rank, world, local_world):
    environment = os.environ
    job = group.running()
    if job is not None and (isinstance(job, group.TorchJob) or "WORLD_SIZE" not in environment):
        rank = job.rank if rank is None else rank
        world = job.world if world is None else world
    rank = int(environment.get("RANK", 0)) if rank is None else rank
    world = int(environment.get("WORLD_SIZE", 1)) if world is None else world
    if local_world is None:
        local_world = min(world, _local_world(world))
    return rank, world, local_world


def _local_world(world):
    """By the launcher's word (torchrun, DeepSpeed, Open MPI, MPICH), else by where the ranks of the job are."""
    for name in ("LOCAL_WORLD_SIZE", "LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    job = group.running(world) if world > 1 else None
    if job is None:
        return world
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
        here = (os.uname().nodename, stream.read())
    return job.gather(here).count(here)
