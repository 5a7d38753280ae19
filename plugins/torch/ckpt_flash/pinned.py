"""Memory of the agent that a GPU may write to by itself: page-locked for CUDA (cudaHostRegister)."""
import mmap
import warnings

from . import state as states


class Pinned:
    """Ranges that are registered with CUDA, until they are released or the process ends. Without that a copy from a GPU goes
    through a small buffer of the driver's, and the loop waits for each tensor."""

    def __init__(self):
        self._ranges = set()
        self._given_up = False

    def pin(self, begin, end):
        """The pages around [begin, end), once. Where CUDA refuses, copies are slower, and a warning says why."""
        begin -= begin % mmap.PAGESIZE
        end += -end % mmap.PAGESIZE
        if self._given_up or (begin, end) in self._ranges:
            return
        runtime = self._runtime()
        if runtime is None:
            return
        code = int(runtime.cudaHostRegister(begin, end - begin, 0))
        if code != 0:
            self._given_up = True
            self._clear_error()
            warnings.warn(f"ckpt_flash: {end - begin} bytes cannot be page-locked for the GPU (cudaHostRegister: {code}): saves "
                          "are slower (ulimit -l?)", stacklevel=2)
            return
        self._ranges.add((begin, end))

    def release(self):
        """Before the memory is unmapped."""
        for begin, _ in self._ranges:
            self._runtime().cudaHostUnregister(begin)
        self._ranges.clear()
        self._given_up = False

    @staticmethod
    def _clear_error():
        """CUDA keeps an error until it is asked for; torch asks at the next kernel, of the program's own."""
        torch = states.torch_module()
        try:
            torch.empty(1, device="cuda").fill_(1)
        except RuntimeError:
            pass

    @staticmethod
    def _runtime():
        """CUDA's runtime as torch has loaded it; None where there is none (ROCm, XPU, the CPU)."""
        torch = states.torch_module()
        if torch is None or not torch.cuda.is_available() or torch.version.cuda is None:
            return None
        return torch.cuda.cudart()
