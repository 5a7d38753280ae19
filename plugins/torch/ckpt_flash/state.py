"""A nested state dict taken apart into tensors and objects with their paths, and put together again.

Cut as torch.distributed.checkpoint cuts it: dicts always, lists and tuples where they hold tensors; what is left is an
object, written as torch.save writes it. Keys are the paths, joined by dots."""
import io
import pickle
import sys
import zipfile

from ._library import INDEX, NAME, NUMBER, FlashError

_NUMPY = {"?": "bool", "B": "uint8", "b": "int8", "H": "uint16", "h": "int16", "I": "uint32", "i": "int32", "Q": "uint64",
          "q": "int64", "L": "uint64", "l": "int64", "e": "float16", "f": "float32", "d": "float64",
          "F": "complex64", "D": "complex128"}
_FORMATS = {"bool": "?", "uint8": "B", "int8": "b", "uint16": "H", "int16": "h", "uint32": "I", "int32": "i",
            "uint64": "Q", "int64": "q", "float32": "f", "float64": "d"}


def torch_module():
    """torch, where the program uses it."""
    return sys.modules.get("torch")


class Leaf:
    """A tensor: where it is in the state dict, what it is a part of, and where its bytes are."""
    __slots__ = ("path", "key", "dtype", "shape", "global_shape", "global_offset", "value", "kept")

    def pointer(self):
        """The address of its bytes in host memory, row-major; None: they are on a device."""
        value = self.value
        torch = torch_module()
        if torch is not None and isinstance(value, torch.Tensor):
            if value.device.type != "cpu":
                return None
            self.kept = value if value.is_contiguous() else value.contiguous()
            if self.kept.is_conj() or self.kept.is_neg():
                self.kept = self.kept.resolve_conj().resolve_neg()
            return self.kept.data_ptr()
        if hasattr(value, "__array_interface__"):
            import numpy
            self.kept = numpy.ascontiguousarray(value)
            return self.kept.ctypes.data
        import ctypes
        view = memoryview(value)
        self.kept = view if view.c_contiguous else memoryview(bytearray(view.tobytes()))
        if view.nbytes == 0:
            return 1
        if self.kept.readonly:
            self.kept = memoryview(bytearray(self.kept.tobytes()))
        return ctypes.addressof(ctypes.c_char.from_buffer(self.kept.cast("B")))


def _tensor(value):
    """(dtype, shape, global shape, offset, local value) of what is a tensor, else None."""
    torch = torch_module()
    if torch is not None and isinstance(value, torch.Tensor):
        shape, offset, local = tuple(value.shape), None, value
        if type(value).__name__ == "DTensor" or hasattr(value, "to_local") and hasattr(value, "placements"):
            from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
            _, offset = compute_local_shape_and_global_offset(value.shape, value.device_mesh, value.placements)
            local = value.to_local()
        local = local.detach()
        if local.layout is not torch.strided or local.is_quantized or local.device.type == "meta":
            return None
        return str(local.dtype)[6:], tuple(local.shape), shape, tuple(offset) if offset is not None else None, local
    interface = getattr(value, "__array_interface__", None)
    if interface is not None and not isinstance(value, (int, float, complex)):
        if value.dtype.char not in _NUMPY or not value.dtype.isnative or value.dtype.hasobject:
            return None
        if type(value).__module__ == "numpy" and type(value).__name__ != "ndarray":
            return None  # a scalar
        return _NUMPY[value.dtype.char], tuple(value.shape), tuple(value.shape), None, value
    if isinstance(value, (memoryview, bytearray)) or type(value).__name__ == "array" and hasattr(value, "typecode"):
        view = memoryview(value)
        if view.format not in _NUMPY:
            return None
        return _NUMPY[view.format], tuple(view.shape), tuple(view.shape), None, value
    return None


def _holds_tensors(value):
    if isinstance(value, dict):
        return any(_holds_tensors(v) for v in value.values())
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return any(_holds_tensors(v) for v in value)
    return _tensor(value) is not None


