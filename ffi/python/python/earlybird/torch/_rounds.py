"""What a training knows of its rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


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
