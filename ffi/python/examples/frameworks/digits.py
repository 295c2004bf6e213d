"""What the examples of this folder share: handwritten digits, a network, a rank that is late, and how they end."""

import pathlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import earlybird.torch

FILE = pathlib.Path(__file__).parents[4] / "data" / "digits.bin"
"""1,797 records of 64 pixels and the digit (``data/README.md``)."""

LATE = 0.030
"""Seconds that the last rank takes longer for each batch."""

GOAL = 600
"""Gradients of all ranks together: of 16 digits each."""


def loaders(rank: int, ranks: int) -> tuple[DataLoader, DataLoader]:
    """Batches of this rank's part of the digits to learn from, without an end, and those that are kept for evaluation.

    Partial rounds need no equal numbers of batches, so a framework's own division among ranks, which counts on them, is off.
    """
    records = torch.frombuffer(bytearray(FILE.read_bytes()), dtype=torch.uint8).view(-1, 65)
    pixels, digits = records[:, :64].float() / 16, records[:, 64].long()
    is_kept = torch.arange(len(records)) % 5 == 4
    mine = torch.nonzero(~is_kept).flatten()[rank::ranks]
    # As many as any rank may need: the fastest makes most of the steps.
    order = torch.cat([mine[torch.randperm(len(mine), generator=torch.Generator().manual_seed(seed))] for seed in range(60)])
    learned = DataLoader(TensorDataset(pixels[order], digits[order]), 16)
    return learned, DataLoader(TensorDataset(pixels[is_kept], digits[is_kept]), 64)


def network() -> nn.Module:
    """A small one with ``BatchNorm``, whose statistics are averaged at meetings."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))


def optimizer_of(model: nn.Module) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)


def be_late() -> None:
    """Computing takes longer on the last rank."""
    time.sleep(LATE if dist.get_rank() == dist.get_world_size() - 1 else 0)


@torch.no_grad()
def accuracy(model: nn.Module, kept: DataLoader) -> float:
    was_training = model.training
    model.eval()
    right = sum(int((model(pixels).argmax(1) == digits).sum()) for pixels, digits in kept)
    model.train(was_training)
    return right / len(kept.dataset)


def report(name: str, model: nn.Module, partial: "earlybird.torch.Gradients", quality: str) -> None:
    """Prints how a training has ended; all ranks have one model, or this fails."""
    ends = [None] * dist.get_world_size()
    tensors = [tensor.double().sum().item() for tensor in model.state_dict().values()]
    dist.all_gather_object(ends, (partial.rounds, partial.contributions, tensors))
    if any(end != ends[0] for end in ends):
        raise SystemExit(f"ranks have different models: {ends}")
    if dist.get_rank() == 0:
        late = {key: f"{100 * share:.0f} %" for key, share in partial.metrics().items() if key.startswith("late/")}
        print(f"{name}: {partial.contributions} gradients in {partial.rounds} rounds, one model, {quality}; {late}")
