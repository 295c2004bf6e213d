"""What ranks of a training have in common: a model, and what a step changes besides it."""

from __future__ import annotations

import hashlib
import io
from collections import Counter, OrderedDict
from collections.abc import Container, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from .._errors import UsageError

Tensor = torch.Tensor

# Numbers of 8 bytes in a row of the table by which a large tensor is told from another one, and rows that are taken at a time.
_ROW, _ROWS = 1024, 256

# An odd number for each column: an element counts differently in each place.
_WEIGHTS = torch.arange(_ROW, dtype=torch.int64) * 2 * 0x1E3779B97F4A7C15 + 1


# What a checkpoint may have beside tensors, dictionaries and lists.
_PLAIN = (
    np.ndarray, np.generic, bool, int, float, complex, str, bytes, bytearray, set, frozenset, type(None), torch.dtype, torch.device,
)  # fmt: skip

# What its loader takes beside what torch does.
_SAFE: list[Any] = [
    set, frozenset, complex, np.ndarray, np.dtype, np.array(0).__reduce__()[0], np.float64(0).__reduce__()[0],
    *{type(np.dtype(code)) for code in np.typecodes["All"] if code != "O"},
]  # fmt: skip


def words(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """The bits of a tensor in numbers of 8 bytes, and the bytes that are left."""
    dense = tensor.detach()
    dense = dense if dense.is_contiguous() and dense.data_ptr() % 8 == 0 else dense.clone(memory_format=torch.contiguous_format)
    try:
        flat = dense.view(-1).view(torch.uint8)
        whole = flat.numel() // 8 * 8
        return flat[:whole].view(torch.int64), flat[whole:]
    except RuntimeError:
        # A part of a larger one that does not begin where a number of 8 bytes could.
        return words(dense.clone(memory_format=torch.contiguous_format))


def fingerprint(tensor: Tensor) -> int:
    """A number of 64 bits that follows from type, shape and bits of a tensor.

    Of a large one the sums of rows and columns are hashed, and not all bytes: that takes a fraction of the time. The upper half of
    each number is folded into the lower one first, because signs alone would cancel out in a sum.
    """
    hashed = hashlib.blake2b(f"{tensor.dtype} {tuple(tensor.shape)} ".encode(), digest_size=8)
    main, rest = words(tensor)
    rows = main.numel() // _ROW if main.numel() > 4 * _ROW else 0
    weights = _WEIGHTS.to(main.device)
    for table in main[: rows * _ROW].view(-1, _ROW).split(_ROWS):
        mixed = table * weights
        mixed ^= mixed >> 32
        for sums in (mixed.sum(0), mixed.sum(1)):
            hashed.update(sums.cpu().numpy().tobytes())
    for part in (main[rows * _ROW :], rest):
        hashed.update(part.cpu().numpy().tobytes())
    return int.from_bytes(hashed.digest(), "little")


def _leaves(value: Any, path: str) -> Iterator[tuple[str, int]]:
    """Names and fingerprints of what is in dictionaries and lists. Functions and the like have no bits and are left out."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _leaves(part, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for index, part in enumerate(value):
            yield from _leaves(part, f"{path}[{index}]")
    elif isinstance(value, Tensor):
        yield path, fingerprint(value)
    elif isinstance(value, (np.ndarray, np.generic)) and value.dtype != object:
        digest = hashlib.blake2b(f"{value.dtype} {value.shape} ".encode() + value.tobytes(), digest_size=8).digest()
        yield path, int.from_bytes(digest, "little")
    elif isinstance(value, (bool, int, float, complex, str, bytes, set, frozenset, type(None))):
        # Sets have no order.
        said = repr(sorted(map(repr, value)) if isinstance(value, (set, frozenset)) else value)
        digest = hashlib.blake2b(said.encode(), digest_size=8).digest()
        yield path, int.from_bytes(digest, "little")


class Fingerprint(NamedTuple):
    """The bits of something that is to be alike on all ranks."""

    kind: str
    """Of several of a kind that differ one is named."""
    name: str
    number: int


class Replica:
    """A model and its ``state``: optimizers, schedules, averages of weights, tensors."""

    def __init__(self, model: nn.Module, state: Iterable[Any]) -> None:
        self.model = model
        self.state: list[Any] = []
        self.name_parameters()
        for item in state:
            self.add(item)

    def name_parameters(self) -> None:
        """Records the names of the parameters that the model has now."""
        self._names = {parameter: name.replace("_orig_mod.", "") for name, parameter in self.model.named_parameters()}

    def add(self, item: Any) -> None:
        """Adds an object that a step changes, unless it is known."""
        if item is self.model or any(item is known for known in self.state):
            return
        if not isinstance(item, (Tensor, dict, list)) and not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
            raise UsageError(f"state has a {type(item).__name__}, which has no state_dict and load_state_dict")
        self.state.append(item)

    def name(self, parameter: Tensor) -> str:
        """Returns the model's name of a parameter."""
        return self._names.get(parameter, "a parameter of another model")

    def has(self, parameter: Tensor) -> bool:
        """Returns whether it is a parameter of the model."""
        return parameter in self._names

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimizers in the state."""
        return [item for item in self.state if isinstance(item, torch.optim.Optimizer)]

    @property
    def modules(self) -> list[nn.Module]:
        """The model, and modules in the state, such as averages of it."""
        return [self.model, *(item for item in self.state if isinstance(item, nn.Module))]

    @property
    def others(self) -> list[Any]:
        """The items of the state that are not modules."""
        return [item for item in self.state if not isinstance(item, nn.Module)]

    def unknown(self, known: Container[Tensor]) -> str | None:
        """Returns the name of a trained parameter that is not in ``known``, if there is one."""
        named = self.model.named_parameters()
        return next((name for name, parameter in named if parameter.requires_grad and parameter not in known), None)

    def optimizer_of_unknown(self, known: Container[Tensor]) -> str | None:
        """Returns the class of an optimizer that trains a parameter which is not in ``known``, if there is one."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                if any(parameter.requires_grad and parameter not in known for parameter in group["params"]):
                    return type(optimizer).__name__
        return None

    def fingerprint_of_model(self) -> int:
        """Returns one fingerprint of all parameters."""
        hashed = hashlib.blake2b(digest_size=8)
        for parameter in self.model.parameters():
            hashed.update(fingerprint(parameter).to_bytes(8, "little"))
        return int.from_bytes(hashed.digest(), "little")

    def tensors(self) -> list[Tensor]:
        """Returns the parameters and buffers of all modules."""
        return [tensor for module in self.modules for tensor in (*module.parameters(), *module.buffers())]

    def buffers(self) -> list[Tensor]:
        """Returns the buffers of all modules."""
        return [buffer for module in self.modules for buffer in module.buffers()]

    def fingerprints(self, buffers: bool = True) -> list[Fingerprint]:
        """Returns the fingerprints of all that must be alike, with the buffers or without."""
        found: list[Fingerprint] = []
        for module in self.modules:
            is_model, kind = module is self.model, f"{type(module).__name__} in state"
            for name, tensor in (*module.named_parameters(), *(module.named_buffers() if buffers else ())):
                name = name.replace("_orig_mod.", "") if is_model else f"{name.removeprefix('module.')} of {kind}"
                found.append(Fingerprint("" if is_model else kind, name, fingerprint(tensor) ^ tensor.requires_grad))
            for name, number in _leaves(_extra_of(module), "") if buffers else ():
                found.append(Fingerprint("" if is_model else kind, name if is_model else f"{name} of {kind}", number))
        for item in self.others:
            if isinstance(item, torch.optim.Optimizer):
                found += self._of_optimizer(item)
            else:
                kind, value = type(item).__name__, item.state_dict() if hasattr(item, "state_dict") else item
                found += (Fingerprint(kind, f"{name} of {kind}" if name else kind, number) for name, number in _leaves(value, ""))
        return found

    def _of_optimizer(self, optimizer: torch.optim.Optimizer) -> Iterator[Fingerprint]:
        for index, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                for key, value in _leaves(optimizer.state.get(parameter, {}), ""):
                    yield Fingerprint(key, f"{key} of {self.name(parameter)}", value)
            for key, value in _leaves({key: value for key, value in group.items() if key != "params"}, ""):
                yield Fingerprint(key, f"{key} of group {index}", value)
        kind = type(optimizer).__name__
        for key, value in _leaves(_extra_of_optimizer(optimizer), ""):
            yield Fingerprint(kind, f"{key} of {kind}", value)

    def hyperparameters(self) -> dict[str, Any]:
        """Returns what steps depend on besides gradients: rates, groups, and which parameters are trained."""
        seen: dict[str, Any] = {}
        for optimizer in self.optimizers:
            for index, group in enumerate(optimizer.param_groups):
                for key, value in group.items():
                    known = [id(parameter) for parameter in value] if key == "params" else repr(value)
                    seen[f"{key} of group {index} of {type(optimizer).__name__}"] = known
        for parameter, name in self._names.items():
            seen[f"requires_grad of {name}"] = parameter.requires_grad
        return seen

    def save(self) -> bytes:
        """Returns the state without its modules, as bytes."""
        return _saved(self.others)

    def extra(self) -> list[dict[str, Any]]:
        """Returns what ``state_dict`` of each module holds besides parameters and buffers."""
        return [_extra_of(module) for module in self.modules]

    def load_extra(self, extra: list[dict[str, Any]]) -> None:
        """Takes over what :meth:`extra` of another rank returned."""
        for module, values in zip(self.modules, extra, strict=True):
            if values:
                module.load_state_dict(values, strict=False)

    def save_all(self) -> bytes:
        """Returns the state for a checkpoint, in one piece, because the program that loads it may not have all its
        objects yet.
        """
        for item in self.state:
            _refuse_unsafe(item.state_dict() if hasattr(item, "state_dict") else item, type(item).__name__)
        return _saved(self.state)

    @torch.no_grad()
    def load(self, data: bytes) -> None:
        """Takes over what another rank has saved, to the bit and in place."""
        self._load(self.others, torch.load(io.BytesIO(data), map_location="cpu", weights_only=False))

    @torch.no_grad()
    def load_all(self, data: bytes) -> None:
        """Takes over the state from a checkpoint, to the bit and in place."""
        # A file may come from elsewhere, so code that it names must not run.
        with torch.serialization.safe_globals(_SAFE):
            saved = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        if len(saved) != len(self.state):
            raise UsageError(f"the checkpoint has {len(saved)} things in state, and here are {len(self.state)}")
        self._load(self.state, saved)

    @staticmethod
    def _load(items: list[Any], saved: list[Any]) -> None:
        for item, value in zip(items, saved, strict=True):
            if isinstance(item, torch.optim.Optimizer):
                _load_optimizer(item, value)
            elif hasattr(item, "load_state_dict"):
                item.load_state_dict(value)
            elif _put(item, value) is not item:
                raise UsageError(f"the {type(item).__name__} in state has another shape or type than here")


def _put(item: Any, value: Any) -> Any:
    """Puts a value in place of another, in place where possible: others may share a tensor in a list. Returns what is
    there now.
    """
    if any(isinstance(item, kind) and isinstance(value, kind) for kind in (Tensor, np.ndarray)):
        if (item.shape, item.dtype) == (value.shape, value.dtype):
            item[...] = value
            return item
    elif isinstance(item, dict) and isinstance(value, dict):
        parts = {key: _put(item.get(key), part) for key, part in value.items()}
        item.clear()
        item.update(parts)
        return item
    elif isinstance(item, list) and isinstance(value, list):
        item[:] = [_put(item[index] if index < len(item) else None, part) for index, part in enumerate(value)]
        return item
    elif isinstance(item, tuple) and isinstance(value, tuple) and len(item) == len(value):
        return tuple(map(_put, item, value))
    return value


def _refuse_unsafe(value: Any, path: str) -> None:
    """Refuses what a checkpoint cannot restore, because loading it could run any code."""
    if type(value) in (dict, OrderedDict, Counter):
        for key, part in value.items():
            _refuse_unsafe(part, f"{path}[{key!r}]")
    elif type(value) in (list, tuple, torch.Size):
        for index, part in enumerate(value):
            _refuse_unsafe(part, f"{path}[{index}]")
    elif not isinstance(value, (Tensor, *_PLAIN)) or getattr(value, "dtype", None) == object:
        raise UsageError(
            f"{path} is a {type(value).__name__}, which a checkpoint would not bring back: state has tensors, arrays, numbers and texts, in "
            "lists and dictionaries"
        )


def _extra_of(module: nn.Module) -> dict[str, Any]:
    """Returns what a module's ``state_dict`` holds besides parameters and buffers, such as the result of
    ``get_extra_state``.
    """
    known = {name for name, _ in (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))}
    return {name: value for name, value in module.state_dict().items() if name not in known}


