"""Averages of models: each rank trains a model of its own, and ranks mix them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .._allreduce import Outcome
from .._errors import UsageError
from ._agreement import Agreement
from ._forms import compare, compare_kinds, refuse_forms
from ._group import EarlybirdProcessGroup, group_of
from ._handin import widest
from ._live import begin, end, refuse_another
from ._replica import Replica
from ._tensors import NAMES, Tensor, bytes_of, lent

# The choices of the collective for each preset.
_PRESETS: dict[str, dict[str, str | int]] = {
    "wagma": {"preset": "wagma"},
    "p-reduce": {"preset": "p-reduce"},
    "local": {"fire": "all", "group": "world"},
}


class ModelAverage:
    """Averages the models of ranks, each of which trains a model of its own.

    >>> average = ModelAverage(model, optimizer, preset="wagma")
    >>> for x, y in data:
    ...     optimizer.zero_grad(); loss(model(x), y).backward(); optimizer.step()
    ...     average.step()
    >>> average.finish()

    A rank contributes what its steps have added to its model, and continues with the average of its group. The preset
    selects the ranks of a group. ``"wagma"`` takes ranks in turn, and waits for all of them only in every tenth round.
    ``"p-reduce"`` takes ranks that arrive one after the other. ``"local"`` takes all ranks, which wait for each other.
    ``every`` is the number of steps of a rank from one average to the next. Further choices are those of
    ``World.allreduce``. No update is lost: the sum of all models grows by the sum of all updates.

    All ranks of the group create it, with the same choices. The lowest rank gives the others its model and its
    optimizer's state.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        preset: str = "wagma",
        every: int = 1,
        group: EarlybirdProcessGroup | None = None,
        timeout: float | None = None,
        **choices: str | int,
    ) -> None:
        if preset not in _PRESETS or every < 1:
            names = ", ".join(_PRESETS)
            raise UsageError(f"preset={preset!r}, every={every}: the presets are {names}, and every is a number of steps")
        refuse_forms(model)
        self._group = group_of(group, "averages of models")
        self._timeout = self._group._seconds(None) if timeout is None else timeout
        self._is_synchronous = preset == "local"
        refuse_another(self, self._is_synchronous)
        self._replica = Replica(model, [optimizer])
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._known = frozenset(self._parameters)
        if not self._parameters:
            raise UsageError("the model has no parameter that is trained")
        self._dtype = torch.promote_types(torch.float32, widest(self._parameters))
        self._agreement = Agreement(self._group, self._replica, self._timeout)
        compare_kinds(self._agreement, self._replica)
        self._agreement.give(0)
        # The model that this rank has taken last, as its parameters hold it.
        self._taken = self._flat()
        lengths, chosen = [parameter.numel() for parameter in self._parameters], _PRESETS[preset] | choices
        model_of_all, dtype = bytes_of(self._taken).view(f"f{self._dtype.itemsize}"), NAMES[self._dtype]
        self._sum = self._agreement.together(
            lambda world, _: world.allreduce(lengths, dtype=dtype, model=model_of_all, **chosen)
        )
        self._every = every
        self._has_arrived = self._has_finished = False
        self.met = True
        """Whether collectives on the group are safe now: before the first step, after ``finish``, and always under
        ``"local"``.
        """
        self.steps = 0
        """The number of steps of this rank."""
        self.rounds = 0
        """The number of averages that this rank has taken."""
        begin(self, self._is_synchronous, self._group)

    def _check_parameters(self) -> None:
        """Refuses parameters that only this rank would train."""
        name = self._replica.unknown(self._known) or self._replica.optimizer_of_unknown(self._known)
        if name is not None:
            raise UsageError(
                f"{name} trains, or is, a parameter that was not in the model or was frozen when ModelAverage was made, and is not "
                "averaged: finish(), and make a new ModelAverage with all that is trained"
            )

    def _flat(self) -> Tensor:
        parts = [parameter.detach().reshape(-1).to("cpu", self._dtype) for parameter in self._parameters]
        return torch.cat(parts)

    def step(self) -> bool:
        """Averages, if ``every`` steps were made. Call it after the optimizer's step. Returns whether the model is an
        average now.

        After :class:`~earlybird.Timeout` nothing is lost: call again to continue.
        """
        if self._has_finished:
            raise UsageError("these averages have finished; make a new ModelAverage")
        if not self._has_arrived:
            self._check_parameters()
            self.steps += 1
            self.met = self._is_synchronous
            if self.steps % self._every != 0:
                return False
        self._exchange()
        return True

    def _exchange(self) -> None:
        if not self._has_arrived:
            update = torch.from_numpy(self._sum.contribution())
            torch.sub(self._flat(), self._taken, out=update)
            del update
            self._sum.arrive()
            self._has_arrived = True
        outcomes = self._sum.wait(self._timeout)
        self._has_arrived = False
        self.rounds += len(outcomes)
        self._take(outcomes[-1])
        self._taken = self._flat()
        del outcomes
        self._sum.release()

    @torch.no_grad()
    def _put(self, parts: Iterable[Tensor]) -> None:
        for parameter, part in zip(self._parameters, parts, strict=True):
            parameter.copy_(part.view(parameter.shape))

    def _take(self, outcome: Outcome) -> None:
        self._put(lent(part).view(self._dtype) for part in outcome.tensors())

    def state_dict(self) -> dict[str, Any]:
        """Returns what a checkpoint holds besides the model: counts, and the optimizer's state.

        It works where all ranks have one model: under ``"local"`` after each average, and after :meth:`finish`.
        Elsewhere updates are pending that no rank's checkpoint holds: finish, save, and make a new object.
        """
        if not self.met or self.steps % self._every != 0:
            raise UsageError("a checkpoint is right where all ranks have one model: call finish(), save, and make a new ModelAverage")
        return {
            "steps": self.steps,
            "rounds": self.rounds,
            "state": self._replica.save_all(),
            "model": self._replica.fingerprint_of_model(),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Resumes from a checkpoint, before the first step. The program loads the model before it makes this object.
        """
        if self.steps or self._has_finished:
            raise UsageError("a checkpoint is loaded before the first step; make a new ModelAverage for it")
        if saved["model"] != self._replica.fingerprint_of_model():
            raise UsageError("the model is not that of the checkpoint: load its state_dict before ModelAverage is made")
        self._replica.load_all(saved["state"])
        self.steps, self.rounds = saved["steps"], saved["rounds"]

    def finish(self, timeout: float | None = None) -> None:
        """Gives all ranks the mean of all models, including buffers. It waits until all ranks have called it."""
        if self._has_finished:
            return
        if self._has_arrived or self.steps % self._every != 0:
            self._exchange()
        for outcome in self._sum.leave(self._timeout if timeout is None else timeout):
            self._take(outcome)
        group, flat = self._group, self._flat()
        opts = dist.AllreduceOptions()
        opts.reduceOp = dist.ReduceOp.AVG
        end(self, group)
        self.met = True
        group.allreduce([flat], opts).wait()
        self._put(flat.split([parameter.numel() for parameter in self._parameters]))
        self._agreement.average_buffers()
        self._has_finished = True
        mine = {"the model": f"{self._replica.fingerprint_of_model():016x}"}
        compare(
            self._agreement, "finish()", mine, "{name} is {first} on rank 0 and {value} on rank {rank}: a frozen layer has changed"
        )
