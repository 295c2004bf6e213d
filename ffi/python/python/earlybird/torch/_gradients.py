"""Partial rounds of gradients: all ranks apply the same rounds, in the same order, by the same function."""

from __future__ import annotations

import json
import logging
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .._allreduce import RankLateness
from .._buckets import BucketedAllreduce, BucketOutcome
from .._errors import Mismatch, Timeout, UsageError, reason
from ._agreement import Agreement
from ._forms import compare, compare_choices, compare_kinds, compare_ways, refuse_forms, ways
from ._group import EarlybirdProcessGroup, group_of
from ._handin import HandIn
from ._leaving import Leaving
from ._live import begin, end, refuse_another
from ._replica import Replica
from ._rounds import Account, Round, random_numbers
from ._schedule import by_round
from ._tensors import NAMES
from ._wrapped import hook, refuse_choices_of, rest

_LOG = logging.getLogger("earlybird")

class Gradients:
    """Sums the gradients of a model in partial rounds, so that all ranks train one model.

    A training is the sequence of its rounds. Each rank applies all rounds, in the same order, by the function that it
    passes to :meth:`on_round`; only the time differs. So after the same round all ranks have the same model, to the
    bit.

    >>> partial = Gradients(model, state=[optimizer, schedule], fire="quorum=3", meet_every=50)
    >>> @partial.on_round
    ... def apply():
    ...     clip_grad_norm_(model.parameters(), 1.0); optimizer.step(); schedule.step()
    >>> while partial.contributions < goal:
    ...     optimizer.zero_grad(); loss(model(x), y).backward()
    ...     partial.step()
    ...     if partial.met: ...        # evaluate, save, any collective
    >>> partial.finish()

    ``model`` is any module, or a module in ``DistributedDataParallel``, whose own reduction then stops. With
    ``by_hook`` that reduction keeps running, and a communication hook takes its buckets (:func:`partial_hook`).
    ``state`` is what the function changes besides the model.

    ``fire`` and further choices are those of ``World.allreduce``. Gradients are divided by the number of ranks, or
    with ``scale="contributions"`` by the number of ranks in the round. Every ``meet_every`` rounds all ranks have the
    same round and compare what they have, and :attr:`met` is true. ``timeout`` is in seconds, for each step; the
    default is the group's timeout.

    Gradients are handed in as they become ready, and the gradients of a bucket share a message. ``buckets`` is the
    number of bytes that completes a bucket, or ``"measured"``, ``"each"`` or ``"one"``.

    ``unequal="copy"`` copies the lowest rank's model and state at each meeting where ranks differ, instead of raising
    an error. ``seed`` is the seed of random numbers in the function. ``scaler`` is a ``GradScaler`` for backward
    passes: ``step`` updates its scale, and the program calls neither its ``step`` nor its ``update``.

    All ranks of the group create it, with the same choices. The lowest rank then gives the others its model and state;
    if there is no process group yet, it does so before the first forward pass.
    """

    def __init__(
        self,
        model: nn.Module,
        state: Iterable[Any] = (),
        *,
        fire: str = "all",
        meet_every: int = 100,
        group: EarlybirdProcessGroup | None = None,
        timeout: float | None = None,
        unequal: str = "error",
        seed: int = 0,
        scaler: torch.amp.GradScaler | None = None,
        by_hook: bool = False,
        buckets: str = "25M",
        **choices: str | int,
    ) -> None:
        if not isinstance(fire, str) or not isinstance(meet_every, int) or hasattr(state, "state_dict"):
            raise UsageError("fire is a text such as \"quorum=3\", meet_every a whole number, and state a list: state=[optimizer]")
        if "full=" in fire:
            raise UsageError(f"meet_every={meet_every} is the rule's full={meet_every}: leave full= out of fire={fire!r}")
        if "preset" in choices:
            raise UsageError("name the rule by fire=: a preset has one without meetings")
        if meet_every < 1 or unequal not in ("error", "copy"):
            raise UsageError(f"meet_every={meet_every}, unequal={unequal!r}: a number of rounds, and \"error\" or \"copy\"")
        if meet_every == 1 and fire != "all":
            raise UsageError("meet_every=1 would make each round one of all ranks: take 2 or more, or fire=\"all\"")
        # Functions that restore a model and an optimizer.
        self._at_the_end: list[Callable[[], Any]] = []
        self._no_sync = lambda: self._handin.resting()
        wrapped = model if isinstance(model, DistributedDataParallel) else None
        if wrapped is not None:
            refuse_choices_of(wrapped, by_hook)
            model, group = wrapped.module, wrapped.process_group if group is None else group
        elif by_hook:
            raise UsageError("by_hook=True is for a model in DistributedDataParallel")
        refuse_forms(model)
        self._replica = Replica(model, state)
        if any(isinstance(item, torch.amp.GradScaler) for item in self._replica.state):
            raise UsageError("a GradScaler is given as scaler=, and not in state: each rank has a scale of its own")
        self._is_synchronous = fire == "all"
        if by_hook and not self._is_synchronous and meet_every < 3:
            raise UsageError(
                f"meet_every={meet_every} is too small for a hook: ranks compare models after round 1, and what is late there "
                "must not wait for a full round; take 3 or more, or Gradients(model)"
            )
        self._choices: dict[str, str | int] = {"scale": "world"} | choices
        self._buckets = buckets
        self._choices["fire"] = fire if self._is_synchronous else f"{fire},full={meet_every}"
        self._meet_every, self._unequal, self._seed = meet_every, unequal, seed
        self._given_group, self._given_timeout = group, timeout
        self._group: EarlybirdProcessGroup | None = None
        self._timeout = 0.0
        self._agreement: Agreement | None = None
        self._sum: BucketedAllreduce | None = None
        self._ended: list[RankLateness] = []
        self._handin = HandIn(model, scaler, self._begin_step, by_hook)
        if wrapped is not None and by_hook:
            self._no_sync = wrapped.no_sync
            self._at_the_end.append(hook(wrapped, self._handin.take_bucket))
        elif wrapped is not None:
            self._at_the_end.append(rest(wrapped, self.no_sync))
        # DDP exchanges the order of its buckets in the second forward pass, and a synchronous rule has `met` in each
        # round.
        self._meets_after_the_first = by_hook or fire == "all"
        self._takes_buckets = by_hook
        self._function: Callable[[], Any] | None = None
        self._in_round = False
        self._leaving: Leaving | None = None
        # Becomes true from the same cut on, on all ranks.
        self._some_left = False
        self._has_finished = False
        self._problem: str | None = None
        self._remembered: dict[str, Any] = {}
        self.met = True
        """Whether all ranks have the same round and have compared models, so that collectives, evaluation and
        checkpoints are safe.

        It is true before the first round, after every ``meet_every`` rounds until the next backward pass, and after
        ``finish``. With ``fire="all"`` it is always true; models are then compared after the first round and every
        ``meet_every`` rounds. It is false as soon as a rank has left.
        """
        self._restored = 0
        self._expected_model: int | None = None
        self.rounds = 0
        """The number of rounds that this rank has applied."""
        self.contributions = 0
        """The number of contributions of all ranks in these rounds; the same on all ranks after the same round."""
        self.last: list[Round] = []
        """The rounds that the last :meth:`step` has applied."""
        self._account = Account()
        here = weakref.ref(self)

        def before(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            # A training that was dropped ignores optimizers.
            if (partial := here()) is not None:
                partial._before_step_of(optimizer)

        self._hooks: list[Any] = [register_optimizer_step_pre_hook(before)]
        for item in self._replica.state:
            if isinstance(item, LRScheduler):
                by_round(item, lambda: True)
        if group is not None or dist.is_initialized():
            try:
                self._connect()
            except BaseException:
                self._take_off_hooks()
                raise
        else:
            # A framework creates the group later.
            first = model.register_forward_pre_hook(torch.compiler.disable(lambda *_: self._connect()))
            self._hooks.append(first)

    # The methods that a program calls.

    def on_round(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """Sets the function that changes all state: clipping, ``optimizer.step()``, ``schedule.step()``, averages.

        It runs once for each round, on each rank, with the round's gradients in ``.grad``. Its random numbers are
        those of the round (torch, Python, NumPy); afterwards the program's own sequence continues.
        """
        if self._function is not None:
            raise UsageError("on_round was called before: one function has all that changes state")
        self._function = function
        return function

    def no_sync(self) -> AbstractContextManager[None]:
        """Within it, backward passes add up their gradients in ``.grad`` without handing them in."""
        return self._no_sync()

    def step(self) -> None:
        """Hands in this rank's gradients, waits, and applies each round that this rank has not applied, oldest first.

        After :class:`~earlybird.Timeout` nothing is lost: call again to continue. A timeout at a meeting is final,
        because the ranks are out of step then.
        """
        if self._in_round:
            raise UsageError("step() was called in the function of on_round, which step() calls")
        sum = self._open()
        self._check_hyperparameters()
        self._check_parameters()
        self._handin.complete()
        with self._account.waiting(), self._handin.failure.noted():
            outcomes = sum.wait(self._timeout)
        self.last = []
        try:
            for outcome in outcomes:
                self._apply(outcome)
                sum.release(outcome.round)
        except BaseException as error:
            # An error between two rounds counts, too: the remaining rounds are not returned again.
            self._problem = reason(error)
            raise
        self._handin.begin_again()
        self._remembered = self._replica.hyperparameters()
        with self._handin.failure.noted(Timeout):
            self._meet()
        if self._some_left and self._leaving is not None:
            self._leaving.tell_of_rounds(self._timeout)
        # Rounds that this rank missed take long to apply, and do not make it slow.
        sum.begin_computation()

    def finish(self, timeout: float | None = None) -> None:
        """Ends with one model on all ranks, however many steps each has made. It waits until all ranks have called it.

        What was begun is handed in, and no gradient is lost. The lowest rank with the most rounds gives its model and
        state to the others. ``timeout`` is the time for which there may be no new round. After
        :class:`~earlybird.Timeout` call again to continue. Backward passes after the last step that were only under
        :meth:`no_sync` are not a contribution.
        """
        if self._has_finished:
            return
        sum = self._open()
        agreement, leaving = self._agreement, self._leaving
        assert agreement is not None and leaving is not None and self._group is not None
        if self._handin.has_begun:
            self.step()
        seconds = self._timeout if timeout is None else timeout
        for outcome in sum.leave(seconds):
            self._apply(outcome)
        leaving.wait_for_all(seconds)
        ends = agreement.gather((self.rounds, self.contributions, self._account.of_ranks), "finish()")
        counts = [count for *count, _ in ends]
        most = [rank for rank, count in enumerate(counts) if count == max(counts)]
        agreement.average_buffers(among=most)
        self._compare(among=most)
        agreement.give(most[0])
        self.rounds, self.contributions, self._account.of_ranks = ends[most[0]]
        _LOG.info("finished after round %d with one model (%d contributions)", self.rounds, self.contributions)
        end(self, self._group)
        self._ended = self.lateness()
        self._sum, self.met, self._has_finished = None, True, True
        self._take_off_hooks()

    def _take_off_hooks(self) -> None:
        """Leaves the model and the optimizers as they were."""
        self._handin.end()
        for hook in self._hooks:
            hook.remove()
        for restore in self._at_the_end:
            restore()

    def rebuild(self) -> None:
        """Takes over what the model has now: newly trained layers and new layers. All ranks call it at a meeting. The
        lowest rank gives the others its model and state, as at the beginning.
        """
        if not self.met or self._has_finished:
            raise UsageError("rebuild() is right where partial.met is true, on all ranks alike")
        if self._handin.has_begun:
            raise UsageError("rebuild() is right before a backward pass or after step(): gradients of this step are handed in")
        if self._takes_buckets:
            raise UsageError("a communication hook gets the gradients that DDP was made with: use Gradients(model), or a new DDP")
        if self._sum is not None:
            if not self._is_synchronous and not self._is_full():
                raise UsageError(f"rebuild() is right after every {self._meet_every} rounds: gradients of this round are on their way")
            assert self._group is not None
            for _ in self._sum.leave(self._timeout):
                # Rounds that contain only leaving ranks.
                pass
            end(self, self._group)
            self._restored, self._sum = self.rounds, None
        self._replica.name_parameters()
        self._handin.rebuild(self._replica.model)
        if self._agreement is not None:
            compare_kinds(self._agreement, self._replica)
            self._agreement.give(0)

    def optimizer(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        clip_grad_norm: float | None = None,
        scheduler: LRScheduler | Sequence[LRScheduler] = (),
    ) -> torch.optim.Optimizer:
        """Returns the same optimizer with ``step`` replaced by that of this object, for programs whose framework calls
        it.

        ``step(closure)`` calls the closure once, and then applies rounds. Each round clips gradients, if that is
        chosen, makes a step of the optimizer, and a step of each ``scheduler``, whose ``step`` does nothing elsewhere.
        """
        if self._function is not None:
            raise UsageError(
                "partial.optimizer takes one optimizer, and no on_round: several are stepped in one function of on_round"
            )
        if isinstance(optimizer, torch.optim.LBFGS):
            raise UsageError("LBFGS makes several backward passes in a step, and each would be a round: take another optimizer")
        schedules = [scheduler] if isinstance(scheduler, LRScheduler) else list(scheduler)
        if any(isinstance(item, ReduceLROnPlateau) for item in schedules):
            raise UsageError(
                "ReduceLROnPlateau takes a metric: put it in state, and step it where partial.met is true, on all ranks alike"
            )
        for item in (optimizer, *schedules):
            self._replica.add(item)
        for schedule in schedules:
            by_round(schedule, lambda: self._in_round or self._has_finished)
        step_by_gradients = optimizer.step

        def apply() -> None:
            if clip_grad_norm is not None:
                parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
                nn.utils.clip_grad_norm_(parameters, clip_grad_norm)
            step_by_gradients()
            # A schedule warns if this is not set.
            optimizer._opt_called = True
            for schedule in schedules:
                schedule.step()

        def step(closure: Callable[[], Any] | None = None, **_: Any) -> Any:
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            self.step()
            return loss

        # A schedule that is created later would wrap it.
        step._wrapped_by_lr_sched = True
        optimizer.step = step
        self._at_the_end.append(lambda: setattr(optimizer, "step", step_by_gradients))
        self.on_round(apply)
        return optimizer

    def state_dict(self) -> dict[str, Any]:
        """Returns what a checkpoint holds besides the model: counts, choices, and the contents of ``state``. It works
        only where :attr:`met` is true.

        It is for ``torch.save`` and ``torch.distributed.checkpoint``, which accepts this object itself.
        """
        if not self.met:
            raise UsageError("a checkpoint is right where partial.met is true: other ranks are in other rounds now")
        return {
            "rounds": self.rounds,
            "contributions": self.contributions,
            "choices": json.dumps(self._choices),
            "state": self._replica.save_all(),
            "model": self._replica.fingerprint_of_model(),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Resumes from a checkpoint, before the first step, on all ranks. Each rank passes what one rank has saved.
        The program loads the model itself.
        """
        if self._sum is not None or self._has_finished:
            raise UsageError("a checkpoint is loaded before the first step; make a new Gradients for it")
        self._replica.load_all(saved["state"])
        self._restored = self.rounds = saved["rounds"]
        self.contributions = saved["contributions"]
        self._expected_model = saved["model"]

    def metrics(self) -> dict[str, float]:
        """Returns numbers of this training so far, for a log.

        ``late/R`` is the share of rank R's contributions that were late. ``age/R`` is the mean number of rounds by
        which they were late, over all of its contributions. Both are the same on all ranks after the same round.
        ``slow/R`` is 1 while rank R is slow for long, else 0. ``waited`` is in seconds, for this rank; ``would_wait`` is
        how long it would have waited if each round had waited for all ranks, in the steps that were measured.
        """
        numbers = self._account.numbers(self.rounds, self.contributions) | {"non_finite": self._handin.non_finite}
        lateness = self.lateness()
        numbers |= {f"slow/{of.rank}": float(bool(of.spells) and of.spells[-1].until is None) for of in lateness}
        if lateness and self._group is not None:
            numbers["would_wait"] = lateness[self._group.world.rank].would_wait
        return numbers

    def lateness(self) -> list[RankLateness]:
        """Returns which ranks were late, since when, and what that costs, as :meth:`Allreduce.lateness` does.

        The account begins with the first step, and again after :meth:`rebuild` and with new buckets.
        """
        return self._ended if self._sum is None else self._sum.lateness()

    # The group and the collective.

    def _connect(self) -> None:
        if self._group is not None:
            return
        self._group = group_of(self._given_group, "partial gradients")
        self._timeout = self._group._seconds(None) if self._given_timeout is None else self._given_timeout
        self._group.world.check_choices(buckets=self._buckets, **self._choices)
        refuse_another(self, self._is_synchronous)
        self._agreement = Agreement(self._group, self._replica, self._timeout)
        compare_kinds(self._agreement, self._replica)
        chosen = {"meet_every": str(self._meet_every), "unequal": self._unequal, "seed": str(self._seed)}
        compare_choices(self._agreement, chosen | {"by_hook": str(self._takes_buckets)})
        self._agreement.give(0)

    def _open(self) -> BucketedAllreduce:
        """Returns the collective, which the first step creates, because the optimizers exist then."""
        if self._has_finished:
            raise UsageError("this training has finished; a new Gradients begins another one")
        self._handin.failure.check()
        self._check_problem()
        if self._function is None:
            raise UsageError("give all that changes state to partial.on_round(function), or use partial.optimizer(...)")
        if self._sum is not None:
            return self._sum
        self._connect()
        group, agreement = self._group, self._agreement
        assert group is not None and agreement is not None
        refuse_another(self, self._is_synchronous)
        if self._unequal != "copy":
            compare_ways(agreement, ways(self._replica, self._handin.parameters[0].device))
        compare(
            agreement,
            "the first step()",
            {"rounds": str(self.rounds), "contributions": str(self.contributions)},
            "{name} of rank 0 is {first}, and of rank {rank} {value}: all ranks load one checkpoint, or none",
        )
        if self._expected_model not in (None, self._replica.fingerprint_of_model()):
            raise UsageError("the model is not that of the checkpoint: load its state_dict, too, before the first step")
        self._expected_model = None
        # A forward pass has changed the buffers by now.
        self._compare(buffers=False)
        lengths, dtype = self._handin.lengths, NAMES[self._handin.dtype]
        made = lambda world, _: world.allreduce(lengths, dtype=dtype, buckets=self._buckets, **self._choices)  # noqa: E731
        self._sum = agreement.together(made)
        self._handin.connect(self._sum)
        self._leaving = Leaving(group.world)
        begin(self, self._is_synchronous, group)
        return self._sum

    # Rounds.

    def _check_problem(self) -> None:
        if self._problem is not None:
            raise UsageError(
                f"a round was not applied as a whole ({self._problem}): this rank's model is not that of the others any more; "
                "start again, from a checkpoint if there is one"
            )

    def _begin_step(self) -> None:
        """Begins a step: its first gradient is ready, so what may change at a meeting has changed."""
        if self._has_finished:
            raise UsageError("this training has finished, and its hook is there still: put the module into another DDP")
        self._check_problem()
        if self.met:
            # A backward pass is running, and layers may be frozen for it.
            now = self._replica.hyperparameters()
            self._remembered = {name: value for name, value in now.items() if not name.startswith("requires_grad of ")}
        self.met = self._is_synchronous and not self._some_left

    def _apply(self, outcome: BucketOutcome) -> None:
        entries = outcome.entries
        contributions = [entry for entry in entries if entry.part != "leaving"]
        assert self._leaving is not None and self._function is not None
        self._some_left = self._leaving.note(outcome)
        # A round with only leaving ranks changes nothing: a step with zeros would change momentum.
        if not contributions:
            return
        number = self._restored + outcome.round
        self._in_round = True
        try:
            self.rounds += 1
            self.contributions += len(contributions)
            ages = [entry.age for entry in contributions]
            for entry in contributions:
                self._account.note(entry.rank, entry.age)
            self.last.append(Round(number, outcome.fresh, outcome.carried, ages, outcome.initiator))
            self._handin.load(outcome)
            with random_numbers(self._seed * 1_000_003 + number):
                self._function()
        except BaseException as error:
            self._problem = reason(error)
            self._handin.begin_again()
            raise
        finally:
            self._in_round = False

    def _is_full(self) -> bool:
        """Returns whether the last round was one that waits for all ranks. The collective counts rounds from its
        creation.
        """
        return (self.rounds - self._restored) % self._meet_every == 0

    def _meet(self) -> None:
        if self._some_left:
            self.met = False
        elif self._is_full() or self._meets_after_the_first:
            self._meets_after_the_first = False
            assert self._agreement is not None
            self._agreement.average_buffers()
            self._compare()
            self.met = True
            _LOG.info("round %d: all ranks have the same model (%d contributions)", self.rounds, self.contributions)

    def _compare(self, buffers: bool = True, among: Sequence[int] | None = None) -> None:
        assert self._agreement is not None
        difference = self._agreement.difference(self.rounds, buffers, among)
        if difference is None:
            return
        if self._unequal == "copy":
            self._agreement.give(0 if among is None else among[0])
            return
        if self._sum is None:
            raise Mismatch(f"{difference}; before the first step all ranks make, load and freeze alike")
        raise Mismatch(f"{difference}; what changes state must be in the function of on_round, or in state=[...]")

    # Mistakes.

    def _before_step_of(self, optimizer: torch.optim.Optimizer) -> None:
        kind = type(optimizer).__name__
        if not self._in_round:
            if not any(self._replica.has(parameter) for group in optimizer.param_groups for parameter in group["params"]):
                return
            raise UsageError(
                f"{kind}.step() was called outside the function of on_round: move it, with clipping and schedule.step(), into "
                "that function, or use partial.optimizer(...)"
            )
        if not any(optimizer is known for known in self._replica.optimizers):
            raise UsageError(
                f"{kind} makes steps in the function of on_round and is not in state: Gradients(..., state=[optimizer, ...])"
            )

    def _check_parameters(self) -> None:
        """Refuses parameters that only this rank would train: their gradients are not handed in."""
        if (name := self._replica.unknown(self._handin)) is not None:
            raise UsageError(
                f"{name} was frozen when Gradients was made, or has come later, and its gradient is not handed in: freeze "
                "layers after Gradients is made, or call partial.rebuild() where partial.met is true"
            )
        if (kind := self._replica.optimizer_of_unknown(self._handin)) is not None:
            raise UsageError(
                f"{kind} has a parameter that is not in the model, and its gradient is not handed in: put it in, as in "
                "Gradients(nn.ModuleList([model, loss]), ...)"
            )

    def _check_hyperparameters(self) -> None:
        if self.met:
            return
        now, before = self._replica.hyperparameters(), self._remembered
        for name in before | now:
            is_not_known = name not in before and name.startswith("requires_grad of ")
            if is_not_known or before.get(name) == now.get(name):
                continue
            how = "has other parameters" if name.startswith("params ") else f"was {before.get(name)} and is {now.get(name)}"
            raise UsageError(
                f"{name} {how} between rounds, so ranks would apply different ones: change it in the function of on_round, or "
                "on all ranks where partial.met is true"
            )
