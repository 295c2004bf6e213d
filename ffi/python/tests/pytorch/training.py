"""Trainings of a small model, and the same by one process: what the ranks of ``test_gradients.py`` run.

One process applies what the ranks have handed in, by the cut of each round, and must have the bits of every rank.
"""

import contextlib
import hashlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from earlybird import BucketedAllreduce, BucketOutcome
from earlybird.torch import Gradients
from earlybird.torch._agreement import Agreement

MEET = 20

KINDS = ("sgd", "momentum", "adamw")
EXTRAS = (
    "nothing",
    "group",
    "clip",
    "onecycle",
    "decay",
    "average",
    "batchnorm",
    "dropout",
    "accumulate",
    "bf16",
    "two dtypes",
    "scaler",
    "noise",
)
RULES = ("solo", "quorum=all but one", "majority")
# Also whether each tensor has a bucket of its own, or plans change them.
BUCKETS = {"solo": "each", "quorum=all but one": "measured", "majority": "25M"}

TORCH = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


class TwoTypes(nn.Module):
    """Layers of 16 bits and a norm of 32."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(12, 24).bfloat16(), nn.Linear(24, 4).bfloat16()
        self.norm = nn.LayerNorm(24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.first(x.bfloat16()).float())).bfloat16()).float()


class Case:
    """A model and what a round does to it: made alike by each rank, and by the one process."""

    def __init__(self, kind: str, extra: str, rounds: int) -> None:
        torch.manual_seed(0)
        self.extra, self.is_alone = extra, False
        layers: list[nn.Module] = [nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 4)]
        if extra == "batchnorm":
            layers.insert(1, nn.BatchNorm1d(24))
        if extra == "dropout":
            layers.insert(2, nn.Dropout(0.2))
        self.model: nn.Module = TwoTypes() if extra == "two dtypes" else nn.Sequential(*layers)
        decay = 0.01 if extra == "decay" else 0.0
        parameters = list(self.model.parameters())
        optimizers: dict[str, Callable[[], torch.optim.Optimizer]] = {
            "sgd": lambda: torch.optim.SGD(parameters, 0.1, weight_decay=decay),
            "momentum": lambda: torch.optim.SGD(parameters, 0.05, momentum=0.9, weight_decay=decay),
            "adamw": lambda: torch.optim.AdamW(parameters, 1e-2, weight_decay=decay),
        }
        self.optimizer = optimizers[kind]()
        self.state: list[Any] = [self.optimizer]
        self.schedule: torch.optim.lr_scheduler.OneCycleLR | None = None
        self.average: AveragedModel | None = None
        if extra == "onecycle":
            # The last rounds are beyond its end.
            self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 0.1, total_steps=rounds - 10)
            self.state.append(self.schedule)
        if extra in ("average", "batchnorm"):
            self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
            self.state.append(self.average)

    def apply(self) -> None:
        if self.extra == "clip":
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.3)
        if self.extra == "noise":
            for parameter in self.model.parameters():
                assert parameter.grad is not None
                parameter.grad.add_(torch.randn_like(parameter) * 0.01)
        self.optimizer.step()
        if self.schedule and not (self.is_alone and self.schedule.last_epoch >= self.schedule.total_steps - 1):
            self.schedule.step()
        if self.average:
            self.average.update_parameters(self.model)

    def modules(self) -> list[nn.Module]:
        return [self.model] if self.average is None else [self.model, self.average]

    def buffers(self) -> list[torch.Tensor]:
        return [buffer for module in self.modules() for buffer in module.buffers()]

    def digest(self) -> str:
        hashed = hashlib.sha256()
        for module in self.modules():
            for tensor in (*module.parameters(), *module.buffers()):
                hashed.update(bits(tensor))
        for parameter in self.model.parameters():
            for key, value in sorted(self.optimizer.state.get(parameter, {}).items()):
                hashed.update(key.encode() + (bits(value) if isinstance(value, torch.Tensor) else repr(value).encode()))
        hashed.update(repr([group["lr"] for group in self.optimizer.param_groups]).encode())
        return hashed.hexdigest()[:16]


@dataclass
class Log:
    """What a rank has handed in and was given."""

    contributions: list[torch.Tensor] = field(default_factory=list)
    cuts: list[tuple[int, list[tuple[int, str, int]]]] = field(default_factory=list)
    # Before they are averaged, with the number of rounds.
    buffers: list[tuple[int, list[torch.Tensor]]] = field(default_factory=list)


@contextlib.contextmanager
def recorded(log: Log, case: Case) -> Iterator[None]:
    """Records what goes through the collective."""
    fill, wait, leave = BucketedAllreduce._fill, BucketedAllreduce.wait, BucketedAllreduce.leave
    average = Agreement.average_buffers
    filled: dict[int, torch.Tensor] = {}

    def told(outcome: BucketOutcome) -> BucketOutcome:
        log.cuts.append((outcome.round, [(entry.rank, entry.part, entry.age) for entry in outcome.entries]))
        return outcome

    def recorded_fill(self: BucketedAllreduce, index: int, data: memoryview) -> None:
        filled[index] = torch.frombuffer(bytearray(data), dtype=TORCH[self._dtype])
        if len(filled) == len(self.lengths):
            # Those of the last layers come first there.
            log.contributions.append(torch.cat([filled.pop(index) for index in reversed(range(len(self.lengths)))]))
        fill(self, index, data)

    def recorded_average(self: Agreement, among: Sequence[int] | None = None) -> None:
        log.buffers.append((len(log.cuts), [buffer.detach().clone() for buffer in case.buffers()]))
        average(self, among)

    BucketedAllreduce._fill = recorded_fill
    BucketedAllreduce.wait = lambda self, timeout=None: [told(outcome) for outcome in wait(self, timeout)]
    BucketedAllreduce.leave = lambda self, timeout=None: (told(outcome) for outcome in leave(self, timeout))
    Agreement.average_buffers = recorded_average
    try:
        yield
    finally:
        BucketedAllreduce._fill, BucketedAllreduce.wait, BucketedAllreduce.leave = fill, wait, leave
        Agreement.average_buffers = average


@dataclass
class Trained:
    """What a rank has at the end."""

    log: Log
    met: list[tuple[int, str]]
    end: str
    steps: int


def train(case: Case, fire: str, buckets: str, group: Any, rounds: int, form: str) -> Trained:
    """Trains, with the last rank late in each step, and rank 1 in one of five."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    model = case.model
    if form != "module":
        broadcasts = {} if form == "ddp" else {"broadcast_buffers": False}
        model = DistributedDataParallel(case.model, process_group=group, bucket_cap_mb=0.001, **broadcasts)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** (8 + rank), growth_interval=7) if case.extra == "scaler" else None
    how: dict[str, Any] = {"scaler": scaler, "by_hook": form == "hook", "buckets": buckets}
    partial = Gradients(model, state=case.state, fire=fire, meet_every=MEET, group=group, **how)
    partial.on_round(case.apply)
    data, chance = torch.Generator().manual_seed(100 + rank), random.Random(7 * rank + 3)
    torch.manual_seed(50 + rank)
    met, steps, log = [], 0, Log()
    with recorded(log, case):
        while partial.rounds < rounds:
            passes = 3 if case.extra == "accumulate" else 1
            case.optimizer.zero_grad()
            for index in range(passes):
                x = torch.randn(16, 12, generator=data)
                with partial.no_sync() if index < passes - 1 else contextlib.nullcontext():
                    with torch.autocast("cpu", torch.bfloat16, enabled=case.extra == "bf16"):
                        loss = nn.functional.cross_entropy(model(x).float(), x[:, :4].argmax(1))
                    if scaler is not None:
                        # At times it overflows.
                        loss = scaler.scale(loss) * (float("inf") if chance.random() < 0.05 else 1.0)
                    loss.backward()
            if rank == size - 1:
                time.sleep(0.030)
            elif rank == 1 and chance.random() < 0.2:
                time.sleep(chance.uniform(0.005, 0.030))
            partial.step()
            steps += 1
            if partial.met:
                met.append((partial.rounds, case.digest()))
        partial.finish()
    assert partial.met and partial.contributions >= steps
    return Trained(log, met, case.digest(), steps)


