"""Partial gradients under Lightning's Trainer, which starts the ranks itself.

    python ffi/python/examples/frameworks/lightning_trainer.py

Where Lightning wants to know something of all ranks, all have to be there: at meetings, and after ``finish``.
"""

import torch
from digits import GOAL, accuracy, be_late, loaders, network, optimizer_of, report
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DDPStrategy
from torch import nn

from earlybird.torch import Gradients


class Digits(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        pixels, digits = batch
        loss = nn.functional.cross_entropy(self.network(pixels), digits)
        be_late()
        self.log("loss", loss)
        return loss

    def train_dataloader(self) -> torch.utils.data.DataLoader:
        return loaders(self.global_rank, self.trainer.world_size)[0]

    def configure_optimizers(self) -> dict[str, object]:
        # Lightning has wrapped the model by now.
        optimizer, schedule = optimizer_of(self)
        self.partial = Gradients(self.trainer.strategy.model, fire="quorum=3", meet_every=20)
        self.partial.optimizer(optimizer, clip_grad_norm=1.0, scheduler=schedule)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class AtMeetings(Callback):
    """Evaluates at meetings, and stops all ranks by the gradients of all."""

    def on_train_batch_end(self, trainer: Trainer, module: Digits, *_: object) -> None:
        if module.partial.met and module.partial.rounds % 100 == 0:
            correct = accuracy(module.network, loaders(trainer.global_rank, trainer.world_size)[1])
            if trainer.is_global_zero:
                print(f"round {module.partial.rounds}: {correct:.1%} right")
        if module.partial.contributions >= GOAL:
            # Here, because what comes after the last step waits for all ranks.
            module.partial.finish()
            trainer.should_stop = True


def main() -> None:
    torch.set_num_threads(1)
    model = Digits()
    trainer = Trainer(
        accelerator="cpu",
        devices=4,
        strategy=DDPStrategy(process_group_backend="earlybird"),
        callbacks=[AtMeetings()],
        # Steps of this rank do not count, and clipping is partial.optimizer's.
        max_steps=-1,
        max_epochs=1,
        gradient_clip_val=None,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model)
    report("Lightning", model.network, model.partial, f"{accuracy(model.network, loaders(0, 1)[1]):.1%} right")


if __name__ == "__main__":
    main()
