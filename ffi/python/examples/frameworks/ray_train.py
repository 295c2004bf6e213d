"""Partial gradients under Ray Train, which starts the ranks as workers.

    python ffi/python/examples/frameworks/ray_train.py
"""

import os
import pathlib
import sys

import ray
import ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

HERE = str(pathlib.Path(__file__).parent)


def train() -> None:
    """What each worker does. Ray has made the process group."""
    import torch
    from digits import GOAL, accuracy, be_late, loaders, network, optimizer_of, report
    from torch import nn

    from earlybird.torch import Gradients

    torch.set_num_threads(1)
    context = ray.train.get_context()
    learned, kept = loaders(context.get_world_rank(), context.get_world_size())
    model = ray.train.torch.prepare_model(network())
    optimizer, schedule = optimizer_of(model)
    partial = Gradients(model, fire="quorum=3", meet_every=20)
    partial.optimizer(optimizer, clip_grad_norm=1.0, scheduler=schedule)
    for pixels, digits in learned:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(pixels), digits).backward()
        be_late()
        optimizer.step()
        if partial.met and partial.rounds % 100 == 0:
            # All workers report, or Ray waits: at meetings only.
            ray.train.report({"round": partial.rounds, "accuracy": accuracy(model, kept)})
        if partial.contributions >= GOAL:
            break
    partial.finish()
    correct = accuracy(model, kept)
    report("Ray Train", model.module, partial, f"{correct:.1%} right")
    ray.train.report({"round": partial.rounds, "accuracy": correct})


def main() -> None:
    paths = os.pathsep.join([HERE, *filter(None, [os.environ.get("PYTHONPATH")])])
    ray.init(num_cpus=4, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}})
    trainer = TorchTrainer(
        train,
        torch_config=TorchConfig(backend="earlybird"),
        scaling_config=ScalingConfig(num_workers=4, use_gpu=False),
        run_config=RunConfig(storage_path=os.environ.get("RAY_RESULTS")),
    )
    print("Ray:", trainer.fit().metrics)


if __name__ == "__main__":
    sys.exit(main())
