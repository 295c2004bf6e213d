"""Partial gradients in a loop of one's own with Lightning Fabric.

    torchrun --nproc-per-node 4 ffi/python/examples/frameworks/lightning_fabric.py
"""

import lightning
import torch
from digits import GOAL, accuracy, be_late, loaders, network, optimizer_of, report
from lightning.fabric.strategies import DDPStrategy
from torch import nn

from earlybird.torch import Gradients


def main() -> None:
    torch.set_num_threads(1)
    strategy = DDPStrategy(process_group_backend="earlybird")
    fabric = lightning.Fabric(accelerator="cpu", devices=4, strategy=strategy)
    fabric.launch()
    digits = network()
    optimizer, schedule = optimizer_of(digits)
    model, stepped = fabric.setup(digits, optimizer)
    # What Fabric has put around the network; the optimizer is that of the program.
    partial = Gradients(model._forward_module, fire="quorum=3", meet_every=20)
    partial.optimizer(optimizer, clip_grad_norm=1.0, scheduler=schedule)
    learned, kept = loaders(fabric.global_rank, fabric.world_size)
    for index, (pixels, labels) in enumerate(fabric.setup_dataloaders(learned, use_distributed_sampler=False)):
        is_last = index % 2 == 1
        with fabric.no_backward_sync(model, enabled=not is_last):
            fabric.backward(nn.functional.cross_entropy(model(pixels), labels))
        if not is_last:
            continue
        be_late()
        stepped.step()
        stepped.zero_grad()
        if partial.met and partial.rounds % 100 == 0:
            mean = fabric.all_reduce(torch.tensor(accuracy(digits, kept)))
            fabric.print(f"round {partial.rounds}: {float(mean):.1%} right")
        if partial.contributions >= GOAL:
            break
    partial.finish()
    report("Fabric", digits, partial, f"{accuracy(digits, kept):.1%} right")


if __name__ == "__main__":
    main()
