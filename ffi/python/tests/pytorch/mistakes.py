"""What programs do wrong with partial gradients, each with what the library says: what the ranks of ``test_gradients.py`` run."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

import earlybird
from earlybird.torch import Gradients, ModelAverage, _live, partial_hook

MISTAKES: list[tuple[str, Callable[[Any], None]]] = []
"""What an error says, and a function of a group that has the mistake. No text: the program is right."""


def says(text: str) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    def add(function: Callable[[Any], None]) -> Callable[[Any], None]:
        MISTAKES.append((text, function))
        return function

    return add


class Training:
    """A model of two layers and all that belongs to its training."""

    def __init__(self, group: Any, wrapped: bool = False, more: Any = (), **choices: Any) -> None:
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
        self.model: nn.Module = DistributedDataParallel(self.layers, process_group=group) if wrapped else self.layers
        self.optimizer = torch.optim.AdamW(self.layers.parameters(), lr=1e-3)
        chosen: dict[str, Any] = {"fire": "solo", "meet_every": 1000} | choices
        self.partial = Gradients(self.model, state=[self.optimizer, *more], group=group, **chosen)

    def backward(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(3, 6)).square().sum().backward()

    def steps(self, count: int = 2) -> None:
        for _ in range(count):
            self.backward()
            self.partial.step()

    def until_met(self, rounds: int) -> None:
        while not (self.partial.met and self.partial.rounds == rounds):
            self.steps(1)


def plain(group: Any, **choices: Any) -> Training:
    training = Training(group, **choices)
    training.partial.on_round(training.optimizer.step)
    return training


@says("AdamW.step() was called outside the function of on_round: move it, with clipping")
def step_outside(group: Any) -> None:
    training = plain(group)
    training.backward()
    training.optimizer.step()


@says("SGD makes steps in the function of on_round and is not in state")
def forgotten_optimizer(group: Any) -> None:
    training = Training(group)
    other = torch.optim.SGD(training.layers.parameters(), lr=0.1)
    training.partial.on_round(other.step)
    training.steps()


@says("was changed after backward, which had handed it in: clip and unscale in the function of on_round")
def clip_outside(group: Any) -> None:
    training = plain(group)
    training.backward()
    nn.utils.clip_grad_norm_(training.layers.parameters(), 1e-3)
    training.partial.step()


@says("")
def clip_that_changes_nothing(group: Any) -> None:
    training = plain(group)
    training.backward()
    nn.utils.clip_grad_norm_(training.layers.parameters(), float("inf"))
    training.partial.step()


@says("was changed after backward")
def zero_after_backward(group: Any) -> None:
    training = plain(group)
    training.backward()
    training.optimizer.zero_grad()
    training.partial.step()


@says("the gradient of 2.bias was changed after backward")
def change_without_a_version(group: Any) -> None:
    training = plain(group)
    training.backward()
    bias = training.layers[2].bias
    bias.grad.data.mul_(2)
    training.partial.step()


@says("lr of group 0 of AdamW was 0.001 and is 0.5 between rounds")
def other_rate(group: Any) -> None:
    training = plain(group)
    training.steps()
    training.optimizer.param_groups[0]["lr"] = 0.5
    training.steps()


@says("lr of group 0 of AdamW was 0.001 and is 0.0005 between rounds")
def schedule_outside(group: Any) -> None:
    training = plain(group)
    schedule = torch.optim.lr_scheduler.StepLR(training.optimizer, 1, 0.5)
    training.steps()
    schedule.step()
    training.steps()


@says("params of group 1 of AdamW has other parameters between rounds")
def other_group(group: Any) -> None:
    training = plain(group)
    training.steps()
    training.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    training.steps()


@says("requires_grad of 0.weight was True and is False between rounds")
def frozen_layer(group: Any) -> None:
    training = plain(group)
    training.steps()
    training.layers[0].weight.requires_grad_(False)
    training.steps()


@says("has a second gradient in this step: put all backward passes but the last, and those of an evaluation")
def second_backward(group: Any) -> None:
    training = plain(group)
    training.backward()
    training.model(torch.randn(3, 6)).sum().backward()


@says("has a second gradient in this step")
def second_backward_of_a_part(group: Any) -> None:
    training = plain(group)
    for _ in range(2):
        training.layers[0](torch.randn(3, 6)).sum().backward()


@says("there was no backward pass since the last step, or all were under no_sync()")
def nothing_to_hand_in(group: Any) -> None:
    training = plain(group)
    with training.partial.no_sync():
        training.backward()
    training.partial.step()


@says("weight has a sparse gradient, which no round can sum: use Embedding(..., sparse=False)")
def sparse(group: Any) -> None:
    table = nn.Embedding(4, 2, sparse=True)
    partial = Gradients(table, fire="solo", group=group)
    partial.on_round(lambda: None)
    table(torch.tensor([1])).sum().backward()


@says("model.join() waits for all ranks in each step: partial.finish() takes")
def join(group: Any) -> None:
    training = Training(group, wrapped=True)
    with training.model.join():
        pass


@says("1 is a SyncBatchNorm, whose forward pass waits for all ranks: take BatchNorm")
def synchronous_norm(group: Any) -> None:
    Gradients(nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2)), group=group)


@says("DistributedDataParallel(find_unused_parameters=False)")
def unused_parameters(group: Any) -> None:
    Gradients(DistributedDataParallel(nn.Linear(2, 2), process_group=group, find_unused_parameters=True))


@says("that needs Gradients(model) in place of a hook")
def unused_parameters_in_a_hook(group: Any) -> None:
    wrapped = DistributedDataParallel(nn.Linear(2, 2), process_group=group, find_unused_parameters=True)
    partial_hook(group).register(wrapped)


@says("weight is sharded (FSDP, tensor parallelism)")
def sharded(group: Any) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    model = nn.Linear(4, 4, bias=False)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model.weight = nn.Parameter(distribute_tensor(model.weight.detach(), mesh, [Shard(0)]))
    Gradients(model, group=group)


@says("LBFGS makes several backward passes in a step")
def several_passes(group: Any) -> None:
    training = Training(group)
    training.partial.optimizer(torch.optim.LBFGS(training.layers.parameters()))


@says("meet_every=20 is the rule's full=20")
def two_meetings(group: Any) -> None:
    Training(group, fire="solo,full=10", meet_every=20)


@says("name the rule by fire=")
def preset(group: Any) -> None:
    Training(group, preset="quorum")


@says("state has a float, which has no state_dict")
def no_state(group: Any) -> None:
    Training(group, more=[0.5])


@says("fire")
def unknown_rule(group: Any) -> None:
    Training(group, fire="sometimes")


@says("AdamW.step() was called outside the function of on_round")
def scaler_beside(group: Any) -> None:
    training, scaler = plain(group), torch.amp.GradScaler("cpu")
    scaler.scale(training.model(torch.randn(3, 6)).sum()).backward()
    scaler.step(training.optimizer)


@says("scaler is a torch.amp.GradScaler, and not a float")
def a_scale(group: Any) -> None:
    plain(group, scaler=1024.0)


@says("no backward pass was scaled by scaler=: scaler.scale(loss).backward()")
def scaler_unused(group: Any) -> None:
    plain(group, scaler=torch.amp.GradScaler("cpu")).steps()


@says("meet_every=2 is too small for a hook")
def hook_meets_too_often(group: Any) -> None:
    wrapped = DistributedDataParallel(nn.Linear(2, 2), process_group=group)
    partial_hook(group, fire="solo", meet_every=2).register(wrapped)


@says("meet_every is 20 on rank 0 and 21 on rank 1")
def other_meetings(group: Any) -> None:
    Training(group, fire="all", meet_every=20 + dist.get_rank())


@says("seed is 0 on rank 0 and 1 on rank 3")
def other_seed(group: Any) -> None:
    Training(group, seed=int(dist.get_rank() == 3))


@says("ranks have different models: rank 0 has AdamW in state, and rank 1 nothing")
def other_state(group: Any) -> None:
    more = [torch.optim.AdamW(nn.Linear(1, 1).parameters())] if dist.get_rank() == 0 else []
    Training(group, more=more)


@says("give all that changes state to partial.on_round(function)")
def no_function(group: Any) -> None:
    training = Training(group)
    training.steps()


@says("on_round was called before")
def two_functions(group: Any) -> None:
    training = plain(group)
    training.partial.on_round(training.optimizer.step)


@says("a round was not applied as a whole (ValueError: a mistake of its own)")
def goes_on_after_an_error(group: Any) -> None:
    training = Training(group)

    def apply() -> None:
        raise ValueError("a mistake of its own")

    training.partial.on_round(apply)
    with contextlib.suppress(ValueError):
        training.steps(1)
    training.steps(1)


@says("differ after round 4 (equal after 1): 0.weight of AveragedModel in state (and 3 more); what changes state must be in")
def average_outside(group: Any) -> None:
    training = Training(group, fire="all", meet_every=4)
    average = AveragedModel(training.layers)
    training.partial._replica.add(average)
    training.partial.on_round(training.optimizer.step)
    while True:
        training.steps(1)
        if dist.get_rank() != 1:
            average.update_parameters(training.layers)


@says("ranks 0, 1, 2 and rank 3 differ after round 8 (equal after 4): 0.weight; what changes state must be in")
def weights_of_one_rank(group: Any) -> None:
    training = plain(group, meet_every=4)
    training.until_met(4)
    if dist.get_rank() == 3:
        with torch.no_grad():
            training.layers[0].weight += 1
    # No gradient of this weight, and no decay of it: only its own change is to be seen.
    training.optimizer.param_groups[0]["lr"] = 0.0
    training.until_met(8)
    training.until_met(12)


@says("ranks 0, 1, 2 and rank 3 differ after round 8 (equal after 4): 0.weight (and 3 more), lr of group 0;")
def rate_of_one_rank(group: Any) -> None:
    training = plain(group, meet_every=4)
    training.until_met(4)
    if dist.get_rank() == 3:
        training.optimizer.param_groups[0]["lr"] = 0.5
    training.until_met(12)


@says("all ranks differ after round 0 (equal after 0): counts of Counts (and 1 more); before the first step")
def plain_state_of_one_rank(group: Any) -> None:
    class Counts:
        def __init__(self) -> None:
            self.counts, self.names = np.zeros(2), {"a"}

        def state_dict(self) -> dict[str, Any]:
            return {"counts": self.counts, "names": self.names}

        def load_state_dict(self, saved: dict[str, Any]) -> None:
            self.counts, self.names = saved["counts"], saved["names"]

    counts = Counts()
    training = plain(group, meet_every=4, more=[counts])
    counts.counts += dist.get_rank()
    counts.names.add(str(dist.get_rank()))
    training.until_met(4)


@says("ranks compute differently: threads of torch of rank 0 is 1, and of rank 3 2; make them equal")
def other_threads(group: Any) -> None:
    training = plain(group)
    if dist.get_rank() == 3:
        torch.set_num_threads(2)
    try:
        training.steps()
    finally:
        torch.set_num_threads(1)


def _call_between(group: Any, fire: str) -> None:
    training = plain(group, fire=fire)
    training.steps(1)
    begun = time.monotonic()
    try:
        dist.all_reduce(torch.ones(1), group=group)
    finally:
        assert time.monotonic() - begun < 5


for rule in ("solo", "quorum=3", "majority"):
    text = "with partial rounds on the same group: other ranks are in other rounds. Make it where its `met` is true"
    MISTAKES.append((text, lambda group, rule=rule: _call_between(group, rule)))


@says("another Gradients, or ModelAverage, has live rounds, and ranks would wait in the one for ranks in the other")
def two_at_a_time(group: Any) -> None:
    first = plain(group)
    first.steps(1)
    second = nn.Linear(2, 1)
    partial = Gradients(second, fire="solo", group=dist.new_group())
    partial.on_round(lambda: None)
    second(torch.ones(1, 2)).sum().backward()
    partial.step()


@says("a checkpoint is right where partial.met is true")
def checkpoint_between(group: Any) -> None:
    training = plain(group)
    training.steps(1)
    training.partial.state_dict()


@says("this training has finished")
def step_after_the_end(group: Any) -> None:
    training = plain(group)
    training.steps(1)
    training.partial.finish()
    training.steps(1)


@says("0.weight was frozen when Gradients was made, or has come later, and its gradient is not handed in")
def thawed_layer(group: Any) -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 2))
    layers[0].weight.requires_grad_(False)
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    partial = Gradients(layers, state=[optimizer], group=group, fire="solo")
    partial.on_round(optimizer.step)
    layers[0].weight.requires_grad_(True)
    layers(torch.ones(1, 6)).sum().backward()
    partial.step()


@says("SGD has a parameter that is not in the model, and its gradient is not handed in: put it in, as in")
def parameter_of_the_loss(group: Any) -> None:
    layers, weight = nn.Linear(6, 2), nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([*layers.parameters(), weight], lr=0.1)
    partial = Gradients(layers, state=[optimizer], group=group, fire="solo")
    partial.on_round(optimizer.step)
    (weight * layers(torch.ones(1, 6)).sum()).backward()
    partial.step()


@says("all ranks differ after round 3 (equal after 1): weight")
def other_function_of_each_rank(group: Any) -> None:
    """Too short for a meeting: compared at the end."""
    layers = nn.Linear(6, 2, bias=False)
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    partial = Gradients(layers, state=[optimizer], group=group, fire="all")

    @partial.on_round
    def apply() -> None:
        layers.weight.grad *= 1 + dist.get_rank() * (partial.rounds > 1)
        optimizer.step()

    for _ in range(3):
        optimizer.zero_grad()
        layers(torch.ones(1, 6)).sum().backward()
        partial.step()
    partial.finish()


@says("static_graph=False")
def static_graph(group: Any) -> None:
    Gradients(DistributedDataParallel(nn.Linear(2, 2), process_group=group, static_graph=True))


@says("ReduceLROnPlateau takes a metric")
def plateau(group: Any) -> None:
    training = Training(group)
    training.partial.optimizer(
        training.optimizer, scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau(training.optimizer)
    )


@says("partial.optimizer takes one optimizer, and no on_round")
def two_optimizers(group: Any) -> None:
    training = Training(group)
    training.partial.optimizer(training.optimizer)
    training.partial.optimizer(torch.optim.SGD(training.layers.parameters(), lr=0.1))


@says("step() was called in the function of on_round, which step() calls")
def step_in_the_function(group: Any) -> None:
    training = Training(group)
    training.partial.on_round(training.partial.step)
    training.steps(1)


@says("ranks have different models: rank 0 has weight (torch.float32, (2, 6)), and rank 2 weight (torch.float64, (2, 6))")
def another_type_on_one_rank(group: Any) -> None:
    model = nn.Linear(6, 2, dtype=torch.float64 if dist.get_rank() == 2 else torch.float32)
    try:
        Gradients(model, group=group)
    except earlybird.Error:
        # The model trains without it as before.
        assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())
        model(torch.ones(1, 6, dtype=model.weight.dtype)).sum().backward()
        raise


@says("and state a list: state=[optimizer]")
def state_that_is_no_list(group: Any) -> None:
    layers = nn.Linear(6, 2)
    Gradients(layers, state=torch.optim.SGD(layers.parameters(), lr=0.1), group=group)


@says("the model is not that of the checkpoint: load its state_dict, too")
def checkpoint_without_its_model(group: Any) -> None:
    training = plain(group, meet_every=2)
    training.until_met(2)
    saved = training.partial.state_dict()
    training.partial.finish()
    torch.manual_seed(1)
    other = plain(group, meet_every=2)
    other.partial.load_state_dict(saved)
    other.steps(1)


@says("all ranks load one checkpoint, or none")
def checkpoint_on_one_rank(group: Any) -> None:
    training = plain(group, meet_every=2)
    training.until_met(2)
    saved = training.partial.state_dict()
    training.partial.finish()
    other = plain(group, meet_every=2)
    other.layers.load_state_dict(training.layers.state_dict())
    if dist.get_rank() == 1:
        other.partial.load_state_dict(saved)
    other.steps(1)


@says("meet_every=1 would make each round one of all ranks")
def meeting_in_each_round(group: Any) -> None:
    plain(group, meet_every=1)


@says("rebuild() is right before a backward pass or after step()")
def rebuild_in_a_step(group: Any) -> None:
    training = plain(group, fire="all")
    training.steps()
    training.backward()
    training.partial.rebuild()


class Branch(Training):
    """A training in whose steps the second layer has no part."""

    def backward(self) -> None:
        self.layers[0](torch.randn(3, 6)).square().sum().backward()


@says("the gradient of 2.bias was assigned, and no backward pass has given it")
def assigned_gradient(group: Any) -> None:
    training = Branch(group)
    training.partial.on_round(training.optimizer.step)
    training.steps()
    training.optimizer.zero_grad()
    training.backward()
    training.layers[2].bias.grad = torch.ones(2)
    training.partial.step()


@says("")
def gradients_that_a_round_has_left(group: Any) -> None:
    training = Branch(group)
    training.partial.on_round(training.optimizer.step)
    for clears in (None, False, True):
        if clears is not None:
            training.optimizer.zero_grad(set_to_none=clears)
        else:
            training.layers.zero_grad()
            # All have one, that of the round.
            Training.backward(training)
            training.partial.step()
            training.layers[0].zero_grad()
        training.layers[2].bias.grad = None if clears is not None else torch.zeros(()).expand(2)
        training.backward()
        training.partial.step()


@says("a GradScaler is given as scaler=, and not in state")
def scaler_in_state(group: Any) -> None:
    scaler = torch.amp.GradScaler("cpu")
    Training(group, more=[scaler], scaler=scaler)


@says("scaler= is for parameters of 32 bits under autocast")
def scaler_of_halves(group: Any) -> None:
    layers = nn.Linear(6, 2).half()
    Gradients(layers, group=group, scaler=torch.amp.GradScaler("cpu"))


@says("weight has no shape yet: make one forward pass before")
def lazy_layer(group: Any) -> None:
    Gradients(nn.LazyLinear(2), group=group)


@says("adjacency is a sparse buffer")
def sparse_buffer(group: Any) -> None:
    layers = nn.Linear(6, 2)
    layers.register_buffer("adjacency", torch.eye(3).to_sparse())
    Gradients(layers, group=group)


@says("all ranks do the same there")
def rebuild_on_one_rank(group: Any) -> None:
    training = plain(group, meet_every=2)
    training.until_met(2)
    if dist.get_rank() == 1:
        training.partial.rebuild()
    else:
        training.partial.finish()


@says("")
def layers_that_one_pass_of_a_step_freezes(group: Any) -> None:
    training = plain(group, meet_every=2)
    for _ in range(6):
        training.optimizer.zero_grad()
        for index, resting in ((0, training.partial.no_sync()), (2, contextlib.nullcontext())):
            training.layers[index].requires_grad_(False)
            with resting:
                training.model(torch.randn(3, 6)).square().sum().backward()
            training.layers[index].requires_grad_(True)
        training.partial.step()
    training.partial.finish()


@says("")
def schedules_in_a_schedule(group: Any) -> None:
    training = Training(group, meet_every=2)
    kinds = torch.optim.lr_scheduler
    parts = [kinds.LinearLR(training.optimizer, 0.5), kinds.OneCycleLR(training.optimizer, 0.1, 4)]
    inner = kinds.SequentialLR(training.optimizer, parts, [3])
    chained = kinds.ChainedScheduler([kinds.ConstantLR(training.optimizer, 0.5)], training.optimizer)
    training.partial.optimizer(training.optimizer, scheduler=[inner, chained])
    training.steps(12)
    training.partial.finish()


def average(group: Any, model: nn.Module, more: Any = (), **choices: Any) -> ModelAverage:
    optimizer = torch.optim.SGD([*(it for it in model.parameters() if it.requires_grad), *more], 0.1)
    return ModelAverage(model, optimizer, group=group, **choices)


@says("another Gradients, or ModelAverage, has live rounds")
def two_averages(group: Any) -> None:
    for _ in range(2):
        average(group, nn.Linear(2, 2))


@says("0.weight trains, or is, a parameter that was not in the model or was frozen")
def average_that_thaws(group: Any) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    mean = average(group, model)
    model[0].requires_grad_(True)
    mean.step()


@says("SGD trains, or is, a parameter that was not in the model or was frozen")
def average_without_a_parameter_of_its_optimizer(group: Any) -> None:
    average(group, nn.Linear(2, 2), [nn.Parameter(torch.ones(1))]).step()


@says("ranks have different models: rank 0 has weight")
def averages_of_different_models(group: Any) -> None:
    average(group, nn.Linear(2, 3 + dist.get_rank()))


@says("")
def another_training_after_the_group_has_ended(group: Any) -> None:
    other = dist.new_group()
    training = plain(other)
    training.backward()
    dist.destroy_process_group(other)
    plain(group).steps(1)


def check_all(only: str = "") -> None:
    """Makes each mistake on a group of its own, and reads what is said."""
    torch.set_num_threads(1)
    wrong = []
    for text, mistake in MISTAKES:
        if only not in mistake.__name__:
            continue
        group = dist.new_group()
        try:
            mistake(group)
            said = ""
        except earlybird.Error as error:
            said = str(error)
        # What is left of a training would be in the way of the next one.
        _live._LIVE.clear()
        if (text == "") != (said == "") or text not in said:
            wrong.append(f"{mistake.__name__}: {said!r} has not {text!r}")
    print(len(MISTAKES), "mistakes", flush=True)
    assert not wrong, "\n".join(wrong)
