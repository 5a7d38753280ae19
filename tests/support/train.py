#!/usr/bin/env python3
"""A training loop to be checkpointed: a multi-layer perceptron in single precision on made-up data, with momentum.

Everything follows from the seed, so that two runs end with the same weights to the last bit, whatever happened to the
process on the way. Needs numpy alone. The data set stays as it is; weights, momentum and gradients change at every step.
"""
import argparse
import hashlib
import os
import sys
import time

import numpy as np


def relu_grad(activated, grad):
    grad[activated <= 0] = 0
    return grad


class Model:
    def __init__(self, rng, sizes):
        self.weights = [rng.standard_normal((a, b), dtype=np.float32) * np.float32((2 / a) ** 0.5)
                        for a, b in zip(sizes, sizes[1:])]
        self.momentum = [np.zeros_like(w) for w in self.weights]
        self.grads = [np.empty_like(w) for w in self.weights]

    def step(self, x, labels, rate):
        """One step of stochastic gradient descent; returns the loss before it."""
        layers = [x]
        for w in self.weights[:-1]:
            layers.append(np.maximum(layers[-1] @ w, 0))
        logits = layers[-1] @ self.weights[-1]
        logits -= logits.max(axis=1, keepdims=True)
        chances = np.exp(logits)
        chances /= chances.sum(axis=1, keepdims=True)
        rows = np.arange(len(x))
        loss = -np.log(chances[rows, labels] + np.float32(1e-9)).mean()
        grad = chances
        grad[rows, labels] -= 1
        grad /= np.float32(len(x))
        for i in reversed(range(len(self.weights))):
            np.matmul(layers[i].T, grad, out=self.grads[i])
            if i > 0:
                grad = relu_grad(layers[i], grad @ self.weights[i].T)
        for w, m, g in zip(self.weights, self.momentum, self.grads):
            m *= np.float32(0.9)
            m += g
            w -= np.float32(rate) * m
        return float(loss)

    def sha256(self):
        digest = hashlib.sha256()
        for w in self.weights:
            digest.update(w.tobytes())
        return digest.hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", help="gets a line every tenth of the run, and the SHA-256 of the final weights")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--samples", type=int, default=49152, help="of 4 KiB each")
    options = parser.parse_args()

    rng = np.random.default_rng(options.seed)
    x = rng.standard_normal((options.samples, 1024), dtype=np.float32)
    labels = (x[:, :16] + x[:, 16:32]).argmax(axis=1)
    model = Model(rng, [1024, 2048, 2048, 16])
    every = max(1, options.steps // 20)
    begin = time.monotonic()
    with open(options.log, "w", encoding="ascii") as log:
        print(f"pid {os.getpid()}: {x.nbytes >> 20} MiB of data, "
              f"{3 * sum(w.nbytes for w in model.weights) >> 20} MiB of weights, momentum and gradients", file=log, flush=True)
        for step in range(1, options.steps + 1):
            picked = rng.integers(0, options.samples, 32)
            loss = model.step(x[picked], labels[picked], rate=0.002)
            if step % every == 0:
                print(f"step {step:4d}  loss {loss:.6f}", file=log, flush=True)
        print(f"sha256 {model.sha256()}", file=log, flush=True)
    print(f"{time.monotonic() - begin:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
