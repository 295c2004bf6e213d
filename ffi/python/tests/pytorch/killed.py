"""The example of restarts, one rank of which is killed at a place, once. torchrun starts it: ``killed.py FOLDER PLACE``."""

import os
import pathlib
import signal
import sys
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint import FileSystemWriter

from earlybird.torch import Gradients
from earlybird.torch._agreement import Agreement
from earlybird.torch._handin import HandIn
from earlybird.torch._leaving import Leaving

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples/frameworks"))
import restarts  # noqa: E402

folder, place = pathlib.Path(sys.argv[1]), sys.argv[2]
killed = folder / "killed"


def kill(rank: int) -> None:
    """Kills this rank, if it is the one and none was killed before."""
    if dist.get_rank() == rank and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def patch(kind: Any, name: str, rank: int, *, after: int, when: Callable[[Any], bool] = lambda _: True, ends: bool = False) -> None:
    """Kills a rank when it calls this method: at the beginning of the call, or at its end. ``after`` calls go well before."""
    original, calls = getattr(kind, name), [0]

    def patched(self: Any, *arguments: Any, **named: Any) -> Any:
        result = original(self, *arguments, **named) if ends else None
        calls[0] += when(self)
        if calls[0] > after:
            kill(rank)
        return result if ends else original(self, *arguments, **named)

    setattr(kind, name, patched)


PLACES = {
    "before hand-in": lambda: patch(HandIn, "complete", 3, after=12),
    "after hand-in": lambda: patch(HandIn, "complete", 1, after=25, ends=True),
    # The late rank has missed a round, has applied it, and is about to apply the next one.
    "inside a replay": lambda: patch(Gradients, "_apply", 3, after=8, when=lambda partial: len(partial.last) == 1),
    "at a meeting": lambda: patch(Agreement, "average_buffers", 2, after=2),
    "while saving": lambda: patch(FileSystemWriter, "write_data", 1, after=1, ends=True),
    "inside finish": lambda: patch(Leaving, "wait_for_all", 0, after=0),
}

if __name__ == "__main__":
    restarts.GOAL = 240
    PLACES[place]()
    restarts.main(folder)