def _extra_of_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Returns what an optimizer holds besides its groups and the state of each parameter."""
    extra = {str(key): value for key, value in optimizer.state.items() if not isinstance(key, Tensor)}
    if type(optimizer).state_dict is not torch.optim.Optimizer.state_dict:
        extra |= {key: value for key, value in optimizer.state_dict().items() if key not in ("state", "param_groups")}
    return extra


def _saved(items: list[Any]) -> bytes:
    data = io.BytesIO()
    torch.save([item.state_dict() if hasattr(item, "state_dict") else item for item in items], data)
    return data.getvalue()


def _load_optimizer(optimizer: torch.optim.Optimizer, value: dict[str, Any]) -> None:
    """Loads like ``load_state_dict``, which would turn 32-bit state into 16 bits where its parameter has 16."""
    if type(optimizer).load_state_dict is not torch.optim.Optimizer.load_state_dict:
        # It holds more than groups and the state of each parameter.
        optimizer.load_state_dict(value)
    for key in [key for key in optimizer.state if not isinstance(key, Tensor)]:
        del optimizer.state[key]
    optimizer.state.update({key: part for key, part in value["state"].items() if not isinstance(key, int)})
    for group, theirs in zip(optimizer.param_groups, value["param_groups"], strict=True):
        group.update({key: part for key, part in theirs.items() if key != "params"})
        for parameter, number in zip(group["params"], theirs["params"], strict=True):
            state = value["state"].get(number)
            if state is None:
                optimizer.state.pop(parameter, None)
                continue
            on_host = not (group.get("capturable") or group.get("fused"))
            for key, part in state.items():
                # A step count stays on the host if the optimizer created it there.
                if isinstance(part, Tensor) and not (key == "step" and on_host):
                    state[key] = part.to(parameter.device)
            optimizer.state[parameter] = state
