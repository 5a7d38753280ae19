"""A torch job whose nodes are network namespaces (nodes.py), gloo over the lines between them: its ranks run a script, and tell by files."""
import contextlib
import datetime
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time


def needs(library):
    """What tests of such jobs are marked with."""
    import pytest
    return [pytest.mark.skipif(not os.path.exists(library), reason="libckpt-flash.so is not built here"),
            pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("nsenter") is None,
                               reason="no network namespaces without root and ip")]


def nodes_or_skip(count):
    import pytest
    from nodes import Nodes
    try:
        return Nodes(count)
    except SystemExit:
        pytest.skip("no network namespaces here")


def join(rank, world, master):
    import torch
    torch.distributed.init_process_group("gloo", init_method=f"tcp://{master}", rank=rank, world_size=world, timeout=datetime.timedelta(seconds=60))


def tell(base, rank, what):
    pathlib.Path(f"{base}/told.{rank}.new").write_text(json.dumps(what))
    os.rename(f"{base}/told.{rank}.new", f"{base}/told.{rank}")


def told(base, rank):
    with contextlib.suppress(FileNotFoundError):
        return json.loads(pathlib.Path(f"{base}/told.{rank}").read_text())
    return {}


class Processes:
    """The ranks of a job, each in the network of its node."""

    def __init__(self, script, base, nodes, places, local, port, *arguments):
        """`script` is given: base, node, rank, world, local world, the address of rank 0, and `arguments`. `places`: a node's number for
        each node of the job."""
        self.base, self.world = base, len(places) * local
        for old in pathlib.Path(base).glob("told.*"):
            old.unlink()
        environment = dict(os.environ, GLOO_SOCKET_IFNAME="eth0", OMP_NUM_THREADS="1")
        for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            environment.pop(name, None)
        self.ranks = [subprocess.Popen(
            ["nsenter", f"--net=/run/netns/{nodes.names[place]}", sys.executable, script, base, str(place), str(at * local + rank), str(self.world),
             str(local), f"{nodes.address(places[0])}:{port}", *map(str, arguments)], env=environment)
            for at, place in enumerate(places) for rank in range(local)]

    def wait(self, condition, seconds=240):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, [told(self.base, rank) for rank in range(self.world)]
            assert all(rank.poll() in (None, 0) for rank in self.ranks)
            time.sleep(0.02)

    def end_well(self):
        """All of them do."""
        self.wait(lambda: all(rank.poll() == 0 for rank in self.ranks))

    def kill(self, which):
        for rank in which:
            self.ranks[rank].kill()
        for rank in which:
            self.ranks[rank].wait()

    def end(self, agents):
        """Whatever is left, these agents by their pid, too."""
        self.kill([rank for rank in range(self.world) if self.ranks[rank].poll() is None])
        for agent in agents:
            with contextlib.suppress(ProcessLookupError):
                os.kill(agent, signal.SIGKILL)
