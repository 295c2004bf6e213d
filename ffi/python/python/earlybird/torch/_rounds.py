"""What a training knows of its rounds."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch


class Round(NamedTuple):
    """A round that this rank has applied."""

    round: int
    fresh: list[int]
    """Ranks whose contribution was made for it."""
    carried: list[int]
    """Ranks whose contribution was late."""
    ages: list[int]
    """How many rounds late each contribution is, in the order of reduction."""
    initiator: int | None
    """The rank that closed it; none in a synchronous one."""


@dataclass
class Ages:
    """How late a rank's contributions were."""

    all: int = 0
    late: int = 0
    sum: int = 0

    def note(self, age: int) -> None:
        """Notes one, by how many rounds it was late."""
        self.all += 1
        self.late += age > 0
        self.sum += age


@contextlib.contextmanager
def random_numbers(seed: int) -> Iterator[None]:
    """Those of a round; the program's own go on afterwards."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)
