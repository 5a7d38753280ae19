"""libckpt-flash through ctypes: the structures of ckpt_flash.h, and its errors as exceptions."""
import ctypes
import os
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

ANY_STEP = 2**64 - 1
SKIPPED, LOST = 1000, 1002
SKIP, WAIT, FAIL = 0, 1, 2
NAME, NUMBER, INDEX = 0, 1, 2
VALUE, COMMON, PRIVATE = 0, 1, 2
#: Bytes of an element, by torch's names.
ITEM_BYTES = {"bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4, "uint64": 8, "int64": 8,
              "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex32": 4, "complex64": 8, "complex128": 16,
              "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
              "float4_e2m1fn_x2": 1}
LEVELS = {1: "memory", 2: "partner", 3: "storage"}


class FlashError(RuntimeError):
    """`status`: an exit code of ckpt, or LOST."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class NotFound(FlashError):
    """There is no agent, or no such step."""


class Busy(FlashError):
    """The agent is still writing."""


class Lost(FlashError):
    """The agent is gone."""


class Step(ctypes.Structure):
    _fields_ = [("kind", c_int32), ("name", c_char_p), ("number", c_int64)]


class Tensor(ctypes.Structure):
    _fields_ = [("key", c_char_p), ("dtype", c_char_p), ("dims", c_uint32), ("shape", POINTER(c_uint64)),
                ("global_shape", POINTER(c_uint64)), ("global_offset", POINTER(c_uint64)), ("steps", c_uint32),
                ("path", POINTER(Step))]


class Object(ctypes.Structure):
    _fields_ = [("key", c_char_p), ("kind", c_int32), ("steps", c_uint32), ("path", POINTER(Step)), ("data", c_void_p),
                ("bytes", c_uint64)]


class Options(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("directory", c_char_p), ("socket", c_char_p), ("rank", c_uint32),
                ("world", c_uint32), ("local_world", c_uint32), ("threads", c_uint32), ("partner_copy", c_uint32)]


class SavedInfo(ctypes.Structure):
    _fields_ = [("copy_us", c_uint64), ("total_us", c_uint64), ("bytes", c_uint64), ("newest_step", c_uint64),
                ("protected_bytes", c_uint64)]


class LoadedInfo(ctypes.Structure):
    _fields_ = [("step", c_uint64), ("level", c_int32), ("tensors", c_uint32), ("objects", c_uint32),
                ("tensor", POINTER(Tensor)), ("data", POINTER(c_void_p)), ("object", POINTER(Object)),
                ("bytes", c_uint64), ("total_us", c_uint64), ("mapping", c_void_p)]


def find_library():
    """CKPT_FLASH_LIBRARY, else where `make install` and the package put it, else beside a ckpt in PATH (a build folder)."""
    named = os.environ.get("CKPT_FLASH_LIBRARY")
    if named:
        return named
    here = os.path.dirname(os.path.abspath(__file__))
    folders = [here, os.path.join(here, "..", "..", "..", "build"), "/usr/local/lib/ckpt", "/usr/lib/ckpt"]
    binaries = [os.environ.get("CKPT_BIN", "")]
    binaries += [os.path.join(folder, "ckpt") for folder in os.environ.get("PATH", "").split(os.pathsep)]
    for binary in binaries:
        if os.path.isfile(binary):
            folder = os.path.dirname(os.path.realpath(binary))
            folders += [folder, os.path.join(folder, "..", "lib", "ckpt")]
    for folder in folders:
        path = os.path.join(folder, "libckpt-flash.so")
        if os.path.isfile(path):
            return os.path.realpath(path)
    raise ImportError("libckpt-flash.so is not found: install ckpt, or name the file in CKPT_FLASH_LIBRARY")


def find_binary(library):
    """The ckpt that the library came with, to start an agent."""
    folder = os.path.dirname(library)
    candidates = [os.environ.get("CKPT_BIN", ""), os.path.join(folder, "ckpt"),
                  os.path.join(folder, "..", "..", "bin", "ckpt")]
    candidates += [os.path.join(place, "ckpt") for place in os.environ.get("PATH", "").split(os.pathsep)]
    for candidate in candidates:
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return os.path.realpath(candidate)
    raise FlashError(4, "no ckpt is found that could be started as agent: set CKPT_BIN")


class Library:
    """One handle. Not thread-safe, as in C."""

    _shared = None

    @classmethod
    def shared(cls):
        if cls._shared is None:
            path = find_library()
            lib = ctypes.CDLL(path)
            lib.path = path
            lib.ckpt_flash_error.restype = c_char_p
            lib.ckpt_flash_close.restype = lib.ckpt_flash_leave.restype = lib.ckpt_flash_unload.restype = None
            for name, types in {
                    "open": [POINTER(Options), POINTER(c_void_p)], "reconnect": [c_void_p], "error": [c_void_p],
                    "declare": [c_void_p, POINTER(Tensor), c_uint32, c_uint64], "ready": [c_void_p],
                    "save": [c_void_p, c_uint64, POINTER(c_void_p), POINTER(Object), c_uint32, c_int, c_uint64, c_int,
                             POINTER(SavedInfo)],
                    "snapshot": [c_void_p, c_uint64, POINTER(c_void_p), POINTER(Object), c_uint32, c_int, c_uint64, c_int,
                                 POINTER(SavedInfo)],
                    "wait": [c_void_p, POINTER(SavedInfo)], "done": [c_void_p],
                    "look": [c_void_p, c_uint32, c_uint64, POINTER(POINTER(LoadedInfo))],
                    "begin": [c_void_p, c_uint64, c_int, c_uint64, POINTER(c_void_p)],
                    "copy": [c_void_p, POINTER(c_void_p)], "places": [c_void_p, POINTER(c_void_p)],
                    "commit": [c_void_p, POINTER(Object), c_uint32, c_int, POINTER(SavedInfo)], "abort": [c_void_p],
                    "keep": [c_void_p, c_uint64],
                    "load": [c_void_p, c_uint64, c_int, c_char_p, POINTER(POINTER(LoadedInfo))],
                    "unload": [c_void_p, POINTER(LoadedInfo)], "persist": [c_void_p, c_uint64, c_char_p, c_int],
                    "status": [c_void_p, POINTER(c_char_p)], "close": [c_void_p], "leave": [c_void_p]}.items():
                getattr(lib, "ckpt_flash_" + name).argtypes = types
            cls._shared = lib
        return cls._shared

    def __init__(self, directory, socket, rank, world, local_world, threads, partner_copy=False):
        self.lib = Library.shared()
        self.handle = c_void_p()
        self._closed = c_void_p()  # the handle, for what was loaded and is still there
        self._pid = os.getpid()
        options = Options(ctypes.sizeof(Options), os.fsencode(directory), os.fsencode(socket) if socket else None, rank,
                          world, local_world, threads, int(partner_copy))
        self.opened = self.lib.ckpt_flash_open(byref(options), byref(self.handle))

    def check(self, status):
        if status in (0, SKIPPED):
            return status
        text = (self.lib.ckpt_flash_error(self.handle) or b"").decode(errors="replace") if self.handle else ""
        kind = {4: NotFound, 7: Busy, LOST: Lost}.get(status, FlashError)
        raise kind(status, text or f"libckpt-flash: status {status}")

    def __getattr__(self, name):
        function = getattr(self.lib, "ckpt_flash_" + name)
        if not self.handle:
            raise FlashError(2, f"{name}: the engine is closed")
        return lambda *arguments: self.check(function(self.handle, *arguments))

    @property
    def is_own(self):
        """False in a forked child: the connection is its parent's."""
        return os.getpid() == self._pid

    def unload(self, loaded):
        handle = self.handle or self._closed
        if handle and self.is_own:
            self.lib.ckpt_flash_unload(handle, loaded)

    def close(self):
        self._end(self.lib.ckpt_flash_close)

    def leave(self):
        """As close, but the agent takes this trainer for dead, and keeps its memory for the next one."""
        self._end(self.lib.ckpt_flash_leave)

    def _end(self, function):
        if self.handle and self.is_own:
            function(self.handle)
            self._closed, self.handle = self.handle, c_void_p()