def flatten(state):
    """(tensors, objects): Leafs, and (path, key, value)."""
    tensors, objects, seen = [], [], {}

    def name(path):
        key = ".".join(str(step[1]) for step in path)
        if key in seen:
            raise ValueError(f"two values of the state dict have the same key when their names are joined: {key}")
        seen[key] = True
        return key

    def visit(path, value):
        found = _tensor(value)
        if found is not None:
            leaf = Leaf()
            leaf.path, leaf.key = path, name(path)
            leaf.dtype, leaf.shape, leaf.global_shape, leaf.global_offset, leaf.value = found
            tensors.append(leaf)
        elif isinstance(value, dict) and value and all(type(k) in (str, int) for k in value):
            for k, v in value.items():
                visit(path + ((NAME, k) if type(k) is str else (NUMBER, k),), v)
        elif isinstance(value, (list, tuple)) and not hasattr(value, "_fields") and _holds_tensors(value):
            for i, v in enumerate(value):
                visit(path + ((INDEX, i),), v)
        else:
            objects.append((path, name(path), value))

    if not isinstance(state, dict):
        raise TypeError("a state dict is a dict")
    for k, v in state.items():
        if type(k) not in (str, int):
            raise TypeError(f"the state dict has a key that is neither text nor a number: {k!r}")
        visit(((NAME, k) if type(k) is str else (NUMBER, k),), v)
    return tensors, objects


def nest(leaves):
    """The nested dict of (path, value); lists where the steps were places."""
    root = {}
    lists = []
    for path, value in leaves:
        node = root
        for at, (kind, step) in enumerate(path):
            if at + 1 == len(path):
                node[step] = value
                break
            below = node.get(step)
            if below is None:
                below = node[step] = {}
                if path[at + 1][0] == INDEX:
                    lists.append((node, step))
            node = below
    for node, step in reversed(lists):  # the innermost first: `node` is still a dict then
        items = node[step]
        node[step] = [items[i] for i in sorted(items)]
    return root


def dump(value):
    """The bytes of a torch.save file of what is no tensor."""
    torch = torch_module()
    out = io.BytesIO()
    if torch is not None:
        torch.save(value, out)
        return out.getvalue()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, data in (("data.pkl", pickle.dumps(value, protocol=2)), ("byteorder", b"little"), ("version", b"3\n")):
            archive.writestr(zipfile.ZipInfo("archive/" + name), data)
    return out.getvalue()


class _Plain(pickle.Unpickler):
    """Values of Python's own types: nothing is imported, so nothing is run."""

    def find_class(self, module, name):
        if (module, name) in (("collections", "OrderedDict"), ("builtins", "set"), ("builtins", "complex")):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def restore(data, trusted):
    """The value of such a file. `trusted`: it is this job's own memory, or its owner says so; else only what runs nothing."""
    torch = torch_module()
    try:
        if torch is not None:
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=not trusted)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            top = archive.namelist()[0].split("/")[0]
            pickled = archive.read(top + "/data.pkl")
        return pickle.loads(pickled) if trusted else _Plain(io.BytesIO(pickled)).load()
    except pickle.UnpicklingError as error:
        raise FlashError(1, "an object of the checkpoint would run code when it is loaded, which trust=True allows: "
                            + str(error).split("\n")[0]) from error


def array(block, offset, nbytes, dtype, shape, kind):
    """A tensor, an array or a memoryview over part of a ctypes block, which lives as long as any of them."""
    elements = 1
    for n in shape:
        elements *= n
    if kind == "torch":
        import torch
        if nbytes == 0:
            return torch.empty(shape, dtype=getattr(torch, dtype))
        return torch.frombuffer(block, dtype=getattr(torch, dtype), count=elements, offset=offset).view(shape)
    if kind == "numpy":
        import numpy
        if dtype not in _FORMATS and dtype != "float16" and not dtype.startswith("complex"):
            raise TypeError(f"numpy has no {dtype}")
        return numpy.frombuffer(block, dtype=dtype, count=elements, offset=offset).reshape(shape)
    view = memoryview(block).cast("B")[offset:offset + nbytes].cast(_FORMATS[dtype])
    return view.cast("B").cast(_FORMATS[dtype], shape) if len(shape) > 1 and nbytes > 0 else view


__all__ = ["Leaf", "array", "dump", "flatten", "nest", "restore", "torch_module"]
