#!/usr/bin/env python3
"""E6: a training loop of PyTorch that is the same to the bit from run to run.

  e6_training.py train FOLDER STEPS    writes FOLDER/pid, one line a step to FOLDER/losses, FOLDER/done at the end
  e6_training.py dirty                 prints which part of the device memory differs from stop to stop, by size of chunk
"""
import os
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import torch  # pylint: disable=wrong-import-position
from torch import nn  # pylint: disable=wrong-import-position

WORDS, WIDTH, LAYERS, LENGTH, BATCH = 32000, 768, 8, 256, 8
CHUNKS = [64 << 10, 256 << 10, 1 << 20, 2 << 20]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 12, 4 * WIDTH, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        return self.head(self.layers(self.embedding(tokens)))


class Training:
    def __init__(self):
        torch.manual_seed(1)
        torch.use_deterministic_algorithms(True)
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        self.model = Model().cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.number = 0

    def step(self):
        generator = torch.Generator().manual_seed(self.number)
        tokens = torch.randint(WORDS, (BATCH, LENGTH + 1), generator=generator).cuda()
        torch.manual_seed(1000 + self.number)
        logits = self.model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.reshape(-1, WORDS), tokens[:, 1:].reshape(-1))
        self.optimizer.zero_grad(set_to_none=False)
        loss.backward()
        self.optimizer.step()
        self.number += 1
        return loss.item()


def train(folder, steps):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "pid"), "w", encoding="ascii") as stream:
        stream.write(str(os.getpid()))
    training = Training()
    with open(os.path.join(folder, "losses"), "w", encoding="ascii") as stream:
        for _ in range(steps):
            began = time.monotonic()
            loss = training.step()
            stream.write(f"{loss.hex()} {time.monotonic() - began:.6f}\n")
            stream.flush()
    with open(os.path.join(folder, "done"), "w", encoding="ascii"):
        pass


def segments():
    """All device memory that PyTorch's allocator holds, as tensors of bytes."""
    out = []
    for segment in torch.cuda.memory_snapshot():
        size = segment["total_size"] & ~(CHUNKS[-1] - 1)
        if size == 0:
            continue
        storage = torch._C._construct_storage_from_data_pointer(segment["address"], torch.device("cuda"), size)
        out.append(torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage))
    return out


def dirty():
    training = Training()
    for _ in range(3):
        training.step()
    for steps in (1, 5):
        kept = [(segment, segment.cpu()) for segment in segments()]
        for _ in range(steps):
            training.step()
        torch.cuda.synchronize()
        total = sum(before.numel() for _, before in kept)
        for chunk in CHUNKS:
            changed = 0
            for segment, before in kept:
                now = segment.cpu()
                differs = (now.view(torch.int64) != before.view(torch.int64)).view(-1, chunk // 8).any(dim=1)
                changed += int(differs.sum()) * chunk
            name = f"dirty after {steps} steps, chunks of {chunk >> 10} KiB, of {total / 2**30:.2f} GiB"
            print(f"RESULT | E6 | {name} | {changed / total:.4f} | ratio")


if sys.argv[1] == "train":
    train(sys.argv[2], int(sys.argv[3]))
else:
    dirty()
