#!/usr/bin/env python3
"""torchrun with two ranks over gloo, its store's io_uring included, dumped twice in a row. The losses of every step must be
those of an uninterrupted run, to the bit."""
import os

from app import SCRIPT, expect, main, report_round
from torch_training import interop_python

RANKS, STEPS = 2, int(os.environ.get("CKPT_STEPS", "1500"))


def drive(_):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(4)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    own = torch.Generator().manual_seed(100 + rank)
    with open(f"losses.{rank}", "w", encoding="ascii") as losses:
        for step in range(STEPS):
            points = torch.randn(32, 64, generator=own)
            loss = ((model(points) - points.sum(1, keepdim=True)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            if rank == 0:
                report_round(step + 1)
    dist.barrier()
    os._exit(0)  # torch's own end aborts now and then, with threads of gloo that nobody has joined


def losses(run):
    found = []
    for rank in range(RANKS):
        with open(os.path.join(run.folder, f"losses.{rank}"), encoding="ascii") as stream:
            found.append(stream.read().split())
    return found


def test(run):
    python = interop_python()

    def start(name):
        return run.start(name, [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", RANKS, SCRIPT,
                                "--drive", run.folder], env={**os.environ, "OMP_NUM_THREADS": "1"})
    straight = start("straight")
    straight.wait_end(300)
    expect(straight.ending, 0, "the exit status of torchrun")
    wanted = losses(run)
    expect([len(one) for one in wanted], [STEPS] * RANKS, "the number of steps")
    interrupted = start("interrupted")
    for _ in range(2):
        interrupted.wait_rounds(20)
        interrupted.checkpoint("--tcp-established", between=lambda: interrupted.wait_rounds(20))
    expect(interrupted.rounds() < STEPS, True, "it was dumped in the middle of its work")
    interrupted.wait_end(300)
    expect(interrupted.ending, 0, "the exit status of torchrun")
    expect(losses(run), wanted, "the losses")


if __name__ == "__main__":
    main(test, drive)
