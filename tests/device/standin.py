"""The stand-in driver for targets and for ckpt: import this before `harness`. CKPT_STANDIN is its file; without it the machine's
own driver is used."""
import atexit
import os
import shutil
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))

library = os.environ.get("CKPT_STANDIN")
if library:
    os.environ["CKPT_CUDA_DRIVER"] = library
    os.environ["LD_LIBRARY_PATH"] = os.path.dirname(library)
    os.environ["CKPT_CUDA_KERNELS"] = os.path.join(HERE, "driver", "ckpt_kernels.emu")
    # What the programs of one test take of the GPUs counts for them alone.
    folder = tempfile.mkdtemp(prefix="ckpt-standin-")
    os.environ["CKPT_STANDIN_DIR"] = folder
    atexit.register(shutil.rmtree, folder, True)
os.environ.setdefault("CKPT_STANDIN_GPUS", "2")
