"""What a training knows about its rounds."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch


class Round(NamedTuple):
    """A round that this rank has applied."""

    round: int
    fresh: list[int]
    """The ranks whose contribution was made for it."""
    carried: list[int]
    """The ranks whose contribution was late."""
    ages: list[int]
    """The number of rounds that each contribution is late, in the order of reduction."""
    initiator: int | None
    """The rank that closed it; ``None`` in a synchronous round."""


class Account:
    """Records how late contributions were, and how long this rank has waited."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._waited = 0.0
        self.of_ranks: dict[int, tuple[int, int, int]] = {}
        """By rank: the contributions, the late ones, and the total number of rounds that these were late."""

    def note(self, rank: int, age: int) -> None:
        """Records a contribution that was this number of rounds late."""
        all, late, ages = self.of_ranks.get(rank, (0, 0, 0))
        self.of_ranks[rank] = all + 1, late + (age > 0), ages + age

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the time within as waiting."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self._waited += time.monotonic() - begun

    def numbers(self, rounds: int, contributions: int) -> dict[str, float]:
        """Returns the account as numbers for a log. The training has made these rounds, with these contributions."""
        seconds = max(time.monotonic() - self._begun, 1e-9)
        numbers: dict[str, float] = {
            "rounds": rounds,
            "contributions": contributions,
            "rounds/s": rounds / seconds,
            "contributions/s": contributions / seconds,
            "waited": self._waited,
        }
        for rank, (all, late, ages) in sorted(self.of_ranks.items()):
            numbers[f"late/{rank}"] = late / all
            numbers[f"age/{rank}"] = ages / all
        return numbers


@contextlib.contextmanager
def random_numbers(seed: int) -> Iterator[None]:
    """Within it, random numbers are those of a round; afterwards the program's own sequence continues."""
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
