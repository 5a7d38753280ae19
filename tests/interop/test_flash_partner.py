"""Several nodes, each with an agent of its own: partner copies, by which a job goes on after a node is lost, or after the launcher has
numbered the nodes anew; and one checkpoint that all agents write together."""
import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from conftest import CKPT, SOURCE, as_processes, bits, one_rank

LIBRARY = os.path.join(os.path.dirname(CKPT), "libckpt-flash.so")
pytestmark = pytest.mark.skipif(not os.path.exists(LIBRARY), reason="libckpt-flash.so is not built here")
os.environ["CKPT_BIN"], os.environ["CKPT_FLASH_LIBRARY"] = os.path.abspath(CKPT), os.path.abspath(LIBRARY)
sys.path.insert(0, str(SOURCE / "plugins" / "torch"))
from ckpt_flash import Engine  # noqa: E402

LOCAL, WORLD = 2, 4


def together(world, body, store, *arguments):
    """By fork: this process itself computes nothing with torch, so its threads are not there yet."""
    as_processes(world, body, store, *arguments, how="fork")


def state_of(rank, step):
    torch.manual_seed(1000 * rank + step)
    # 5 MB, so that it goes in several chunks; a layout of its own for each rank.
    return {"model": {"w": torch.randn(1_000_003 + rank), "half": torch.randn(7).half(), "empty": torch.empty(0, 3)},
            "step": step, "name": f"rank {rank}", "list": [torch.arange(rank + 1), {"text": "x"}]}


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


