"""What the interop tests share. CKPT_BIN names the program; `run` calls it, `Bits` compares tensors bit for bit."""
import json
import os
import pathlib
import subprocess
import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader

warnings.filterwarnings("ignore")
SOURCE = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = pathlib.Path(os.environ.get("CKPT_FIXTURES", SOURCE.parent / "shared" / "fixtures"))
CKPT = os.environ.get("CKPT_BIN", str(SOURCE / "build" / "ckpt"))


class Tool:
    def __call__(self, *args, code=0):
        done = subprocess.run([CKPT, *map(str, args)], capture_output=True, text=True)
        assert done.returncode == code, f"{args}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def json(self, *args, code=0):
        return json.loads(self(*args, "--json", code=code).stdout)

    def convert(self, source, destination, *options):
        self("convert", source, destination, "--to", "torch_dist", *options)
        return destination


@pytest.fixture(scope="session")
def ckpt():
    return Tool()


@pytest.fixture(scope="session")
def single_process():
    """Megatron's loader wants a process group, if only of one."""
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "0")
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    yield
    torch.distributed.destroy_process_group()


def one_rank(rank, world, body, store, arguments):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", "0"
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    body(rank, *arguments)
    torch.distributed.barrier()
    os._exit(0)


def as_processes(world, body, store, *arguments, how="spawn"):
    """Runs body(rank, *arguments) as ranks that meet at the file `store`. They leave without torch's destructors:
    that of Gloo's group joins a thread that may wait for the interpreter's lock, which the destructor's caller holds
    (seen with torch 2.13 on a busy machine: the rank never ends)."""
    torch.multiprocessing.start_processes(one_rank, (world, body, store, arguments), nprocs=world, start_method=how)


def as_two_processes(body, store, *arguments):
    as_processes(2, body, store, *arguments)


def bits(tensor):
    """The tensor's row-major bytes."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)


def load_tensors(folder):
    """Every tensor of a checkpoint, through torch's own loader."""
    metadata = FileSystemReader(folder).read_metadata()
    state = {k: torch.empty(m.size, dtype=m.properties.dtype) for k, m in metadata.state_dict_metadata.items() if hasattr(m, "size")}
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    return state


def fixture(*parts):
    path = FIXTURES.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"fixture {'/'.join(parts)} is not here")
    return path
