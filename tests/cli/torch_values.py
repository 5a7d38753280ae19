#!/usr/bin/env python3
"""Files of torch.save and what becomes of their values: order, classes and shared storages stay, values that are no tensors go along.

    torch_values.py CKPT_BINARY [TEST...]

torch is not needed: stand-ins of its names are pickled, and what ckpt writes is unpickled with them.
"""
import collections
import enum
import io
import json
import os
import pathlib
import pickle
import shutil
import struct
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


class Made:
    """What a call of a name makes, perhaps with a state."""

    def __init__(self, callee, *args, state=None):
        self.reduced = (callee, args) if state is None else (callee, args, state)

    def __reduce__(self):
        return self.reduced


Module = stand_in("net", "Module", type("Module", (), {}))
Outer = stand_in("net", "Outer", type("Outer", (), {}))
Outer.Inner = type("Inner", (), {"__module__": "net", "__qualname__": "Outer.Inner"})


class Mode(enum.Enum):
    A = 1
    B = 2


stand_in("net", "Mode", Mode)


def legacy(path, value, protocol):
    """As torch.save did before 1.6."""
    with open(path, "wb") as out:
        sizes = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
        for part in (0x1950a86a20f9469cfc6c, 1001, sizes):
            pickle.dump(part, out, protocol)
        storages = []
        out.write(pickled(value, storages, protocol, (None,)))
        pickle.dump([str(i) for i in range(len(storages))], out, protocol)
        for storage in storages:
            out.write(struct.pack("<q", storage.array.size) + storage.array.tobytes())


def save(path, value, protocol=2):
    storages = []
    write_archive(path, pickled(value, storages, protocol), storages)


def write_archive(path, content, storages=()):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/byteorder", "little")
        for i, storage in enumerate(storages):
            archive.writestr(f"archive/data/{i}", storage.array.tobytes())
        archive.writestr("archive/version", "3\n")


def pickled(value, storages, protocol, more=()):
    buffer = io.BytesIO()

    def persistent_id(obj):
        if not isinstance(obj, Storage):
            return None
        if all(obj is not other for other in storages):
            storages.append(obj)
        key = next(i for i, other in enumerate(storages) if obj is other)
        return ("storage", STORAGES[TYPES[obj.array.dtype.str]], str(key), "cpu", obj.array.size, *more)

    writer = pickle._Pickler(buffer, protocol)
    writer.persistent_id = persistent_id
    writer.dump(value)
    return buffer.getvalue()