def engine_of(rank, base, nodes, **options):
    """`nodes`: their names, in the order of their ranks."""
    node = nodes[rank // LOCAL]
    return Engine(f"{base}/{node}", socket=f"{base}/{node}.sock", rank=rank, world=WORLD, local_world=LOCAL, linger=60,
                  partners=1, persist_on_death=False, **options)


def train(rank, base, nodes, steps, options):
    import ckpt_flash.partner
    ckpt_flash.partner.CHUNK = 1 << 20
    engine = engine_of(rank, base, nodes)
    for step in steps:
        assert engine.save(step, state_of(rank, step), **options)
    engine._settle()
    assert engine.protected_step == steps[-1]
    torch.distributed.barrier()  # all die at once, as if nobody had closed


def resume(rank, base, nodes, step, levels):
    engine = engine_of(rank, base, nodes)
    loaded = engine.load()
    assert (loaded.step, loaded.level) == (step, levels[rank // LOCAL]), (rank, loaded.step, loaded.level)
    assert equal(dict(loaded), state_of(rank, step))
    # And the job goes on: saves, loses nothing of what it has.
    assert engine.save(step + 1, state_of(rank, step + 1))
    assert engine.load().step == step + 1 and engine.protected_step == step + 1
    torch.distributed.barrier()


def status(base, node):
    return json.loads(subprocess.run([CKPT, "agent", f"{base}/{node}", "--socket", f"{base}/{node}.sock", "--status", "--json"],
                                     check=True, capture_output=True, text=True).stdout)


def lose(base, node):
    """With all its memory."""
    os.kill(status(base, node)["pid"], signal.SIGKILL)
    lose_files(base, node)


def lose_files(base, node):
    subprocess.run(["rm", "-rf", f"{base}/{node}", f"{base}/{node}.sock"], check=True)


@pytest.fixture
def base(tmp_path):
    yield tmp_path
    for socket in tmp_path.glob("*.sock"):
        try:
            lose(tmp_path, socket.stem)
        except (subprocess.CalledProcessError, ProcessLookupError):
            pass


def test_a_lost_node_costs_no_step(base):
    together(WORLD, train, base / "store1", str(base), "ab", [1, 2, 3], {})
    assert [one["steps"][-1] for one in status(base, "a")["partner_copies"]] == [3, 3]
    lose(base, "b")
    together(WORLD, resume, base / "store2", str(base), "ac", 3, ["memory", "partner"])
    assert [(one["rank"], one["steps"]) for one in status(base, "c")["partner_copies"]] == [(0, [3, 4]), (1, [3, 4])]
    # Both nodes are told other numbers: each has the other's memory.
    together(WORLD, resume, base / "store3", str(base), "ca", 4, ["memory", "memory"])
    # The node that held rank 0 and 1 goes; what it held is at the other as its former own, or as a copy.
    lose(base, "c")
    together(WORLD, resume, base / "store4", str(base), "da", 5, ["partner", "memory"])


def test_a_snapshot_is_sent_once_it_is_complete(base):
    together(WORLD, train, base / "store1", str(base), "ab", [1, 2], {"mode": "snapshot"})
    lose(base, "a")
    together(WORLD, resume, base / "store2", str(base), "cb", 2, ["partner", "memory"])


def without_a_second_node(rank, base):
    with pytest.raises(ValueError, match=f"rank {1 - rank} is rank {rank} of the job's own group"):
        Engine(base, rank=1 - rank, world=2, local_world=1, linger=1, partners=1)
    with pytest.raises(ValueError, match="nodes of the same number of ranks"):
        Engine(base, rank=rank, world=2, local_world=2, linger=1, partners=1)
    with pytest.raises(ValueError, match="on one node"):
        Engine(base, rank=rank, world=2, local_world=1, linger=1, partners=1)


def one_dies(rank, base):
    engine = Engine(f"{base}/{rank}", socket=f"{base}/{rank}.sock", rank=rank, world=2, local_world=1, linger=60, partners=1)
    assert engine.save(1, state_of(rank, 1))
    engine._settle()
    torch.distributed.barrier()
    if rank == 1:
        engine.close()
        os._exit(0)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert engine.save(2, state_of(rank, 2))
        engine._settle()
        skipped = engine.save(3, state_of(rank, 3))
    assert not skipped and "the partner copies of step 2 are not complete" in skipped.skipped
    assert engine.protected_step == 1 and any("step 2 are not complete" in str(one.message) for one in told)
    assert engine.status()["ranks"][0]["steps"] == [1, 2]
    os._exit(0)


def test_what_cannot_be_is_refused_and_a_partner_that_dies_is_told(base):
    together(2, without_a_second_node, base / "store1", str(base / "x"))
    together(2, one_dies, base / "store2", str(base))


def train_until_killed(rank, base, nodes, expected):
    engine = engine_of(rank, base, nodes)
    loaded = engine.load()
    step = 0
    if expected:
        step = loaded.step
        assert step >= expected and loaded.level in ("memory", "partner"), (step, expected, loaded.level)
        assert equal(dict(loaded), state_of(rank, step))
    told = os.open(f"{base}/protected.{rank}", os.O_CREAT | os.O_WRONLY)
    while True:
        step += 1
        torch.distributed.barrier()  # as a training step is one
        engine.save(step, state_of(rank, step), mode="snapshot" if step % 3 == 0 else "copy")
        if engine.protected_step:
            os.pwrite(told, b"%020d" % engine.protected_step, 0)


def protected(base):
    best = 0
    for path in pathlib.Path(base).glob("protected.*"):
        with contextlib.suppress(ValueError):
            best = max(best, int(path.read_text()))
    return best


def test_a_channel_is_not_used_again_once_copies_have_failed():
    """What is left of them in it would be taken for another exchange's bytes."""
    from ckpt_flash.partner import Partner
    partner = Partner.__new__(Partner)
    partner._channel, partner.broken = object(), ""
    assert partner.channel is partner._channel
    partner.broken = "the partner copies of step 3 are not complete: a rank is gone"
    with pytest.raises(RuntimeError, match="copies of step 3"):
        partner.channel


def test_a_node_killed_at_any_moment_costs_no_protected_step(base):
    rounds = 100 if os.environ.get("CKPT_LONG") else 4
    seed = int(os.environ.get("CKPT_SEED", random.randrange(10**6)))
    print("CKPT_SEED", seed)
    chance, nodes, expected = random.Random(seed), ["n0", "n1"], 0
    for number in range(rounds):
        job = torch.multiprocessing.start_processes(
            one_rank, (WORLD, train_until_killed, base / f"store{number}", (str(base), nodes, expected)), nprocs=WORLD, join=False,
            start_method="fork")
        end = time.monotonic() + 60
        while protected(base) <= expected:
            assert time.monotonic() < end, (number, expected)
            job.join(timeout=0.002)  # raises what a rank has raised
        time.sleep(chance.uniform(0, 0.2))
        lost = chance.randrange(2)
        order = [job.processes[rank].pid for rank in range(lost * LOCAL, lost * LOCAL + LOCAL)] + [status(base, nodes[lost])["pid"]]
        chance.shuffle(order)
        for pid in order:
            os.kill(pid, signal.SIGKILL)
        for process in job.processes:
            process.kill()
            process.join()
        expected = protected(base)
        lose_files(base, nodes[lost])
        nodes[lost] = f"n{number + 2}"
        chance.shuffle(nodes)  # the launcher numbers them as it likes


def save_together(rank, base):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (2,))
    whole = torch.arange(35.).reshape(5, 7)
    state = {"model": {"w": distribute_tensor(whole, mesh, [Shard(0)]), "b": torch.full((4,), 2.0).bfloat16(), "none": torch.empty(0, 3)},
             "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "lr": 0.5}, "rank": rank}
    engine = Engine(f"{base}/c", socket=f"{base}/{rank}.sock", rank=rank, world=2, local_world=1, linger=60, partners=1)
    assert engine.save(7, state, persist=True)
    end = time.monotonic() + 60
    while engine.status()["persisted_step"] != 7:
        assert time.monotonic() < end
        time.sleep(0.01)
    loaded = engine.load(level="storage")
    assert equal(loaded["model"]["w"], state["model"]["w"].to_local()) and loaded["rank"] == rank and loaded["optimizer"]["lr"] == 0.5
    torch.distributed.barrier()


def test_torch_reads_what_the_agents_of_two_nodes_wrote_together(base, ckpt):
    together(2, save_together, base / "store", str(base))
    folder = base / "c" / "iter_0000007"
    ckpt("verify", folder)
    target = {"model": {"w": torch.zeros(5, 7), "b": torch.zeros(4).bfloat16(), "none": torch.empty(0, 3)},
              "optimizer": {"state": {0: {"step": torch.tensor(0.0)}}, "lr": None}, "rank": None}
    dcp.load(target, checkpoint_id=folder, no_dist=True)
    assert equal(target, {"model": {"w": torch.arange(35.).reshape(5, 7), "b": torch.full((4,), 2.0).bfloat16(), "none": torch.empty(0, 3)},
                          "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "lr": 0.5}, "rank": 0})
    dcp_to_torch_save(folder, base / "whole.pt")  # the nested state dict, by torch's own exporter
    assert torch.load(base / "whole.pt", weights_only=True)["optimizer"]["state"]["0"]["step"] == 3
