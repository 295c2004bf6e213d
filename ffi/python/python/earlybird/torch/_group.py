"""A process group."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work

from .._earlybird import collectives
from .._errors import UsageError
from .._world import World
from . import _tensors
from ._cuda import ready, staged
from ._live import end
from ._meeting import meet
from ._monitored import monitored_barrier
from ._queue import Calls, MadeCall, end_all
from ._tensors import Tensor, bytes_of, contiguous, keep, op_name, result_of
from ._waits import Entry, watch

if TYPE_CHECKING:
    from ._average import ModelAverage
    from ._gradients import Gradients


Result = TypeVar("Result")


class EarlybirdProcessGroup(dist.ProcessGroup):
    """A process group of ``torch.distributed`` over a world of earlybird."""

    @staticmethod
    def create(store: dist.Store, rank: int, size: int, timeout: timedelta) -> EarlybirdProcessGroup:
        """Creates the group; torch calls it for a new group, on its members."""
        return EarlybirdProcessGroup(store, rank, size, timeout)

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._own_rank, self._own_size, self._timeout = rank, size, timeout
        self._group_name, self._desc = "", ""
        deadline = timeout.total_seconds()
        place, secret = meet(store, rank, size, deadline)
        self.world = World.join(rank, size, place, secret=secret, deadline=deadline)
        collectives.open_messages(self.world, deadline)
        self._calls = Calls("earlybird", self.give_up)
        self._messages: dict[tuple[str, int | None], Calls] = {}
        self._opening = threading.Lock()
        self._barriers = 0
        self._key = place
        self.handed_in = 0
        """The number of collectives so far. The same call has the same number on all ranks."""
        watch(self, place, store)
        self.partial: list[Gradients | ModelAverage] = []
        """The trainings whose ranks are in different rounds."""

    # What torch asks a group about itself.

    def getBackendName(self) -> str:
        return "earlybird"

    def name(self) -> str:
        return "earlybird"

    def size(self) -> int:
        return self._own_size

    def rank(self) -> int:
        return self._own_rank

    @property
    def group_name(self) -> str:
        return self._group_name

    def _set_group_name(self, name: str) -> None:
        self._group_name = name

    @property
    def group_desc(self) -> str:
        return self._desc

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    def __repr__(self) -> str:
        return f"<EarlybirdProcessGroup of {self._own_size}, rank {self._own_rank}>"

    def shutdown(self) -> None:
        """Ends the calls that were made, and leaves the world."""
        if any(not training.met for training in self.partial):
            self.give_up("the process group was destroyed in a training with partial rounds; call its finish() before")
        self._calls.end()
        # One may wait for a message that never comes.
        end_all(list(self._messages.values()))
        for training in list(self.partial):
            end(training, self)
        self.world.close()

    def abort(self) -> None:
        """Makes all calls of all ranks fail."""
        self.world.abort("the process group was aborted")

    def give_up(self, reason: str) -> None:
        """Makes all calls of all ranks fail, with ``reason`` in the error."""
        with contextlib.suppress(UsageError):
            self.world.abort(reason)

    def _seconds(self, opts: Any) -> float:
        timeout = getattr(opts, "timeout", None)
        chosen = timeout if isinstance(timeout, timedelta) and timeout > timedelta(0) else self._timeout
        return chosen.total_seconds()

    def _check_rounds(self) -> None:
        """Refuses a call that would wait for ranks in other rounds, which may never make it."""
        for training in self.partial:
            if not training.met:
                raise UsageError(
                    f"a synchronous call after round {training.rounds} of a training with partial rounds on the same group: other "
                    "ranks are in other rounds. Make it where its `met` is true, or after its finish()"
                )

    def ranks(self) -> list[int]:
        """Returns the members' ranks in the world of all processes."""
        is_made = self in dist.distributed_c10d._world.pg_map
        return dist.get_process_group_ranks(self) if is_made else list(range(self._own_size))

    def _entry(self, name: str) -> Entry:
        """Numbers a call that is handed in now."""
        with self._opening:
            self.handed_in += 1
            return Entry(self._key, self.handed_in, name, time.monotonic())

    def _make(self, name: str, opts: Any, tensors: Any, call: Callable[[float], list[Tensor]]) -> Work:
        """Makes a call with tensors, which may be in lists."""
        self._check_rounds()
        seconds, events = self._seconds(opts), ready(tensors)

        def on_host() -> list[Tensor]:
            with staged(events):
                return call(seconds)

        devices = [event.device for event in events]
        return self._calls.make(on_host, getattr(opts, "asyncOp", True), devices, self._entry(name))

    def in_turn(self, call: Callable[[], Result]) -> Result:
        """Makes a call of the world after the calls that were handed in before, and returns its result."""
        results: list[Result] = []

        def made() -> list[Tensor]:
            results.append(call())
            return []

        self._calls.make(made, False, entry=self._entry("a call that sets up")).wait()
        return results[0]

    def empty(self, size: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Creates a tensor in memory that the other ranks read in place (:func:`earlybird.torch.empty`)."""
        self._check_rounds()
        length = math.prod(size) * dtype.itemsize
        memory = self.in_turn(lambda: self.world.empty(length, np.uint8, self._seconds(None)))
        return torch.from_numpy(memory).view(dtype).view(list(size))

    @property
    def _device_types(self) -> list[torch.device]:
        # While torch makes a group it would hang a recorder on one with devices, which fails for a group in Python.
        is_made = self in dist.distributed_c10d._world.pg_map
        devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
        return [torch.device(device) for device in devices] if is_made else []

    def _get_backend(self, device: torch.device) -> EarlybirdProcessGroup:
        # torch asks a group for what does its calls on a device, and that whether calls can be handed in together.
        return self

    get_backend = _get_backend
    supports_coalescing = False
    supports_splitting = False

    # Collectives.

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        seconds = (timeout if timeout is not None else self._timeout).total_seconds()
        self._check_rounds()
        # Messages, which need not wait for collectives that were handed in.
        self._calls.check()
        with self._opening:
            self._barriers += 1
            number = self._barriers
        try:
            monitored_barrier(self.world, number, seconds, wait_all_ranks)
        except KeyboardInterrupt:
            self.give_up("a barrier was interrupted")
            raise

    def barrier(self, opts: Any = None) -> Work:
        def call(timeout: float) -> list[Tensor]:
            collectives.barrier(self.world, timeout)
            return []

        return self._make("barrier", opts, [], call)

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> Work:
        root, index = getattr(opts, "rootRank", 0), getattr(opts, "rootTensor", 0)

        def call(timeout: float) -> list[Tensor]:
            data = contiguous(tensors[index]) if self._own_rank == root else result_of(tensors[index])
            collectives.broadcast(self.world, bytes_of(data), root, timeout)
            return [keep(tensor, data) for tensor in tensors]

        return self._make("broadcast", opts, tensors, call)

    def allreduce(self, tensors: list[Tensor] | Tensor, opts: Any = None) -> Work:
        listed = [tensors] if isinstance(tensors, Tensor) else tensors
        name = op_name(getattr(opts, "reduceOp", dist.ReduceOp.SUM))
        return self._make(
            "all_reduce",
            opts,
            listed,
            lambda timeout: [_tensors.all_reduce(self.world, tensor, name, timeout) for tensor in listed],
        )

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Work:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: list[Tensor], opts: Any = None) -> Work:
        name, root = op_name(getattr(opts, "reduceOp", dist.ReduceOp.SUM)), getattr(opts, "rootRank", 0)
        return self._make(
            "reduce",
            opts,
            tensors,
            lambda timeout: [_tensors.reduce(self.world, tensor, name, root, timeout) for tensor in tensors],
        )

    def _all_gather(self, outputs: Sequence[Tensor], tensor: Tensor, timeout: float) -> None:
        _tensors.same([tensor, *outputs])
        source = contiguous(tensor)
        all = torch.empty((self._own_size, source.numel()), dtype=source.dtype, device="cpu")
        collectives.all_gather(self.world, bytes_of(source), bytes_of(all), timeout)
        for output, result in zip(outputs, all, strict=True):
            keep(output, result)

    def allgather(self, outputs: list[list[Tensor]], tensors: list[Tensor], opts: Any = None) -> Work:
        def call(timeout: float) -> list[Tensor]:
            for out, tensor in zip(outputs, tensors, strict=True):
                self._all_gather(out, tensor, timeout)
            return [tensor for out in outputs for tensor in out]

        return self._make("all_gather", opts, [outputs, tensors], call)

    def allgather_coalesced(self, outputs: list[list[Tensor]], tensors: list[Tensor], opts: Any = None) -> Work:
        def call(timeout: float) -> list[Tensor]:
            for index, tensor in enumerate(tensors):
                self._all_gather([of_rank[index] for of_rank in outputs], tensor, timeout)
            return [tensor for of_rank in outputs for tensor in of_rank]

        return self._make("all_gather", opts, [outputs, tensors], call)

    def _all_gather_into(self, output: Tensor, tensor: Tensor, timeout: float) -> Tensor:
        if output.numel() != tensor.numel() * self._own_size or output.dtype != tensor.dtype:
            raise UsageError(
                f"output tensor size must be equal to world_size times input tensor size: {output.numel()} elements of "
                f"{output.dtype} are not {self._own_size} times {tensor.numel()} of {tensor.dtype}"
            )
        source, result = contiguous(tensor), result_of(output)
        collectives.all_gather(self.world, bytes_of(source), bytes_of(result), timeout)
        return keep(output, result)

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Work:
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(self, outputs: list[Tensor], tensors: list[Tensor], opts: Any = None) -> Work:
        pairs = list(zip(outputs, tensors, strict=True))
        return self._make(
            "all_gather", opts, pairs, lambda timeout: [self._all_gather_into(out, tensor, timeout) for out, tensor in pairs]
        )

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> Work:
        name = op_name(getattr(opts, "reduceOp", dist.ReduceOp.SUM))

        def call(timeout: float) -> list[Tensor]:
            for out, blocks in zip(outputs, inputs, strict=True):
                _tensors.reduce_scatter_blocks(self.world, out, blocks, name, timeout)
            return outputs

        return self._make("reduce_scatter", opts, [outputs, inputs], call)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Work:
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], tensors: list[Tensor], opts: Any = None) -> Work:
        name = op_name(getattr(opts, "reduceOp", dist.ReduceOp.SUM))
        pairs = list(zip(outputs, tensors, strict=True))
        return self._make(
            "reduce_scatter",
            opts,
            pairs,
            lambda timeout: [_tensors.reduce_scatter(self.world, out, all, name, timeout) for out, all in pairs],
        )

    def gather(self, outputs: list[list[Tensor]], tensors: list[Tensor], opts: Any = None) -> Work:
        root = getattr(opts, "rootRank", 0)
        is_root = self._own_rank == root

        def call(timeout: float) -> list[Tensor]:
            source = contiguous(tensors[0])
            if is_root:
                _tensors.same([source, *outputs[0]])
            all = torch.empty((self._own_size, source.numel()), dtype=source.dtype, device="cpu") if is_root else None
            out = None if all is None else bytes_of(all)
            collectives.gather(self.world, bytes_of(source), out, root, timeout)
            return [] if all is None else [keep(*pair) for pair in zip(outputs[0], all, strict=True)]

        return self._make("gather", opts, [outputs, tensors], call)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> Work:
        root = getattr(opts, "rootRank", 0)

        def call(timeout: float) -> list[Tensor]:
            result, all = result_of(outputs[0]), None
            if self._own_rank == root:
                _tensors.same([result, *inputs[0]])
                all = bytes_of(torch.cat([contiguous(block).reshape(-1) for block in inputs[0]]))
            collectives.scatter(self.world, all, bytes_of(result), root, timeout)
            return [keep(outputs[0], result)]

        return self._make("scatter", opts, [outputs, inputs], call)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Work:
        def call(timeout: float) -> list[Tensor]:
            sent = torch.cat([bytes_tensor(block) for block in inputs])
            received = torch.empty(sum(map(size_of, outputs)), dtype=torch.uint8, device="cpu")
            lengths = ([size_of(block) for block in inputs], [size_of(block) for block in outputs])
            collectives.all_to_all(self.world, bytes_of(sent), bytes_of(received), lengths, timeout)
            parts = received.split(lengths[1])
            # A part may begin where an element of its type could not.
            return [
                keep(out, part.clone().view(out.dtype)) if part.numel() else out
                for out, part in zip(outputs, parts, strict=True)
            ]

        return self._make("all_to_all", opts, [outputs, inputs], call)

    def alltoall_base(
        self, output: Tensor, tensor: Tensor, output_splits: list[int], input_splits: list[int], opts: Any = None
    ) -> Work:
        def call(timeout: float) -> list[Tensor]:
            if tensor.dtype != output.dtype:
                raise UsageError(f"{tensor.dtype} cannot be given to a rank that takes {output.dtype}")
            source, result = contiguous(tensor), result_of(output)
            lengths = None
            check_rows(tensor, input_splits, self._own_size)
            check_rows(output, output_splits, self._own_size)
            if output_splits or input_splits:
                lengths = (row_bytes(tensor, input_splits, self._own_size), row_bytes(output, output_splits, self._own_size))
            collectives.all_to_all(self.world, bytes_of(source), bytes_of(result), lengths, timeout)
            return [keep(output, result)]

        return self._make("all_to_all", opts, [output, tensor], call)

    # The names that torch had before, and has beside.

    all_to_all_single = alltoall_base
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # Messages: a thread for each rank and direction, so that one that waits holds up no other.

    def _mail(self, direction: str, peer: int | None) -> Calls:
        with self._opening:
            if (direction, peer) not in self._messages:
                self._messages[direction, peer] = Calls(f"earlybird {direction} {peer}", self.give_up)
            return self._messages[direction, peer]

    def send(self, tensors: list[Tensor], peer: int, tag: int = 0) -> Work:
        data = contiguous(tensors[0])

        def call() -> list[Tensor]:
            collectives.send(self.world, bytes_of(data), peer, tag, self._seconds(None))
            return tensors

        return self._mail("to", peer).make(call, devices=[tensor.device for tensor in tensors if tensor.is_cuda])

    def _receive(self, tensors: list[Tensor], peer: int | None, tag: int) -> Work:
        events = ready(tensors)

        def call() -> list[Tensor]:
            with staged(events):
                data = result_of(tensors[0])
                work.source = collectives.receive(self.world, bytes_of(data), peer, tag, self._seconds(None))
                return [keep(tensors[0], data)]

        calls = self._mail("from", peer)
        work = MadeCall(calls, call, [event.device for event in events])
        calls.add(work)
        return work

    def recv(self, tensors: list[Tensor], peer: int, tag: int = 0) -> Work:
        return self._receive(tensors, peer, tag)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Work:
        return self._receive(tensors, None, tag)


def group_of(group: Any, use: str) -> EarlybirdProcessGroup:
    """Returns the group, or the group of all ranks if there is none; `use` says for what, in errors."""
    chosen = group if group is not None else dist.group.WORLD
    if chosen is None:
        raise UsageError(f"{use} need a process group; call torch.distributed.init_process_group first")
    if chosen is dist.GroupMember.NON_GROUP_MEMBER:
        raise UsageError("this rank is not in the group")
    if not isinstance(chosen, EarlybirdProcessGroup):
        raise UsageError(f'{use} need a group of the backend "earlybird"')
    return chosen


def size_of(tensor: Tensor) -> int:
    """Returns the bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


def bytes_tensor(tensor: Tensor) -> Tensor:
    """Returns the bytes of a tensor, as a tensor."""
    return contiguous(tensor).reshape(-1).view(torch.uint8)


def check_rows(tensor: Tensor, splits: Sequence[int], ranks: int) -> None:
    """Refuses rows that cannot be divided among the ranks in this way."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if not splits and rows % ranks != 0:
        raise UsageError(f"Tensor's dim 0 does not divide equally across group size: {rows} rows for {ranks} ranks")
    if splits and (len(splits) != ranks or sum(splits) != rows):
        raise UsageError(f"Split sizes do not sum up to dim 0, or are not one for each rank: {list(splits)} of {rows} rows")


def row_bytes(tensor: Tensor, splits: Sequence[int], ranks: int) -> list[int]:
    """Returns the bytes of each rank's rows; of equal parts if ``splits`` is empty."""
    rows = tensor.shape[0] if tensor.dim() else 1
    counts = list(splits) if splits else [rows // ranks] * ranks
    return [count * (size_of(tensor) // max(rows, 1)) for count in counts]
