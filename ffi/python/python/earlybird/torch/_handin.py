"""What a rank hands in at a step: from the gradients of a backward pass to an arrival."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.hooks import RemovableHandle

from .._buckets import BucketedAllreduce, BucketOutcome
from .._errors import Failure, UsageError
from ._replica import words
from ._tensors import NAMES, bytes_of, contiguous, lent

Tensor = torch.Tensor


def widest(parameters: list[nn.Parameter]) -> torch.dtype:
    """Returns the type in which gradients of these parameters are summed."""
    dtype = parameters[0].dtype
    for parameter in parameters:
        dtype = torch.promote_types(dtype, parameter.dtype)
    if not dtype.is_floating_point or dtype not in NAMES:
        raise UsageError(f"there are no partial sums of {dtype}: keep complex parameters as real ones (torch.view_as_real)")
    return dtype


def _sum_of_bits(tensor: Tensor) -> tuple[int, int]:
    numbers, rest = words(tensor)
    return int(numbers.sum()), int(rest.sum())


def _mark(gradient: Tensor) -> tuple[int, int]:
    """Tells a gradient from another gradient, and from earlier values, in most cases."""
    return gradient.data_ptr() if gradient.layout == torch.strided else 0, gradient._version


class HandIn:
    """Takes gradients as they become ready.

    A hook on each parameter copies its gradient into the bucket that it shares with others. The last gradient of a
    bucket hands the bucket in, still during the backward pass. Instead of these hooks, a hook of
    ``DistributedDataParallel`` can give the gradients. With a scaler :meth:`complete` does all this, because one
    number that is not finite turns all gradients into zeros.
    """

    def __init__(
        self, model: nn.Module, scaler: torch.amp.GradScaler | None, begins: Callable[[], None], by_hook: bool
    ) -> None:
        if not isinstance(scaler, torch.amp.GradScaler | None):
            raise UsageError(f"scaler is a torch.amp.GradScaler, and not a {type(scaler).__name__}")
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self.failure = Failure()
        """The failure of the collective to which gradients go."""
        self._finite_steps = 0
        self.non_finite = 0
        """The number of contributions that were zeros because a number was not finite."""
        self._begins = begins
        self._by_hook = by_hook
        self._sum: BucketedAllreduce | None = None
        self._takes = True
        self._filled: set[int] = set()
        # The parameters to which a backward pass of this step under no_sync() has given a gradient.
        self._added: set[int] = set()
        # What ``.grad`` has held since the last step: address and version.
        self._left: dict[int, tuple[int, int]] = {}
        # What the gradients of this step were: address, version, bits.
        self._seen: dict[int, tuple[int, int, tuple[int, int]]] = {}
        self._hooks: list[RemovableHandle] = []
        self.rebuild(model)

    def rebuild(self, model: nn.Module) -> None:
        """Takes the gradients of all parameters that are trained now."""
        self.end()
        named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        if not named:
            raise UsageError("the model has no parameter that is trained")
        self._names, self.parameters = list(named), list(named.values())
        self.dtype = widest(self.parameters)
        if self._scaler is not None and any(parameter.dtype == torch.float16 for parameter in self.parameters):
            raise UsageError("scaler= is for parameters of 32 bits under autocast: gradients of float16 without its scale would be zeros")
        self._index = {parameter: index for index, parameter in enumerate(self.parameters)}
        self._smallest = min(range(len(self.parameters)), key=lambda index: self.parameters[index].numel())
        hooked = [] if self._by_hook else self.parameters
        self._hooks = [parameter.register_post_accumulate_grad_hook(self._is_ready) for parameter in hooked]

    def __contains__(self, parameter: object) -> bool:
        """Returns whether the gradient of a parameter is handed in."""
        return parameter in self._index

    @property
    def lengths(self) -> list[int]:
        """The elements of each gradient, roughly in the order in which they become ready: the reverse order of the
        parameters.
        """
        return [parameter.numel() for parameter in reversed(self.parameters)]

    def _place(self, index: int) -> int:
        """Returns which tensor of the collective a parameter's gradient is."""
        return len(self.parameters) - 1 - index

    def connect(self, sum: BucketedAllreduce) -> None:
        """From now on, gradients go to this collective, which has these :attr:`lengths`."""
        self._sum = sum

    def end(self) -> None:
        """Stops taking gradients."""
        self._sum = None
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    @property
    def has_begun(self) -> bool:
        """Whether a backward pass of this step has handed in something."""
        return bool(self._seen)

    @contextlib.contextmanager
    def resting(self) -> Iterator[None]:
        """Within it, backward passes add up their gradients in ``.grad`` without handing them in."""
        before, self._takes = self._takes, False
        try:
            yield
        finally:
            self._takes = before

    def _is_ready(self, parameter: Tensor) -> None:
        gradient = parameter.grad
        if not self._takes:
            self._added.add(self._index[parameter])
        elif gradient is not None:
            self._take(parameter, gradient, _mark(gradient))

    def take_bucket(self, bucket: dist.GradBucket) -> None:
        """Takes the gradients of a bucket, which become ``.grad`` after the backward pass."""
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            self._take(parameter, gradient, (0, 0))

    def _take(self, parameter: Tensor, gradient: Tensor, noted: tuple[int, int]) -> None:
        self.failure.check()
        index = self._index[parameter]
        name = self._names[index]
        if self._has_arrived() or index in self._seen:
            raise UsageError(
                f"{name} has a second gradient in this step: put all backward passes but the last, and those of an evaluation, "
                "under `with partial.no_sync():`, and use checkpoint(..., use_reentrant=False). What a backward pass has handed in "
                "is not taken back: decide before it whether a batch is left out"
            )
        if gradient.layout != torch.strided:
            raise UsageError(f"{name} has a sparse gradient, which no round can sum: use Embedding(..., sparse=False)")
        if not self._seen:
            self._begins()
        self._seen[index] = (*noted, _sum_of_bits(gradient))
        if self._sum is not None and self._scaler is None:
            self._fill(self._sum, index, gradient)

    def _has_arrived(self) -> bool:
        return len(self._filled) == len(self.parameters)

    def _fill(self, sum: BucketedAllreduce, index: int, gradient: Tensor | None) -> None:
        if gradient is None:
            gradient = torch.zeros(self.parameters[index].numel(), dtype=self.dtype)
        with self.failure.noted():
            if not self._filled:
                sum.begin()
            # Passes bytes, because NumPy lacks some of the types.
            sum._fill(self._place(index), bytes_of(contiguous(gradient.detach().to(self.dtype))).data)
        self._filled.add(index)

    def complete(self) -> None:
        """Hands in the remaining gradients; parameters without a gradient contribute zeros."""
        sum = self._sum
        assert sum is not None
        self._check()
        if self._has_arrived():
            return
        if not self._seen:
            raise UsageError(
                "there was no backward pass since the last step, or all were under no_sync(), or gradients were assigned, which is "
                "not seen: a step that has none is left out"
            )
        # The last pass may have omitted parameters that earlier passes have used.
        gradients = {index: self.parameters[index].grad for index in self._added | self._seen.keys()}
        self._refuse_assigned(gradients.keys())
        if self._scaler is not None:
            gradients = self._unscaled(self._scaler, gradients)
        for index in range(len(self.parameters)):
            if index not in self._filled:
                self._fill(sum, index, gradients.get(index))

    def _refuse_assigned(self, known: Container[int]) -> None:
        """Refuses gradients that no backward pass has given."""
        for index, parameter in enumerate(self.parameters):
            gradient = parameter.grad
            if index in known or gradient is None or _mark(gradient) == self._left.get(index):
                continue
            if gradient.layout != torch.strided or bool(gradient.count_nonzero()):
                raise UsageError(
                    f"the gradient of {self._names[index]} was assigned, and no backward pass has given it, so no round would have "
                    "it: compute it in the backward pass, or set it to None"
                )

    def _check(self) -> None:
        """Refuses gradients that changed after they were taken."""
        for index, (address, version, bits) in self._seen.items():
            gradient = self.parameters[index].grad
            is_same = gradient is not None and _mark(gradient) == (address, version)
            # A version misses some changes, and reports a multiplication by 1.
            if is_same and index != self._smallest:
                continue
            if gradient is None or gradient.layout != torch.strided or _sum_of_bits(gradient) != bits:
                raise UsageError(
                    f"the gradient of {self._names[index]} was changed after backward, which had handed it in: clip and unscale "
                    "in the function of on_round, or by partial.optimizer(..., clip_grad_norm=); for GradScaler use scaler=; a "
                    "model in DistributedDataParallel is given to Gradients as it is, not its module"
                )

    def _unscaled(self, scaler: torch.amp.GradScaler, gradients: dict[int, Tensor | None]) -> dict[int, Tensor | None]:
        """Returns the gradients without this rank's scale, which it updates as the scaler would."""
        if scaler._scale is None:
            raise UsageError("no backward pass was scaled by scaler=: scaler.scale(loss).backward()")
        scale = scaler.get_scale()
        unscaled = {index: gradient / scale for index, gradient in gradients.items() if gradient is not None}
        is_finite = all(bool(torch.isfinite(gradient).all()) for gradient in unscaled.values())
        self._finite_steps = self._finite_steps + 1 if is_finite else 0
        self.non_finite += not is_finite
        if not is_finite:
            scaler.update(scale * scaler.get_backoff_factor())
            return {}
        grows = self._finite_steps % scaler.get_growth_interval() == 0
        scaler.update(scale * (scaler.get_growth_factor() if grows else 1.0))
        return dict(unscaled)

    def begin_again(self) -> None:
        """Begins a new step: the outcomes of the last step are applied."""
        gradients = ((index, parameter.grad) for index, parameter in enumerate(self.parameters))
        self._left = {index: _mark(gradient) for index, gradient in gradients if gradient is not None}
        self._filled.clear()
        self._added.clear()
        self._seen.clear()

    @torch.no_grad()
    def load(self, outcome: BucketOutcome) -> None:
        """Puts the elements of an outcome into ``.grad``."""
        for index, parameter in enumerate(self.parameters):
            if not parameter.requires_grad:
                # Frozen at a meeting.
                parameter.grad = None
                continue
            if parameter.grad is None or parameter.grad.layout != torch.strided or 0 in parameter.grad.stride():
                parameter.grad = torch.empty_like(parameter)
            part = lent(outcome.tensor(self._place(index)))
            parameter.grad.copy_(part.view(self.dtype).view(parameter.shape))
