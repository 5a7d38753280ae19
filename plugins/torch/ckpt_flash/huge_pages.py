"""The trainer's tensors in huge pages: a snapshot has far fewer of them to write-protect."""
import ctypes
import os
import warnings

_SIZE = 2 << 20
_HUGEPAGE, _COLLAPSE = 14, 25  # MADV_, linux/mman.h; COLLAPSE of Linux 6.1


class HugePages:
    """Once for each place where tensors lie. What they hold stays as it is."""

    def __init__(self):
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self._seen, self._warned = set(), False

    def move(self, leaves, pointers, sizes):
        """Of each Leaf what whole huge pages have room in. `pointers`: what their `pointer` gave."""
        for leaf, pointer, size in zip(leaves, pointers, sizes):
            if pointer is None or leaf.kept is not leaf.value:  # on a device, or a copy for this save alone
                continue
            begin, end = -(-pointer // _SIZE) * _SIZE, (pointer + size) // _SIZE * _SIZE
            if begin < end and (begin, end) not in self._seen:
                self._seen.add((begin, end))
                self._advise(begin, end - begin)

    def _advise(self, begin, size):
        # What is not there yet comes in huge pages, and what is there is moved now.
        for advice in (_HUGEPAGE, _COLLAPSE):
            if self._libc.madvise(begin, size, advice) != 0 and not self._warned:
                self._warned = True
                warnings.warn(f"not all tensors could be moved into huge pages, and a snapshot takes longer: {os.strerror(ctypes.get_errno())}",
                              stacklevel=2)
