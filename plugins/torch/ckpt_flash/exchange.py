"""Bytes that ranks want of one another, through a channel of the job (group.py), a bounded part of them at a time."""
import itertools

import torch

CHUNK = 64 << 20  # bytes that are on the way at a time, in each direction


def exchange(channel, rank, give, take, deliver):
    """Every rank of the job calls it. `give`: for each rank [(size, make)], make() being those bytes as a flat tensor of uint8. `take`: for
    each rank [(size, what)], in the order in which that one gives. deliver(what, bytes) is called once they are there; what it raises is
    raised at the end, so that no rank is left waiting. Sizes are above 0."""
    failed = []
    for shift in range(1, len(give)):
        to, source = (rank + shift) % len(give), (rank - shift) % len(give)
        for mine, theirs in itertools.zip_longest(_sent(give[to]), _received(take[source], deliver, failed)):
            channel.swap(mine, to, theirs, source)
    if failed:
        raise failed[0]


def _batches(items):
    """As many in a row as fit into a chunk, one at least."""
    batch, filled = [], 0
    for item in items:
        if batch and filled + item[0] > CHUNK:
            yield batch
            batch, filled = [], 0
        batch.append(item)
        filled += item[0]
    if batch:
        yield batch


def _chunks(flat):
    view = memoryview(flat.numpy())
    return (view[at:at + CHUNK] for at in range(0, len(view), CHUNK))


def _sent(items):
    for batch in _batches(items):
        parts = [make() for _, make in batch]
        yield from _chunks(parts[0] if len(parts) == 1 else torch.cat(parts))


def _received(items, deliver, failed):
    for batch in _batches(items):
        sizes = [size for size, _ in batch]
        flat = torch.empty(sum(sizes), dtype=torch.uint8)
        yield from _chunks(flat)  # filled when the next one is asked for
        for (_, what), part in zip(batch, flat.split(sizes)):
            try:
                # Of its own where others lie before it: their sizes may not suit its type.
                deliver(what, part if part.storage_offset() == 0 else part.clone())
            except Exception as error:
                failed.append(error)
