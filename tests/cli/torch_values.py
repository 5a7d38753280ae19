#!/usr/bin/env python3
"""Files of torch.save and what becomes of their values: order, classes and shared storages stay, values that are no tensors go along.

    torch_values.py CKPT_BINARY [TEST...]

torch is not needed: stand-ins of its names are pickled, and what ckpt writes is unpickled with them.
"""
import collections
import io
import json
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import tempfile
import types
import unittest
import zipfile

import numpy as np

CKPT = os.path.abspath(sys.argv.pop(1))
TYPES = {"<f4": "FloatStorage", "<f8": "DoubleStorage", "<i8": "LongStorage"}


def stand_in(module, name, value):
    value.__module__, value.__qualname__, value.__name__ = module, name, name
    setattr(sys.modules.setdefault(module, types.ModuleType(module)), name, value)
    return value


STORAGES = {name: stand_in("torch", name, type(name, (), {"dtype": dtype})) for dtype, name in TYPES.items()}


class Storage:
    def __init__(self, array):
        self.array = array


class Tensor:
    """A view of a storage: tensors over one array share it."""

    def __init__(self, array, storage=None, offset=0):
        self.array, self.storage, self.offset = array, storage or Storage(array), offset

    def __reduce__(self):
        if hasattr(self, "attributes"):  # as torch saves an instance with attributes
            plain = Tensor(self.array, self.storage, self.offset).__reduce__()
            return rebuild_from_type, (plain[0], Tensor, plain[1], self.attributes)
        strides = tuple(s // self.array.itemsize for s in self.array.strides)
        return rebuild, (self.storage, self.offset, self.array.shape, strides, False, collections.OrderedDict())


def rebuild(storage, offset, size, stride, requires_grad, hooks):
    array = np.lib.stride_tricks.as_strided(storage.array[offset:], size, [s * storage.array.itemsize for s in stride])
    return Tensor(array, storage, offset)


def rebuild_from_type(function, type, arguments, state):
    out = function(*arguments)
    out.attributes = state
    return out


stand_in("torch", "Tensor", Tensor)
stand_in("torch._utils", "_rebuild_tensor_v2", rebuild)
stand_in("torch._tensor", "_rebuild_from_type_v2", rebuild_from_type)


def save(path, value):
    buffer, storages = io.BytesIO(), []
    pickler = pickle.Pickler(buffer, protocol=2)

    def persistent_id(obj):
        if not isinstance(obj, Storage):
            return None
        if all(obj is not other for other in storages):
            storages.append(obj)
        key = next(i for i, other in enumerate(storages) if obj is other)
        return ("storage", STORAGES[TYPES[obj.array.dtype.str]], str(key), "cpu", obj.array.size)

    class Writer(pickle._Pickler):
        pass

    writer = Writer(buffer, 2)
    writer.persistent_id = persistent_id
    writer.dump(value)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", buffer.getvalue())
        archive.writestr("archive/byteorder", "little")
        for i, storage in enumerate(storages):
            archive.writestr(f"archive/data/{i}", storage.array.tobytes())
        archive.writestr("archive/version", "3\n")


def load(content):
    """With the storages once each, as torch.load has it."""
    archive = zipfile.ZipFile(io.BytesIO(content) if isinstance(content, bytes) else content)
    top = archive.namelist()[0].split("/")[0]
    assert archive.testzip() is None  # the CRCs
    reader = pickle.Unpickler(io.BytesIO(archive.read(f"{top}/data.pkl")))
    known = {}

    def persistent_load(pid):
        _, kind, key, _, count = pid
        if key not in known:
            known[key] = Storage(np.frombuffer(archive.read(f"{top}/data/{key}"), kind.dtype))
        assert known[key].array.size == count
        return known[key]

    reader.persistent_load = persistent_load
    return reader.load()


def floats(*shape, first=0.0):
    return np.arange(first, first + int(np.prod(shape)), dtype="<f4").reshape(shape)


class Values(unittest.TestCase):
    def setUp(self):
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="ckpt-torch-values-"))
        self.addCleanup(shutil.rmtree, self.work)
        self.source, self.target = self.work / "in.pt", self.work / "out.pt"

    def call(self, *args, code=0):
        done = subprocess.run([CKPT, *map(str, args)], capture_output=True, text=True)
        self.assertEqual(done.returncode, code, f"{args}\n{done.stdout}{done.stderr}")
        return done

    def convert(self, value, *options):
        save(self.source, value)
        self.call("convert", self.source, self.target, "--to", "torch", "--verify", *options)
        return load(self.target)

    def keys(self, path):
        return {t["key"]: t["shape"] for t in json.loads(self.call("load-metadata", path, "--json").stdout)["tensors"]}

    def test_the_same_object_comes_back(self):
        tied = Storage(floats(1 << 12))
        value = collections.OrderedDict([("z", Tensor(tied.array, tied)), ("a", Tensor(tied.array[4:8], tied, 4)), ("pair", (Tensor(floats(2)), 7)), ("", Tensor(floats(1))),
                                         ("after", {3: [Tensor(floats(2, 2).T, Storage(floats(4)))], "x": {1, 2}})])
        value.marked = "yes"
        back = self.convert(value)
        self.assertIs(type(back), collections.OrderedDict)
        self.assertEqual((list(back), back.marked), (list(value), "yes"))
        self.assertIs(back["z"].storage, back["a"].storage)
        self.assertEqual(self.target.stat().st_size < 1.5 * self.source.stat().st_size, True)
        self.assertEqual((type(back["pair"]), back["pair"][1], back["after"]["x"]), (tuple, 7, {1, 2}))
        np.testing.assert_array_equal(back["after"][3][0].array, floats(2, 2).T)
        np.testing.assert_array_equal(back["a"].array, tied.array[4:8])
        np.testing.assert_array_equal(back[""].array, floats(1))

    def test_a_bare_tensor_stays_one(self):
        np.testing.assert_array_equal(self.convert(Tensor(floats(3))).array, floats(3))

    def test_only_what_is_asked_for_changes(self):
        tied = Tensor(floats(4))
        value = {"z": {"module.w": tied, "module.b": Tensor(floats(2))}, "a": tied, "drop": Tensor(floats(9)), "epoch": 3}
        back = self.convert(value, "--exclude", "drop", "--rename", r"module\.=", "--dtype", "**=float64")
        self.assertEqual((list(back), list(back["z"]), back["epoch"]), (["z", "a", "epoch"], ["w", "b"], 3))
        self.assertEqual(back["a"].array.dtype, "<f8")
        self.assertIs(back["a"].storage, back["z"]["w"].storage)
        self.assertEqual(list(self.convert(value, "--tensors-only", "--force")), ["z", "a", "drop"])

    def test_what_one_object_cannot_hold_is_nested_anew(self):
        tied = Tensor(floats(4))
        value = {"list": [tied, Tensor(floats(2))], "b": tied}
        back = self.convert(value, "--exclude", "list.0")  # no element of a list can go
        self.assertEqual(list(back["list"]), [1])
        back = self.convert(value, "--rename", "^b$=list.0.x", "--include", "b", "--force")
        self.assertEqual(list(back), ["list.0.x"])
        back = self.convert(value, "--dtype", "b=float64", "--force")  # one tensor, two types
        self.assertEqual((back["b"].array.dtype, back["list"][0].array.dtype), ("<f8", "<f4"))

    def test_parts_are_not_lost_with_the_tensor_that_has_them(self):
        inner = Tensor(floats(3))
        outer = Tensor(floats(4))
        outer.attributes = {"scale": inner}
        value = {"w": outer, "b": Tensor(floats(2))}
        self.assertIs(type(self.convert(value)["w"].attributes["scale"]), Tensor)
        back = self.convert(value, "--exclude", "w", "--force")
        self.assertEqual((set(back), back["w"]["scale"].array.size), ({"w", "b"}, 3))

    def test_a_new_name_never_hides_another_value(self):
        save(self.source, {"w": Tensor(floats(4)), "lr": 0.5})
        done = self.call("convert", self.source, self.target, "--to", "torch", "--rename", "^w$=lr", code=6)
        self.assertIn("the name is taken", done.stderr)

    def test_keys_that_are_joined_to_one_text_are_told_apart(self):
        value = {"a.b": Tensor(floats(2)), "a": {"b": Tensor(floats(3)), 1: Tensor(floats(4)), "1": Tensor(floats(5))}, "": {"a.b": Tensor(floats(6))}}
        save(self.source, value)
        self.call("verify", self.source)
        self.assertEqual(self.keys(self.source), {"a\\.b": [2], "a.b": [3], "a.1": [4], "a.\\1": [5], ".a.b": [6]})
        back = self.convert(value)
        self.assertEqual((back["a.b"].array.size, back["a"]["b"].array.size, back["a"]["1"].array.size, back[""]["a.b"].array.size), (2, 3, 5, 6))
        self.call("convert", self.source, self.work / "dcp", "--to", "dcp", "--verify")
        self.call("convert", self.work / "dcp", self.work / "again.pt", "--to", "torch")
        back = load(self.work / "again.pt")
        self.assertEqual((back["a.b"].array.size, back["a"]["b"].array.size), (2, 3))

    def test_megatrons_common_state_has_no_tensors(self):
        save(self.source, {"model": {"w": Tensor(floats(1 << 18))}, "iteration": 100, "mixed": (Tensor(floats(2)), "text"), "args": {"lr": 0.1, "scale": Tensor(floats(1))}})
        out = self.work / "out"
        self.call("convert", self.source, out, "--to", "torch_dist", "--verify")
        self.assertEqual(load(out / "common.pt"), {"iteration": 100, "mixed": (None, "text"), "args": {"lr": 0.1}})
        self.assertEqual(set(self.keys(out)), {"model.w", "mixed.0", "args.scale"})
        self.assertLess(sum(f.stat().st_size for f in out.iterdir()), 1.1 * self.source.stat().st_size)
        self.call("convert", out, self.target, "--to", "torch")
        back = load(self.target)
        self.assertEqual((back["iteration"], back["model.w"].array.size), (100, 1 << 18))
        save(self.source, Tensor(floats(2)))
        self.call("convert", self.source, self.work / "bare", "--to", "torch_dist")
        self.assertEqual(load(self.work / "bare/common.pt"), {})

    def test_values_become_objects_of_a_distributed_checkpoint(self):
        value = {"model": {"w": Tensor(floats(4))}, "epoch": 3, "lr": 0.1, "optimizer": {"param_groups": [{"lr": 0.5, "params": [0]}]}, "args": {"x": None}}
        save(self.source, value)
        self.call("convert", self.source, self.work / "dcp", "--to", "dcp", "--verify")
        listed = json.loads(self.call("load-metadata", self.work / "dcp", "--json").stdout)
        self.assertEqual({o["key"] for o in listed["objects"]}, {"epoch", "lr", "optimizer.param_groups.0.lr", "optimizer.param_groups.0.params", "args.x"})
        self.call("verify", self.work / "dcp")
        self.call("convert", self.work / "dcp", self.target, "--to", "torch")
        back = load(self.target)
        np.testing.assert_array_equal(back["model"].pop("w").array, floats(4))
        value["model"] = {}
        self.assertEqual(back, value)


    def test_with_json_standard_error_is_json_too(self):
        save(self.source, {"a": Tensor(floats(2)), "b": 1})
        for options in (["--json"], ["--progress", "jsonl"], ["--json", "--progress", "jsonl"]):
            done = self.call("convert", self.source, self.work / "out", "--to", "torch_dist", "--force", *options)
            lines = [json.loads(line) for line in done.stderr.splitlines()]
            self.assertIn("wrote", lines[-1]["text"])
        page = self.work / "page.html"
        done = self.call("inspect", self.source, "--html", page, "--json")
        self.assertEqual(json.loads(done.stdout)["tensors"][0]["key"], "a")
        self.assertTrue(page.exists())
        self.call("inspect", self.source, "--html", "-", "--json", code=2)

    def test_a_part_that_leaves_others_to_come_ends_with_3(self):
        save(self.source, {str(i): Tensor(floats(1000)) for i in range(4)})
        out = self.work / "out"
        command = ["convert", self.source, out, "--to", "torch_dist", "--files", 2]
        self.call(*command, "--part", "0/2", code=3)
        self.assertFalse(out.exists())
        self.call(*command, "--part", "1/2")
        self.call(*command, "--part", "0/2")  # was there
        self.call("verify", out)


if __name__ == "__main__":
    unittest.main()
