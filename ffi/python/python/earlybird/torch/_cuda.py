"""Tensors on a GPU. They go through pinned memory of the host, on a stream of their own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch

Tensor = torch.Tensor

_STREAMS = threading.local()


def _all(given: Any) -> Iterator[Tensor]:
    if isinstance(given, Tensor):
        yield given
    else:
        for part in given:
            yield from _all(part)


def ready(tensors: Any) -> list[torch.cuda.Event]:
    """Records the work that the caller has put on the streams of these tensors' devices so far. A call may use the
    tensors when it is done.

    Tensors may be in nested lists.
    """
    devices = {tensor.device for tensor in _all(tensors) if tensor.is_cuda}
    return [torch.cuda.current_stream(device).record_event() for device in devices]


def _stream(device: torch.device) -> torch.cuda.Stream:
    """Returns this thread's stream of a device, which carries no other work."""
    streams: dict[torch.device, torch.cuda.Stream] = _STREAMS.__dict__.setdefault("streams", {})
    if device not in streams:
        streams[device] = torch.cuda.Stream(device)
    return streams[device]


@contextlib.contextmanager
def staged(events: list[torch.cuda.Event]) -> Iterator[None]:
    """Within it, this thread's copies from and to devices come after these events; at its end the copies are done."""
    with contextlib.ExitStack() as stack:
        for event in events:
            stream = _stream(event.device)
            stream.wait_event(event)
            stack.enter_context(torch.cuda.device(event.device))
            stack.enter_context(torch.cuda.stream(stream))
        yield
        for event in events:
            _stream(event.device).synchronize()


def to_host(tensor: Tensor) -> Tensor:
    """Returns a copy in pinned memory, which is complete."""
    host = room(tensor)
    host.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensor.device).synchronize()
    return host


def room(tensor: Tensor) -> Tensor:
    """Returns pinned memory for such a tensor."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
