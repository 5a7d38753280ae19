"""torch.distributed.checkpoint through the agent's memory: dcp.save and dcp.load as they are, with another storage.

    dcp.save(state, storage_writer=FlashWriter(engine, step))
    dcp.load(state, storage_reader=FlashReader(engine))

The planner cuts and puts together as it always does, so FSDP2, torchtitan and Megatron Core's dist_checkpointing save their shards, and
a load may be of another sharding. Memory serves where every rank of the job has the step there, on whichever node, else storage."""
import functools
import io
import math
import os
import re
import time

import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import (BytesStorageMetadata, ChunkStorageMetadata, Metadata,
                                                   TensorProperties, TensorStorageMetadata)
from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from . import _library as library
from . import group
from . import state as states
from ._library import FlashError
from .engine import Engine
from .exchange import exchange


def _done(value):
    future = Future()
    future.set_result(value)
    return future


class FlashWriter(StorageWriter):
    """`step`: None takes the number at the end of dcp.save's checkpoint_id. `persist`: whether it goes to storage too; None: by the
    engine's save_storage_interval. A save waits where the agent is still writing: all ranks save a step, or none."""

    def __init__(self, engine, step=None, persist=None):
        super().__init__()
        self.engine, self.step, self.persist = engine, step, persist
        self._named = step is not None

    def reset(self, checkpoint_id=None):
        number = re.search(r"(\d+)\D*$", str(checkpoint_id)) if checkpoint_id is not None else None
        if number and not self._named:
            self.step = int(number.group(1))

    def set_up_storage_writer(self, is_coordinator, *args, **kwargs):
        if self.step is None:
            raise ValueError("FlashWriter needs a step, or a checkpoint_id that ends with one")

    def prepare_local_plan(self, plan):
        return plan

    def prepare_global_plan(self, plans):
        return plans

    def write_data(self, plan, planner):
        leaves, blobs, results = [], [], []
        paths = getattr(planner, "mappings", {})
        for item in plan.items:
            key, value = item.index.fqn, planner.resolve_data(item)
            # As torch's own loaders of whole checkpoints read its flattened names: a number is a place in a list.
            path = tuple((library.INDEX, step) if isinstance(step, int) else (library.NAME, step)
                         for step in paths.get(key, (key,)))
            if item.type == WriteItemType.BYTE_IO:
                blobs.append((path, key, library.VALUE, value.getvalue()))
                results.append(WriteResult(item.index, len(blobs[-1][3]), None))
                continue
            leaf = states.Leaf()
            leaf.path, leaf.key, leaf.value = path, key, value.detach()
            leaf.dtype, leaf.shape = str(value.dtype)[6:], tuple(value.shape)
            leaf.global_shape, leaf.global_offset = tuple(item.tensor_data.size), tuple(item.tensor_data.chunk.offsets)
            leaves.append(leaf)
            results.append(WriteResult(item.index, value.numel() * value.element_size(), None))
        self.engine.save_parts(self.step, leaves, blobs, persist=self.persist)
        return _done(results)

    def finish(self, metadata, results):
        """Nothing: what is in memory describes itself."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        return True


class FlashReader(StorageReader):
    """Reads a step (the newest) from an engine's memory, and what is not there from its folder (dcp or torch_dist).
    `source`: "memory" or "storage" alone.

    On several nodes all ranks of the job load together, unless `source` is "storage": they agree through the job's own process group on a
    step that all of them have in memory (a lost node's comes back from partners first, as Engine.load has it), and what lies on another node
    comes from there through a gloo group. Where there is no such step, all of them read storage.

    Afterwards: `level` says which it was (memory, partner, storage), `why` why it was not memory, `total_us` how long it took, `fetched` how
    many bytes came from other nodes."""

    def __init__(self, engine: Engine, step=None, source=None):
        super().__init__()
        if source not in (None, "memory", "storage"):
            raise ValueError(f"source: {source!r} is neither memory nor storage")
        self.engine, self.step, self.source = engine, step, source
        self.reset()

    def reset(self, checkpoint_id=None):
        self._tensors, self._objects, self._storage, self.level = {}, {}, None, None
        self._metadata, self._described = {}, set()
        self._here = ()  # the ranks of this node
        self._nodes = None  # who has what, where ranks are on several: {(key, offset): ranks}, {(key, None): (rank, bytes)}
        self._began = time.monotonic()
        self.why, self.total_us, self.fetched = "", 0, 0

    # Not "kwargs": where a rank's call fails and torch sees that name it calls again, and the other ranks would not.
    def read_metadata(self, *args, **ignored):
        self.reset()  # of a load before
        several = self.engine.world > self.engine.local_world
        if self.source != "storage":
            self._look_on_nodes() if several else self._look_here()
            if self.level is not None:
                return Metadata(state_dict_metadata=self._metadata, planner_data=None, storage_data=None)
            if self.source == "memory":
                raise FlashError(4, self.why)
        return self._read_storage(several and self.source is None)

    def _read_storage(self, agrees):
        root = self.engine.checkpoint_dir

        def newest():
            try:
                if self.step is None:
                    with open(os.path.join(root, "LATEST"), encoding="ascii") as latest:
                        return latest.read().strip()
                name = f"iter_{self.step:07}"
                os.stat(os.path.join(root, name, ".metadata"))
                return name
            except FileNotFoundError:
                what = "a checkpoint" if self.step is None else f"step {self.step}"
                raise FlashError(4, f"{root}: neither memory nor storage has {what}") from None

        name, told = self.engine._tell(newest, lambda own: own) if agrees else (newest(), None)
        if told:  # while agents write they may find different ones
            name = min(told, key=lambda one: int(re.sub(r"\D", "", one) or 0))
        self.level, self._storage = "storage", FileSystemReader(os.path.join(root, name))
        return self._storage.read_metadata()

    def _look_here(self):
        """All ranks are on this node."""
        status = self.engine.status()
        ranks = status["ranks"]
        common = set.intersection(*(set(one["steps"]) for one in ranks)) if ranks else set()
        step = self.step if self.step is not None else max(common, default=None)
        if step not in common or len(ranks) != status["world"]:
            self._has_no(step)
            return
        for one in ranks:
            leaves, objects = self._take(one["rank"], step)
            self._describe(leaves, [key for key, _ in objects])
        self.level, self.step = "memory", step

    def _look_on_nodes(self):
        engine = self.engine
        if not isinstance(group.running(engine.world), group.TorchJob):
            self.why = f"torch.distributed has not these {engine.world} ranks, and the nodes speak through it"
            return
        engine._tell(lambda: (engine._settle(), engine.status()), lambda _: None)  # a rank without its agent holds nobody up
        step, from_partner = engine.common_step(self.step)
        if step is None:
            self._has_no(self.step)
            return

        def look():
            self._here = sorted(one["rank"] for one in engine.status()["ranks"] if step in one["steps"])
            found = {rank: self._take(rank, step) for rank in self._here}
            return found[engine.rank]

        _, told = engine._tell(look, lambda own: own)
        self._nodes = {}
        for rank, (leaves, objects) in enumerate(told):
            self._describe(leaves, [key for key, _ in objects])
            for key, _, _, _, offset in leaves:
                self._nodes.setdefault((key, offset), []).append(rank)
            for key, size in objects:
                self._nodes.setdefault((key, None), (rank, size))  # that of the lowest rank, as storage has it
        self.level, self.step = "partner" if from_partner else "memory", step

    def _has_no(self, step):
        self.why = "memory has no step of all ranks" if step is None else f"memory has no step {step} of all ranks"

    def _take(self, rank, step):
        """Keeps what a rank of this node has, and describes it."""
        leaves, objects = self.engine.look(rank, step)
        for key, _, _, _, offset, value in leaves:
            self._tensors.setdefault((key, offset), value)  # else a replica
        for key, _, data in objects:
            self._objects.setdefault(key, data)
        return [leaf[:5] for leaf in leaves], [(key, len(data)) for key, _, data in objects]

    def _describe(self, leaves, objects):
        for key, dtype, shape, whole, offset in leaves:
            entry = self._metadata.setdefault(key, TensorStorageMetadata(
                TensorProperties(dtype=getattr(torch, dtype)), torch.Size(whole), []))
            if (key, offset) not in self._described:
                self._described.add((key, offset))
                entry.chunks.append(ChunkStorageMetadata(torch.Size(offset), torch.Size(shape)))
        for key in objects:
            self._metadata.setdefault(key, BytesStorageMetadata())

    def set_up_storage_reader(self, metadata, is_coordinator, *args, **kwargs):
        if self._storage is not None:
            self._storage.set_up_storage_reader(metadata, is_coordinator)

    def prepare_local_plan(self, plan):
        return plan if self._storage is None else self._storage.prepare_local_plan(plan)

    def prepare_global_plan(self, plans):
        return plans if self._storage is None else self._storage.prepare_global_plan(plans)

    def read_data(self, plan, planner):
        if self._storage is not None:
            done = self._storage.read_data(plan, planner)
        else:
            if self._nodes is not None:
                self._fetch(plan, planner)
            for item in plan.items:
                if self._is_here(item):
                    self._put(planner, item, self._value(*_place(item)))
            self._tensors, self._objects = {}, {}
            done = _done(None)
        self.total_us = int(1e6 * (time.monotonic() - self._began))
        return done

    # --- between nodes ---

    def _is_here(self, item):
        if self._nodes is None:
            return True
        key, offset, *_ = _place(item)
        return self._nodes[key, None][0] in self._here if offset is None else (key, offset) in self._tensors

    def _fetch(self, plan, planner):
        """What lies on other nodes, which all ranks ask one another for."""
        engine = self.engine

        def wants():
            out = []
            for item in plan.items:
                if not self._is_here(item):
                    out.append((*self._holder(item), _place(item), item))
            return out

        mine, asked = engine._tell(wants, lambda own: [one[:3] for one in own])
        give = [[(size, functools.partial(self._bytes, place)) for holder, size, place in one if holder == engine.rank and size > 0]
                for one in asked]
        take = [[(size, item) for holder, size, _, item in mine if holder == rank and size > 0] for rank in range(engine.world)]
        self.fetched = sum(size for one in take for size, _ in one)
        if any(size > 0 for one in asked for _, size, _ in one):  # on whichever rank
            exchange(engine.channel(), engine.rank, give, take, lambda item, flat: self._deliver(planner, item, flat))
        for _, size, _, item in mine:
            if size == 0:
                self._deliver(planner, item, torch.empty(0, dtype=torch.uint8))

    def _holder(self, item):
        """(the rank that gives it, bytes). Of replicas each rank asks another one."""
        key, offset, _, lengths = _place(item)
        if offset is None:
            return self._nodes[key, None]
        ranks = self._nodes[key, offset]
        return ranks[self.engine.rank % len(ranks)], math.prod(lengths) * self._metadata[key].properties.dtype.itemsize

    def _value(self, key, offset, begin, lengths):
        if offset is None:
            return self._objects[key]
        value = self._tensors[key, offset]
        for axis, (at, length) in enumerate(zip(begin, lengths)):
            value = value.narrow(axis, at, length)
        return value

    def _bytes(self, place):
        value = self._value(*place)
        if isinstance(value, bytes):
            return torch.frombuffer(bytearray(value), dtype=torch.uint8)
        return value.contiguous().reshape(-1).view(torch.uint8)

    def _deliver(self, planner, item, flat):
        if item.type == LoadItemType.BYTE_IO:
            return self._put(planner, item, flat.numpy().tobytes())
        dtype = self._metadata[item.storage_index.fqn].properties.dtype
        return self._put(planner, item, flat.view(dtype).reshape(tuple(item.lengths)))

    def _put(self, planner, item, value):
        if item.type == LoadItemType.BYTE_IO:
            planner.load_bytes(item, io.BytesIO(value))
            return
        target = planner.resolve_tensor(item).detach()
        target.copy_(value)
        planner.commit_tensor(item, target)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        return True


def _place(item):
    """(key, the chunk's offset or None of an object, where in it the item begins, its lengths)."""
    index = item.storage_index
    if item.type == LoadItemType.BYTE_IO:
        return index.fqn, None, (), ()
    return index.fqn, tuple(index.offset) if index.offset is not None else (), tuple(item.storage_offsets), tuple(item.lengths)
