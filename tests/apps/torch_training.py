#!/usr/bin/env python3
"""PyTorch trains on the processor, with DataLoader workers that hand over their batches through shared memory. The losses
of every step and the final weights must be those of an uninterrupted run, to the bit."""
import hashlib
import os
import subprocess

from app import SCRIPT, Skip, expect, main, report_answers, report_round

EPOCHS, BATCH, SAMPLES = 16, 32, 1280
STEPS = EPOCHS * SAMPLES // BATCH


def drive(_):
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    class Pictures(Dataset):
        """Made up from the index; the noise comes from the generator of whichever worker is asked."""

        def __len__(self):
            return SAMPLES

        def __getitem__(self, index):
            own = torch.Generator().manual_seed(index)
            picture = torch.randn(3, 24, 24, generator=own)
            return picture + 0.1 * torch.randn(3, 24, 24), index * 7 % 10

    torch.manual_seed(4)
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(),
                          nn.Flatten(), nn.Dropout(0.2), nn.Linear(32 * 9 * 9, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    loader = DataLoader(Pictures(), batch_size=BATCH, shuffle=True, num_workers=2, persistent_workers=True, prefetch_factor=4,
                        generator=torch.Generator().manual_seed(5))
    losses = []
    for _ in range(EPOCHS):
        for pictures, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(pictures), labels)
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item().hex())
            report_round(len(losses))
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    report_answers({"losses": losses, "weights": digest.hexdigest()})


def interop_python():
    """The environment that the interop tests use (tests/interop/make_env.sh); made here if it is not there."""
    script = os.path.join(os.path.dirname(SCRIPT), "..", "interop", "make_env.sh")
    made = subprocess.run([script], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise Skip(f"no environment with torch: {made.stderr.strip()[-300:]}")
    return made.stdout.strip()


def test(run):
    python = interop_python()

    def start(name):
        return run.start(name, [python, SCRIPT, "--drive", run.folder], env={**os.environ, "OMP_NUM_THREADS": "2"})
    straight = start("straight")
    wanted = straight.answers()
    expect(len(wanted["losses"]), STEPS, "the number of steps")
    os.unlink(os.path.join(run.folder, "stop"))
    interrupted = start("interrupted")
    interrupted.wait_rounds(STEPS // 5)
    interrupted.checkpoint(between=lambda: interrupted.wait_rounds(STEPS // 8))
    expect(interrupted.rounds() < STEPS * 3 // 4, True, "it was dumped in the middle of its work")
    found = interrupted.answers()
    for step, (one, other) in enumerate(zip(found["losses"], wanted["losses"])):
        expect(one, other, f"the loss of step {step + 1}")
    expect(found, wanted, "losses and weights")


if __name__ == "__main__":
    main(test, drive)
