"""torch.distributed.checkpoint through the agent's memory: dcp.save and dcp.load as they are, with another storage.

    dcp.save(state, storage_writer=FlashWriter(engine, step))
    dcp.load(state, storage_reader=FlashReader(engine))

The planner cuts and puts together as it always does, so FSDP2, torchtitan and Megatron Core's dist_checkpointing save their shards, and
a load may be of another sharding. Memory serves where every rank of the job is on this node and has the step, else storage."""
import io
import re

import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import (BytesStorageMetadata, ChunkStorageMetadata, Metadata,
                                                   TensorProperties, TensorStorageMetadata)
from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from . import _library as library
from . import state as states
from ._library import FlashError
from .engine import Engine


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
    `source`: "memory" or "storage" alone. `level` says afterwards which it was."""

    def __init__(self, engine: Engine, step=None, source=None):
        super().__init__()
        if source not in (None, "memory", "storage"):
            raise ValueError(f"source: {source!r} is neither memory nor storage")
        self.engine, self.step, self.source = engine, step, source
        self.level = None
        self._tensors, self._objects, self._storage = {}, {}, None

    def reset(self, checkpoint_id=None):
        self._tensors, self._objects, self._storage, self.level = {}, {}, None, None

    def read_metadata(self, *args, **kwargs):
        status = self.engine.status()
        ranks = status["ranks"]
        common = set.intersection(*(set(one["steps"]) for one in ranks)) if ranks else set()
        step = self.step if self.step is not None else max(common, default=None)
        if self.source == "storage" or step not in common or len(ranks) != status["world"]:
            if self.source == "memory":
                raise FlashError(4, f"memory has no step {'of all ranks' if step is None else step}")
            return self._read_storage()
        return self._read_memory(step, [one["rank"] for one in ranks])

    def _read_storage(self):
        import os
        folder = self.engine.checkpoint_dir
        try:
            if self.step is None:
                with open(os.path.join(folder, "LATEST"), encoding="ascii") as latest:
                    name = latest.read().strip()
            else:
                name = f"iter_{self.step:07}"
                os.stat(os.path.join(folder, name, ".metadata"))
            folder = os.path.join(folder, name)
        except FileNotFoundError:
            what = "a checkpoint" if self.step is None else f"step {self.step}"
            raise FlashError(4, f"{folder}: neither memory nor storage has {what}") from None
        self.level, self._storage = "storage", FileSystemReader(folder)
        return self._storage.read_metadata()

    def _read_memory(self, step, ranks):
        found = {}
        for rank in ranks:
            leaves, objects = self.engine.look(rank, step)
            for key, dtype, shape, whole, offset, value in leaves:
                if (key, offset) in self._tensors:
                    continue  # a replica
                self._tensors[key, offset] = value
                entry = found.setdefault(key, TensorStorageMetadata(
                    TensorProperties(dtype=getattr(torch, dtype)), torch.Size(whole), []))
                entry.chunks.append(ChunkStorageMetadata(torch.Size(offset), torch.Size(shape)))
            for key, _, data in objects:
                if key not in self._objects:
                    self._objects[key] = data
                    found[key] = BytesStorageMetadata()
        self.level, self.step = "memory", step
        return Metadata(state_dict_metadata=found, planner_data=None, storage_data=None)

    def set_up_storage_reader(self, metadata, is_coordinator, *args, **kwargs):
        if self._storage is not None:
            self._storage.set_up_storage_reader(metadata, is_coordinator)

    def prepare_local_plan(self, plan):
        return plan if self._storage is None else self._storage.prepare_local_plan(plan)

    def prepare_global_plan(self, plans):
        return plans if self._storage is None else self._storage.prepare_global_plan(plans)

    def read_data(self, plan, planner):
        if self._storage is not None:
            return self._storage.read_data(plan, planner)
        for item in plan.items:
            index = item.storage_index
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(self._objects[index.fqn]))
                continue
            offset = tuple(index.offset) if index.offset is not None else ()
            value = self._tensors[index.fqn, offset]
            for axis, (begin, length) in enumerate(zip(item.storage_offsets, item.lengths)):
                value = value.narrow(axis, begin, length)
            target = planner.resolve_tensor(item).detach()
            target.copy_(value)
            planner.commit_tensor(item, target)
        self._tensors, self._objects = {}, {}
        return _done(None)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        return True