def load(content, **options):
    """With the storages once each, as torch.load has it."""
    archive = zipfile.ZipFile(io.BytesIO(content) if isinstance(content, bytes) else content)
    top = archive.namelist()[0].split("/")[0]
    assert archive.testzip() is None  # the CRCs
    reader = pickle.Unpickler(io.BytesIO(archive.read(f"{top}/data.pkl")), **options)
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
        pairs = Made(collections.OrderedDict, [["w", Tensor(floats(2))], ["lr", 0.5]])
        save(self.source, {"sd": pairs, "only": Made(collections.OrderedDict, [["w", Tensor(floats(2))]])})
        self.call("convert", self.source, self.work / "pairs", "--to", "torch_dist", "--verify")
        self.assertEqual(load(self.work / "pairs/common.pt"), {"sd": collections.OrderedDict([("w", None), ("lr", 0.5)])})
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


    def found(self, value, **options):
        save(self.source, value, **options)
        self.call("verify", self.source)
        return self.keys(self.source)

    def refused(self, value, word):
        save(self.source, value)
        for command in (["verify", self.source], ["convert", self.source, self.target, "--to", "safetensors", "--tensors-only"]):
            done = self.call(*command, code=6)
            self.assertIn(word, done.stdout + done.stderr)

    def test_pairs_of_a_dict_may_be_arguments(self):
        pairs = [["w", Tensor(floats(2))], ["b", Tensor(floats(3))]]
        python2 = Made(collections.OrderedDict, pairs)  # as Python 2 pickles it
        self.assertEqual(self.found(python2), {"w": [2], "b": [3]})
        self.assertEqual(self.found({"sd": python2, "x": Tensor(floats(1))}), {"sd.w": [2], "sd.b": [3], "x": [1]})
        self.assertEqual(self.found(Made(collections.OrderedDict, tuple(map(tuple, pairs)))), {"w": [2], "b": [3]})
        self.assertEqual(self.found(collections.Counter(dict(pairs))), {"w": [2], "b": [3]})
        self.assertEqual(self.found(Made(collections.defaultdict, list, dict(pairs))), {"w": [2], "b": [3]})
        back = self.convert({"sd": python2})
        self.assertEqual((type(back["sd"]), list(back["sd"])), (collections.OrderedDict, ["w", "b"]))
        self.refused({"x": Tensor(floats(1)), "sd": Made(collections.OrderedDict, Tensor(floats(2)))}, "made of what is not read")

    def test_a_state_may_be_anything(self):
        w = Tensor(floats(2))
        for state, key in (((w, 3), "o.state.0"), ([w, 3], "o.state.0"), (w, "o.state"), ({"a": [{"z": w}]}, "o.a.0.z"), ((None, {"s": w}), "o.s")):
            self.assertEqual(self.found({"y": Tensor(floats(1)), "o": Made(Module, state=state)}), {"y": [1], key: [2]})
        marked = Made(collections.OrderedDict, [["k", Tensor(floats(3))]], state={"attr": w})
        self.assertEqual(self.found({"sd": marked}), {"sd.k": [3], "sd.attr": [2]})

    def test_attributes_of_a_module_that_are_no_parameters(self):
        w, cache = Tensor(floats(2)), Tensor(floats(3))
        state = {"_parameters": {"w": w}, "_buffers": {}, "_modules": {}, "_flat_weights": [w], "cache": cache}
        self.assertEqual(self.found(Made(Module, state=state)), {"w": [2], "cache": [3]})

    def test_no_tensor_is_passed_over(self):
        deep = Tensor(floats(2))
        for _ in range(70):
            deep = [deep] if _ % 2 else (deep,)
        self.assertEqual(list(self.found({"y": Tensor(floats(1)), "deep": deep}).values()), [[2], [1]])
        for _ in range(70):
            deep = [deep]
        self.refused({"y": Tensor(floats(1)), "deep": deep}, "nested more than 100 deep")
        self.refused({"y": Tensor(floats(1)), "map": {Tensor(floats(2)): 1}}, "tensors are not looked for")

    def test_a_value_with_tensors_is_carried_or_named(self):
        self.assertEqual(self.found({"y": Tensor(floats(1)), "size": Made(range, Tensor(floats(2)))}), {"y": [1]})

    def test_attributes_of_modules_may_lead_back(self):
        w = Tensor(floats(2))
        modules = {}
        root = Made(Module, state={"_parameters": {}, "_buffers": {}, "_modules": modules})
        for name in "abcdefgh":
            modules[name] = Made(Module, state={"_parameters": {"w": w}, "_buffers": {}, "_modules": {}, "model": [root]})
        self.assertEqual(self.found(root), {f"{name}.w": [2] for name in "abcdefgh"})

    def test_shared_settings_are_no_damage(self):
        settings = {f"option{i}": i for i in range(20)}
        self.found({"w": Tensor(floats(2)), "quant": {f"layer.{i}": settings for i in range(400)}})
        self.found({"w": [None] * 3000 + [Tensor(floats(2))]})
        shared = [1, Tensor(floats(2))]
        for _ in range(60):
            shared = [shared, shared]
        self.refused(shared, "more often than is followed")

    def test_a_large_dict_is_no_harm(self):
        entries = b"".join(b"X\x0b\0\0\0token%06dJ" % i + struct.pack("<i", i) for i in range(600_000))
        write_archive(self.source, b"\x80\x02}(X\x05\0\0\0vocab}(" + entries + b"uu.")
        self.call("verify", self.source)

    def test_keys_that_are_no_text(self):
        two = [Tensor(floats(1)), Tensor(floats(2))]
        for protocol in (2, 4):
            self.assertEqual(self.found({b"w": two[0], b"\xff'": two[1]}, protocol=protocol), {"b'w'": [1], "b'\\xff\\''": [2]})
        self.assertEqual(self.found({Made(Mode, 1): two[0], Made(Mode, 2): two[1]}), {"net.Mode(1)": [1], "net.Mode(2)": [2]})
        save(self.source, {Made(getattr, Mode, "A"): two[0], Made(getattr, Mode, "B"): two[1]})  # Python 3.11
        self.assertEqual(self.keys(self.source), {"net.Mode.A": [1], "net.Mode.B": [2]})
        self.assertEqual(self.found({frozenset([1]): two[0], frozenset([2]): two[1]}), {"?0": [1], "?1": [2]})
        self.assertIn("has no text", self.call("verify", self.source).stderr + self.call("inspect", self.source).stderr)

    def test_keys_without_end(self):
        self.refused({"a" * 100000: {i: 1 for i in range(1000, 3000)}}, "more than 4096 bytes")
        key = b"(" + b"N" * 300 + b"tq\0" + b"".join(b"0(" + (b"h" + bytes([i - 1])) * 300 + b"tq" + bytes([i]) for i in range(1, 4))
        write_archive(self.source, b"\x80\x02}(" + key + b"K\x01u.")  # tuples of tuples: 300 to the fourth names
        self.assertIn("more than 4096 bytes", self.call("inspect", self.source).stdout)

    def test_a_class_in_a_class_is_refused_by_name(self):
        save(self.source, {"w": Tensor(floats(2)), "inner": Outer.Inner()}, protocol=4)
        command = ["convert", self.source, self.target, "--to", "torch"]
        self.assertIn("inner: net.Outer.Inner: is a class inside another", self.call(*command, code=6).stderr)
        self.call(*command, "--tensors-only")
        self.assertEqual(list(load(self.target)), ["w"])

    def test_text_of_python_2_that_is_no_unicode(self):
        write_archive(self.source, b"\x80\x02}(U\x03arrU\x04\xff\xfe\x00\x80X\x01\0\0\0sX\x03\0\0\0\xed\xa0\x80u.")
        self.call("convert", self.source, self.target, "--to", "torch")
        self.assertEqual(load(self.target, encoding="latin1"), {"arr": "\xff\xfe\0\x80", "s": "\ud800"})

    def test_an_object_that_cannot_be_kept_is_a_note(self):
        save(self.source, {"list": [Tensor(floats(1)), Tensor(floats(2))], "b": (Tensor(floats(3)), 1)})
        command = ["convert", self.source, self.target, "--to", "torch", "--force"]
        self.assertIn("the object itself", self.call(*command, "--exclude", "list.0").stderr)
        self.assertNotIn("the object itself", self.call(*command).stderr)

    def test_legacy_files_of_any_protocol(self):
        for protocol in (2, 3, 4, 5):
            path = self.work / f"protocol{protocol}"  # by content, not by name
            legacy(path, {"w": Tensor(floats(2))}, protocol)
            self.call("verify", path)
            self.assertEqual(self.keys(path), {"w": [2]})

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
