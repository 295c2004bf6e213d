"""Partial gradients under Hugging Face's Trainer: a small model of language learns the text of ``data/words.txt``, by letters.

    torchrun --nproc-per-node 4 ffi/python/examples/frameworks/hugging_face.py

The Trainer refuses the backend's name in its arguments, so the program makes the group before them. The schedule and clipping
are given to ``partial.optimizer``; a callback logs, evaluates and saves at meetings, and stops by the gradients of all ranks.
"""

import pathlib
import tempfile

import torch
import torch.distributed as dist
from digits import be_late, report
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainerControl, TrainingArguments
from transformers.trainer_utils import set_seed

from earlybird.torch import Gradients

GOAL = 800
LENGTH = 64
FILE = pathlib.Path(__file__).parents[4] / "data" / "words.txt"


def rows() -> tuple[list[dict[str, torch.Tensor]], list[dict[str, torch.Tensor]]]:
    """Pieces of the text to learn from, and some that are kept for evaluation."""
    letters = torch.frombuffer(bytearray(FILE.read_bytes()), dtype=torch.uint8).long()
    pieces = letters[: len(letters) // LENGTH * LENGTH].view(-1, LENGTH)
    every = [{"input_ids": piece, "labels": piece} for piece in pieces]
    return [row for index, row in enumerate(every) if index % 50], every[::50]


class AtMeetings(TrainerCallback):
    """Begins partial rounds once the Trainer has wrapped the model, and acts where all ranks have one model."""

    def __init__(self) -> None:
        self.partial: Gradients | None = None

    def on_step_begin(self, _arguments: TrainingArguments, _state: object, _control: TrainerControl, **_: object) -> None:
        if self.partial is None:
            self.partial = Gradients(self.trainer.model_wrapped, fire="quorum=3", meet_every=20)
            self.partial.optimizer(self.optimizer, clip_grad_norm=1.0, scheduler=self.schedule)
        be_late()

    def on_step_end(self, _arguments: TrainingArguments, _state: object, control: TrainerControl, **_: object) -> None:
        is_time = self.partial.met and self.partial.rounds % 100 == 0
        control.should_log = control.should_evaluate = control.should_save = is_time
        if self.partial.contributions >= GOAL:
            # Here, because what comes after the last step waits for all ranks.
            self.partial.finish()
            control.should_training_stop = True


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("earlybird")
    set_seed(0)
    config = GPT2Config(
        vocab_size=128, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config)
    learned, kept = rows()
    callback = AtMeetings()
    callback.optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    callback.schedule = torch.optim.lr_scheduler.OneCycleLR(callback.optimizer, 3e-3, total_steps=300)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            use_cpu=True,
            per_device_train_batch_size=8,
            num_train_epochs=100,
            ddp_find_unused_parameters=False,
            report_to=[],
            disable_tqdm=True,
            # What would wait for all ranks in each step, or is done by the callback.
            average_tokens_across_devices=False,
            accelerator_config={"dispatch_batches": False},
            max_grad_norm=0.0,
            logging_strategy="no",
            eval_strategy="no",
            save_strategy="no",
        )
        trainer = Trainer(
            model,
            arguments,
            train_dataset=learned,
            eval_dataset=kept,
            optimizers=(callback.optimizer, callback.schedule),
            callbacks=[callback],
        )
        callback.trainer = trainer
        trainer.train()
        loss = trainer.evaluate()["eval_loss"]
        report("Hugging Face", model, callback.partial, f"loss {loss:.2f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