def steps_of(path):
    """A tuple of names, ints (a dict's numbers) and ("index", n) as an array that lives as long as what it is put in."""
    out = (Step * len(path))()
    for at, (kind, value) in enumerate(path):
        out[at] = Step(kind, value.encode() if kind == NAME else None, 0 if kind == NAME else value)
    return out


def tensors_of(shapes):
    """(key, dtype, shape, global shape or None, global offset or None, path) of each as an array for `declare`."""
    out = (Tensor * len(shapes))()
    for at, (key, dtype, shape, global_shape, global_offset, path) in enumerate(shapes):
        dims = len(shape)
        numbers = [(c_uint64 * dims)(*values) if values is not None else None
                   for values in (shape, global_shape, global_offset)]
        out[at] = Tensor(key.encode(), dtype.encode(), dims, numbers[0], numbers[1], numbers[2], len(path), steps_of(path))
    return out


def objects_of(blobs):
    """(path, key, kind, bytes) of each as an array for `commit`."""
    out = (Object * len(blobs))()
    for at, (path, key, kind, blob) in enumerate(blobs):
        out[at] = Object(key.encode(), kind, len(path), steps_of(path), ctypes.cast(c_char_p(blob), c_void_p), len(blob))
    return out


def path_of(steps, count):
    return tuple((steps[i].kind, steps[i].name.decode() if steps[i].kind == NAME else steps[i].number)
                 for i in range(count))
