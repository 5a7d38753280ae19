"""Network namespaces as nodes, gloo over the lines between them, an agent on each: a node is lost in the middle of its saves, with its
line, its processes and all its memory. A spare one takes its place, and the job goes on from a step that was protected."""
import os
import pathlib
import signal
import sys
import time

import pytest
import torch

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(SOURCE / "plugins" / "torch"), str(SOURCE / "tests" / "support")]
CKPT = os.path.abspath(os.environ.get("CKPT_BIN", str(SOURCE / "build" / "ckpt")))
LIBRARY = os.environ.setdefault("CKPT_FLASH_LIBRARY", os.path.join(os.path.dirname(CKPT), "libckpt-flash.so"))
os.environ["CKPT_BIN"] = CKPT
from flash_nodes import Processes, join, needs, nodes_or_skip, tell, told  # noqa: E402
pytestmark = needs(LIBRARY)


def state_of(rank, step):
    torch.manual_seed(1000 * rank + step)
    return {"model": {f"w{rank}": torch.randn(500_003), "half": torch.full((7,), float(step)).half()}, "step": step, "rng": torch.get_rng_state()}


def equal(a, b):
    return a.keys() == b.keys() and all(equal(a[k], b[k]) if isinstance(b[k], dict) else torch.equal(a[k], b[k]) if torch.is_tensor(b[k])
                                        else a[k] == b[k] for k in b)


def one_rank(base, node, rank, world, local, master, last):
    """Says what it has loaded, then which steps are protected. `last`: 0 until it is killed, else that many more."""
    from ckpt_flash import Engine
    join(rank, world, master)
    engine = Engine(f"{base}/c", socket=f"{base}/{node}.sock", local_world=local, linger=60, partners=1, max_to_keep=2, if_busy="wait",
                    persist_on_death=False)
    loaded = engine.load()
    step = loaded.step if loaded is not None else 0
    assert step == 0 or equal(loaded, state_of(rank, step)), (rank, step)
    begin, level = step, loaded.level if loaded is not None else "none"
    while last == 0 or step < begin + last:
        step += 1
        torch.distributed.barrier()
        assert engine.save(step, state_of(rank, step), persist=step == begin + last)
        engine._settle()
        tell(base, rank, {"step": begin, "level": level, "protected": engine.protected_step, "agent": engine.status()["pid"]})
    while engine.status()["persisted_step"] != step:
        time.sleep(0.05)
    torch.distributed.barrier()
    engine.leave()
    os._exit(0)


@pytest.mark.parametrize("count,local", [(2, 2), (4, 1)])
def test_a_node_that_is_lost_costs_no_protected_step(tmp_path, ckpt, count, local):
    from nodes import command
    nodes = nodes_or_skip(count + 1)
    agents, base = set(), str(tmp_path)
    try:
        job = Processes(__file__, base, nodes, list(range(count)), local, 29500, 0)
        job.wait(lambda: all((told(base, rank).get("protected") or 0) >= 3 for rank in range(job.world)))
        agents |= {told(base, rank)["agent"] for rank in range(job.world)}
        lost = count - 1
        protected = max(told(base, rank)["protected"] for rank in range(job.world))
        command("ip", "-n", nodes.router, "link", "set", f"p{lost}", "down")
        its_ranks = range(lost * local, lost * local + local)
        os.kill(told(base, its_ranks[0])["agent"], signal.SIGKILL)
        job.kill(its_ranks)
        protected = max([protected, *(told(base, rank)["protected"] for rank in range(job.world))])
        job.kill(range(job.world))  # as the launcher does
        job = Processes(__file__, base, nodes, [*range(lost), count], local, 29501, 2)
        job.end_well()
        agents |= {told(base, rank)["agent"] for rank in range(job.world)}
        steps = {told(base, rank)["step"] for rank in range(job.world)}
        assert len(steps) == 1 and min(steps) >= protected, (steps, protected)
        assert [told(base, rank)["level"] for rank in range(job.world)] == ["memory"] * its_ranks[0] + ["partner"] * local
        newest = min(steps) + 2
        ckpt("verify", f"{base}/c/iter_{newest:07}")  # that the agents of all nodes wrote together
        whole = torch.distributed.checkpoint.FileSystemReader(f"{base}/c/iter_{newest:07}").read_metadata().state_dict_metadata
        assert {f"model.w{rank}" for rank in range(job.world)} <= set(whole)
    finally:
        job.end(agents)
        nodes.remove()


if __name__ == "__main__":
    one_rank(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]), sys.argv[6], int(sys.argv[7]))