@torch.no_grad()
def _mean(case: Case, of_ranks: list[list[torch.Tensor]]) -> None:
    for buffer, *theirs in zip(case.buffers(), *of_ranks, strict=True):
        value = theirs[0]
        if buffer.is_floating_point() and any(bits(other) != bits(value) for other in theirs):
            for other in theirs[1:]:
                value = value + other
            value = value / len(theirs)
        buffer.copy_(value)


def alone(case: Case, of_ranks: list[Trained], form: str) -> tuple[list[tuple[int, str]], str]:
    """One process that applies the contributions, by the cuts of a rank with most rounds. What it has at meetings, and at the
    end."""
    case.is_alone = True
    size = len(of_ranks)
    cuts = max((trained.log.cuts for trained in of_ranks), key=len)
    left = [iter(trained.log.contributions) for trained in of_ranks]
    buffers = [dict(trained.log.buffers) for trained in of_ranks]
    met, rounds, is_complete = [], 0, True
    for number, entries in cuts:
        assert [entry[0] for entry in entries] == sorted(entry[0] for entry in entries), entries
        contributions = [next(left[rank]) for rank, part, _ in entries if part != "leaving"]
        is_complete = is_complete and len(contributions) == len(entries)
        if contributions:
            total = contributions[0]
            for contribution in contributions[1:]:
                total = total + contribution
            parts = (total / size).split([parameter.numel() for parameter in case.model.parameters()])
            for parameter, part in zip(case.model.parameters(), parts, strict=True):
                parameter.grad = part.view(parameter.shape).to(parameter.dtype)
            with torch.random.fork_rng([]):
                torch.manual_seed(number)
                case.apply()
            rounds += 1
        if is_complete and (rounds % MEET == 0 or rounds == 1 and form == "hook"):
            _mean(case, [of_rank[number] for of_rank in buffers])
            met.append((rounds, case.digest()))
    assert all(next(contributions, None) is None for contributions in left), "a contribution entered no round"
    # Those that have all rounds at the end; others left earlier.
    counts = [sum(part != "leaving" for _, entries in trained.log.cuts for _, part, _ in entries) for trained in of_ranks]
    last = [trained for trained, count in zip(of_ranks, counts, strict=True) if count == max(counts)]
    _mean(case, [trained.log.buffers[-1][1] for trained in last])
    return met, case.digest()


