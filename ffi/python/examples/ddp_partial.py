"""Trains a small network on four ranks, of which one is late in every step: gloo's synchronous gradients, then partial ones.

    torchrun --nproc-per-node 4 ffi/python/examples/ddp_partial.py

Both train on the same number of samples and start from the same model. Computing is slept, so that it takes the same time
whatever the machine is: a step takes 10 ms, and the late rank another 30.
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import earlybird.torch

BATCH = 32
LATE = 3
CLASSES = 10


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="synchronous steps; partial rounds see as many samples")
    parser.add_argument("--compute", type=float, default=0.010, help="seconds of a step")
    parser.add_argument("--late", type=float, default=0.030, help="seconds that the late rank takes longer")
    parser.add_argument("--fire", default="quorum=3", help="when a round fires")
    return parser.parse_args()


def centres() -> torch.Tensor:
    """What the classes look like: points of a class lie around its centre."""
    return torch.randn(CLASSES, 64, generator=torch.Generator().manual_seed(1))


def samples(count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return centres()[labels] + 2.2 * torch.randn(count, 64, generator=generator), labels


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def step(network: nn.Module, optimizer: torch.optim.Optimizer, pause: float, generator: torch.Generator) -> None:
    inputs, labels = samples(BATCH, generator)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(network(inputs), labels)
    time.sleep(pause)
    loss.backward()
    optimizer.step()


def accuracy(network: nn.Module) -> float:
    inputs, labels = samples(20_000, torch.Generator().manual_seed(2))
    with torch.no_grad():
        return float((network(inputs).argmax(1) == labels).float().mean())


def main() -> None:
    chosen = parse()
    dist.init_process_group("earlybird")
    gloo = dist.new_group(backend="gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    pause = chosen.compute + (chosen.late if rank == LATE else 0)
    goal = chosen.steps * size
    results = []
    for name in ("gloo", f"earlybird, {chosen.fire}"):
        network = model()
        generator = torch.Generator().manual_seed(100 + rank)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
        wrapped, partial = network, None
        if name == "gloo":
            wrapped = DistributedDataParallel(network, process_group=gloo)
        else:
            partial = earlybird.torch.Gradients(network, fire=chosen.fire, meet_every=50)
            partial.optimizer(optimizer)
        dist.barrier()
        begun, done = time.perf_counter(), 0
        while done < goal:
            step(wrapped, optimizer, pause, generator)
            done = partial.contributions if partial is not None else done + size
        taken = time.perf_counter() - begun
        if partial is not None:
            partial.finish()
        results.append((name, BATCH * done / taken, accuracy(network)))
    if rank == 0:
        print(f"{size} ranks, {1e3 * chosen.compute:g} ms a step, rank {LATE} {1e3 * chosen.late:g} ms late in each")
        print(f"{'gradients':24} {'samples/s':>10} {'speed-up':>9} {'accuracy':>9}")
        for name, rate, correct in results:
            print(f"{name:24} {rate:10.0f} {rate / results[0][1]:8.2f}x {100 * correct:8.2f}%")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
