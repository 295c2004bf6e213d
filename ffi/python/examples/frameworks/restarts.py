"""Partial gradients that survive the death of a rank: torchrun starts all ranks again, and they go on from the last checkpoint.

    torchrun --nproc-per-node 4 --max-restarts 3 ffi/python/examples/frameworks/restarts.py FOLDER

All ranks save together at meetings (torch.distributed.checkpoint). With a FOLDER of an earlier run it goes on from there.
"""

import pathlib
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from digits import GOAL, accuracy, be_late, loaders, network, optimizer_of, report
from torch import nn

from earlybird.torch import Gradients


def newest(folder: pathlib.Path) -> pathlib.Path | None:
    """The newest checkpoint that is complete: its list of contents is written last. Rank 0 looks, and tells the others."""
    found = [None]
    if dist.get_rank() == 0:
        complete = [path.parent for path in folder.glob("*/.metadata")]
        found = [max(complete, key=lambda path: int(path.name), default=None)]
    dist.broadcast_object_list(found)
    return found[0]


def main(folder: pathlib.Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("earlybird")
    rank = dist.get_rank()
    model = network()
    optimizer, schedule = optimizer_of(model)
    partial = Gradients(model, state=[optimizer, schedule], fire="quorum=3", meet_every=20)

    @partial.on_round
    def apply() -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()

    if saved := newest(folder):
        dcp.load({"model": model, "partial": partial}, checkpoint_id=saved)
        if rank == 0:
            print(f"rank 0 goes on after round {partial.rounds}")
    learned, kept = loaders(rank, dist.get_world_size())
    batches = iter(learned)
    # Each rank goes on with other batches than those that it has seen, near enough.
    for _ in range(partial.contributions // dist.get_world_size()):
        next(batches)
    while partial.contributions < GOAL:
        pixels, digits = next(batches)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(pixels), digits).backward()
        be_late()
        partial.step()
        if partial.met:
            dcp.save({"model": model, "partial": partial}, checkpoint_id=folder / str(partial.rounds))
    partial.finish()
    report("torchrun", model, partial, f"{accuracy(model, kept):.1%} right")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
