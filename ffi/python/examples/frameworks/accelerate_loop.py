"""Partial gradients in a loop with accelerate.

    torchrun --nproc-per-node 4 ffi/python/examples/frameworks/accelerate_loop.py

accelerate knows no backend of this name, so the program makes the group before it makes the ``Accelerator``.
"""

import pathlib
import shutil
import tempfile

import torch
import torch.distributed as dist
from accelerate import Accelerator
from digits import GOAL, accuracy, be_late, loaders, network, optimizer_of, report
from torch import nn

from earlybird.torch import Gradients


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("earlybird")
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=2,
        # A data loader would wait for the random numbers of rank 0 at the start of each pass.
        rng_types=[],
    )
    digits = network()
    optimizer, schedule = optimizer_of(digits)
    learned, kept = loaders(accelerator.process_index, accelerator.num_processes)
    # The batches are this rank's already.
    model, stepped, schedule_stepped = accelerator.prepare(digits, optimizer, schedule)
    partial = Gradients(model, fire="quorum=3", meet_every=20)
    partial.optimizer(optimizer, clip_grad_norm=1.0, scheduler=schedule)
    accelerator.register_for_checkpointing(partial)
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    for pixels, labels in learned:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(pixels), labels))
            be_late()
            stepped.step()
            schedule_stepped.step()
            stepped.zero_grad()
        if partial.met and accelerator.sync_gradients and partial.rounds % 100 == 0:
            correct = accelerator.gather(torch.tensor(accuracy(digits, kept))).mean()
            accelerator.print(f"round {partial.rounds}: {float(correct):.1%} right")
            accelerator.save_state(folder[0])
        if partial.contributions >= GOAL:
            break
    partial.finish()
    report("accelerate", digits, partial, f"{accuracy(digits, kept):.1%} right")
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        print("saved:", *sorted(path.name for path in pathlib.Path(folder[0]).iterdir()))
        shutil.rmtree(folder[0])
    accelerator.end_training()


if __name__ == "__main__":
    main()
