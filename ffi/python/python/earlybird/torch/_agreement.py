"""How ranks of a training find out that they have the same model and state, and how one rank gives these to the
others.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from .._earlybird import collectives
from .._errors import Mismatch
from .._world import World
from ._group import EarlybirdProcessGroup
from ._replica import Fingerprint, Replica
from ._tensors import bytes_of, contiguous, keep, result_of

Result = TypeVar("Result")


class Agreement:
    """Makes calls of the ranks of a group, in the order of the group's calls."""

    def __init__(self, group: EarlybirdProcessGroup, replica: Replica, timeout: float) -> None:
        self._group, self._replica, self._timeout = group, replica, timeout
        self._equal_after = 0

    def together(self, call: Callable[[World, float], Result]) -> Result:
        """Makes a call of the group's world in its turn."""
        return self._group.in_turn(lambda: call(self._group.world, self._timeout))

    def gather(self, value: Any, place: str) -> list[Any]:
        """Returns the value of each rank, by rank, at a point in the program that ``place`` names."""
        mine = np.frombuffer(pickle.dumps((place, value)), np.uint8)

        def call(world: World, timeout: float) -> list[Any]:
            lengths = world.all_gather(np.array([mine.size], np.int64), timeout=timeout).ravel()
            padded = np.zeros(lengths.max(), np.uint8)
            padded[: mine.size] = mine
            rows = world.all_gather(padded, timeout=timeout).reshape(world.size, -1)
            return [pickle.loads(row[:length].tobytes()) for row, length in zip(rows, lengths, strict=True)]

        values = self.together(call)
        for rank, (its, _) in enumerate(values):
            if its != place:
                raise Mismatch(f"rank {rank} is at {its}, and rank {self._group.rank()} at {place}: all ranks do the same there")
        return [value for _, value in values]

    def give(self, giver: int) -> None:
        """Copies one rank's model and state to all ranks, to the bit and in place."""
        is_giver = self._group.rank() == giver
        saved = self._replica.save() if is_giver else b""

        def call(world: World, timeout: float) -> bytes:
            for tensor in self._replica.tensors():
                data = contiguous(tensor) if is_giver else result_of(tensor)
                collectives.broadcast(world, bytes_of(data), giver, timeout)
                if not is_giver:
                    keep(tensor, data)
            length = world.broadcast(np.array([len(saved)], np.int64), giver, timeout=timeout)[0]
            data = np.frombuffer(saved, np.uint8).copy() if is_giver else np.empty(length, np.uint8)
            return world.broadcast(data, giver, timeout=timeout).tobytes()

        with torch.no_grad():
            given = self.together(call)
        if not is_giver:
            self._replica.load(given)
        if any(extra := self._replica.extra()):
            self._replica.load_extra(self.gather(extra, "giving state")[giver])

    @torch.no_grad()
    def average_buffers(self, among: Sequence[int] | None = None) -> None:
        """Replaces floating-point buffers by the mean over all ranks, or over the ranks ``among``. Other buffers, and
        the result of ``get_extra_state`` of modules, become those of the lowest rank.

        Buffers that are equal everywhere stay unchanged, because a sum and a division would change the last bit of
        constants.
        """
        lowest = 0 if among is None else among[0]
        if any(extra := self._replica.extra()):
            self._replica.load_extra(self.gather(extra, "averaging buffers")[lowest])
        buffers = self._replica.buffers()
        if not buffers:
            return
        mine = np.concatenate([bytes_of(contiguous(buffer)) for buffer in buffers])
        rows = self.together(lambda world, timeout: world.all_gather(mine, timeout=timeout).reshape(world.size, -1))
        if among is not None:
            rows = rows[list(among)]
        at = 0
        for buffer in buffers:
            length = buffer.numel() * buffer.element_size()
            of_ranks, at = rows[:, at : at + length], at + length
            if (of_ranks == of_ranks[0]).all():
                continue
            theirs = [torch.from_numpy(row.copy()).view(buffer.dtype).view(buffer.shape) for row in of_ranks]
            if buffer.is_floating_point() or buffer.is_complex():
                total = theirs[0].to(torch.promote_types(buffer.dtype, torch.float32))
                for other in theirs[1:]:
                    total = total + other
                theirs[0] = total / len(theirs)
            buffer.copy_(theirs[0])

    def difference(self, rounds: int, buffers: bool = True, among: Sequence[int] | None = None) -> str | None:
        """Compares the models and states of all ranks, or of the ranks ``among``, after this number of rounds. Returns
        a description of the differences, or ``None``. Each rank waits for all others.
        """
        mine = self._replica.fingerprints(buffers)
        total = hashlib.blake2b(repr(mine).encode(), digest_size=8).digest()
        sent = np.frombuffer(total, np.uint64)
        totals = self.together(lambda world, timeout: world.all_gather(sent, timeout=timeout).ravel())
        ranks = range(len(totals)) if among is None else among
        if all(totals[rank] == totals[ranks[0]] for rank in ranks):
            self._equal_after = rounds
            return None
        of_ranks = self.gather(mine, "a comparison of models")
        sides: dict[tuple[Fingerprint, ...], list[int]] = {}
        for rank in ranks:
            sides.setdefault(tuple(of_ranks[rank]), []).append(rank)
        first, second = list(sides)[:2]
        kinds: dict[str, list[str]] = {}
        for one in dict.fromkeys((*first, *second)):
            if (one not in first or one not in second) and one.name not in kinds.setdefault(one.kind, []):
                kinds[one.kind].append(one.name)
        kinds = {kind: names for kind, names in kinds.items() if names}
        named = [f"{names[0]} (and {len(names) - 1} more)" if len(names) > 1 else names[0] for names in kinds.values()]
        several = [f"rank{'s' if len(side) > 1 else ''} {', '.join(map(str, side))}" for side in sides.values()]
        which = " and ".join(several) if len(sides) < max(len(ranks), 3) else "all ranks"
        return f"{which} differ after round {rounds} (equal after {self._equal_after}): {', '.join(named)}"