def check(kind: str, extra: str, rule: str, rounds: int, form: str, gloo: Any, half: Any) -> None:
    """Trains by a rule, and compares ranks with each other and with the one process."""
    group = half if extra == "group" else dist.group.WORLD
    others = gloo
    if extra == "group":
        if dist.get_rank() < 2:
            return
        others = None
    size = dist.get_world_size(group)
    fire = rule.replace("all but one", str(max(size - 1, 1)))
    trained = train(Case(kind, extra, rounds), fire, BUCKETS[rule], group, rounds, form)
    of_ranks: list[Any] = [None] * size
    dist.all_gather_object(of_ranks, trained, group=others or group)
    name = f"{kind}, {extra}, {fire}, {form}"
    first = of_ranks[0]
    assert first.met and all(other.met == first.met for other in of_ranks), f"{name}: ranks differ at a meeting"
    assert all(other.end == first.end for other in of_ranks), f"{name}: ranks differ at the end"
    if dist.get_rank(group) == 0:
        assert alone(Case(kind, extra, rounds), of_ranks, form) == (first.met, first.end), f"{name}: one process has another model"
        steps = [other.steps for other in of_ranks]
        oldest = max(age for other in of_ranks for _, entries in other.log.cuts for _, _, age in entries)
        print(f"{name}: {len(first.met)} meetings, steps {steps}, oldest {oldest}", flush=True)


def check_all(forms: tuple[str, ...], kinds: tuple[str, ...], extras: tuple[str, ...], rules: tuple[str, ...], rounds: int) -> None:
    """Checks all of these together, in one launch."""
    torch.set_num_threads(1)
    gloo, half = dist.new_group(backend="gloo"), dist.new_group([2, 3])
    for form in forms:
        for kind in kinds:
            for extra in extras:
                for rule in rules:
                    check(kind, extra, rule, rounds, form, gloo, half)
    dist.barrier()
