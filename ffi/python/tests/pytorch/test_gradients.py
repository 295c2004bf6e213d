"""Partial rounds of gradients: all ranks have one model."""

import os

import pytest

pytest.importorskip("torch", reason="SKIPPED: torch is not installed; pip install torch")

from ranks import run  # noqa: E402

# Rounds of each training.
ROUNDS = int(os.environ.get("TEST_ROUNDS", "60"))


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adamw"])
@pytest.mark.parametrize("form", ["module", "ddp", "hook"])
def test_all_ranks_and_one_process_have_the_same_bits(kind: str, form: str) -> None:
    texts = run(
        f"""
        import training
        training.check_all(({form!r},), ({kind!r},), training.EXTRAS, training.RULES, {ROUNDS})
        """.replace("\n        ", "\n"),
        4,
        timeout=2400,
    )
    print(*texts)


def test_mistakes_are_errors_that_name_the_cure() -> None:
    run("import mistakes\nmistakes.check_all()\nos._exit(0)", 4)


PROGRAM = """
import random, time
torch.set_num_threads(1)
torch.manual_seed(rank)
model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
partial = earlybird.torch.Gradients(model, state=[optimizer], fire="solo", meet_every=10)
partial.on_round(optimizer.step)
def step():
    optimizer.zero_grad()
    model(torch.randn(4, 6)).tanh().sum().backward()
    time.sleep(0.002 * random.random() + 0.01 * (rank == 1))
    partial.step()
def end(steps):
    partial.finish()
    digest = [value.sum().item() for value in (*model.state_dict().values(), *optimizer.state_dict()["state"][0].values())]
    all = [None] * size
    dist.all_gather_object(all, (digest, partial.rounds, partial.contributions, steps))
    assert all[0][:3] == all[rank][:3], all
    # No gradient is lost, and none is counted twice.
    assert partial.contributions == sum(other[3] for other in all), all
    numbers = partial.metrics()
    assert numbers["contributions"] == partial.contributions
    late = {name: number for name, number in numbers.items() if name.startswith("late/")}
    assert 0 <= min(late.values()) <= max(late.values()) <= 1 and len(late) <= size, late
    # Rank 1 is slow, and the time in which ranks apply rounds makes none of them slow.
    slow = {name for name, number in numbers.items() if name.startswith("slow/") and number}
    assert slow <= {"slow/1"}, numbers
    assert numbers["would_wait"] >= 0, numbers
    dist.barrier()
"""

# Each rank makes its own number of steps.
LOOP = """
steps = STEPS[rank]
for _ in range(steps):
    step()
end(steps)
"""

ENDS = {
    "loops of different lengths": LOOP.replace("STEPS", "(20, 45, 7, 30)"),
    "a goal in contributions": """
steps = 0
while partial.contributions < 120:
    step()
    steps += 1
end(steps)
""",
    "an early stop, and a rank without a step": LOOP.replace("STEPS", "(40, 3, 0, 25)"),
    "a timeout in the end": """
for _ in range(5):
    step()
if rank == 0:
    time.sleep(0.5)
for _ in range(30):
    try:
        partial.finish(timeout=0.1)
        break
    except earlybird.Timeout:
        pass
end(5)
""",
}


@pytest.mark.parametrize("end", ENDS)
def test_all_ranks_end_with_one_model(end: str) -> None:
    run(PROGRAM + ENDS[end], 4)


def test_a_framework_calls_the_optimizer() -> None:
    run(
        """
        torch.set_num_threads(1)
        model = nn.Linear(6, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20)
        partial = earlybird.torch.Gradients(model, fire="quorum=2", meet_every=5)
        assert partial.optimizer(optimizer, clip_grad_norm=1.0, scheduler=schedule) is optimizer
        later = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
        for _ in range(30):
            def closure():
                optimizer.zero_grad()
                loss = model(torch.randn(4, 6)).square().sum()
                loss.backward()
                return loss
            before = schedule.last_epoch
            assert optimizer.step(closure).item() > 0
            schedule.step()
            assert schedule.last_epoch - before == len(partial.last) or schedule.last_epoch == 19
            if partial.met:
                rates = [None] * size
                dist.all_gather_object(rates, (optimizer.param_groups[0]["lr"], schedule.state_dict()))
                assert all(rate == rates[0] for rate in rates), rates
        partial.finish()
        assert schedule.last_epoch == 19
        copied = copy.deepcopy(schedule.state_dict())
        assert not any(callable(value) for value in copied.values()), copied
        dist.barrier()
        """.replace("\n        ", "\n"),
        3,
    )


def test_a_synchronous_rule_has_the_bits_of_ddp() -> None:
    for ranks in (2, 4):
        run(
            """
            torch.set_num_threads(1)
            models = [nn.Sequential(nn.Linear(6, 50), nn.ReLU(), nn.Linear(50, 2)) for _ in range(2)]
            models[1].load_state_dict(models[0].state_dict())
            wrapped = DistributedDataParallel(models[1])
            optimizers = [torch.optim.AdamW(model.parameters(), lr=0.01) for model in models]
            partial = earlybird.torch.Gradients(models[0], state=[optimizers[0]], fire="all", meet_every=7)
            partial.on_round(optimizers[0].step)
            data = torch.Generator().manual_seed(rank)
            for _ in range(40):
                x = torch.randn(4, 6, generator=data)
                optimizers[0].zero_grad()
                models[0](x).square().sum().backward()
                partial.step()
                assert partial.met
                optimizers[1].zero_grad()
                wrapped(x).square().sum().backward()
                optimizers[1].step()
                for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
                    assert torch.equal(one, other)
            partial.finish()
            dist.barrier()
            """.replace("\n            ", "\n"),
            ranks,
        )


def test_many_small_gradients_share_messages_as_in_ddp() -> None:
    run(
        """
        torch.set_num_threads(1)
        models = [nn.Sequential(*[nn.Linear(30, 30) for _ in range(100)]) for _ in range(2)]
        models[1].load_state_dict(models[0].state_dict())
        wrapped, given = DistributedDataParallel(models[1]), []
        def counted(state, bucket):
            given.append(bucket.index())
            return dist.all_reduce(bucket.buffer(), op=dist.ReduceOp.AVG, async_op=True).get_future().then(lambda all: all.value()[0])
        wrapped.register_comm_hook(None, counted)
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
        partial = earlybird.torch.Gradients(models[0], state=[optimizers[0]], fire="all")
        partial.on_round(optimizers[0].step)
        for step in range(5):
            x = torch.randn(4, 30)
            for model, optimizer in zip((models[0], wrapped), optimizers, strict=True):
                optimizer.zero_grad()
                model(x).square().sum().backward()
            # DDP plans its buckets again after the first step.
            of_ddp = len(given)
            given.clear()
            partial.step()
            optimizers[1].step()
            assert len(partial._sum.lengths) == 200 and len(partial._sum.buckets) <= of_ddp, (partial._sum.buckets, of_ddp)
            for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
                assert torch.equal(one, other)
        partial.finish()
        dist.barrier()
        """.replace("\n        ", "\n"),
        2,
    )


def test_what_only_earlier_passes_of_a_step_have_used_is_handed_in() -> None:
    run(
        """
        torch.set_num_threads(1)
        for wrapped in (False, True):
            model = nn.ParameterDict({"a": nn.Parameter(torch.zeros(2)), "c": nn.Parameter(torch.zeros(2))})
            class Sum(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.of = model
                def forward(self, both):
                    return (2 * self.of["a"] + self.of["c"] if both else 2 * self.of["a"]).sum()
            sums = Sum()
            called = DistributedDataParallel(sums) if wrapped else sums
            optimizer = torch.optim.SGD(sums.parameters(), lr=1.0)
            partial = earlybird.torch.Gradients(called, state=[optimizer], fire="all", scale="sum", buckets="each")
            partial.on_round(optimizer.step)
            for _ in range(3):
                optimizer.zero_grad()
                with partial.no_sync():
                    called(True).backward()
                called(False).backward()
                partial.step()
            assert (model["a"] == -12 * size).all() and (model["c"] == -3 * size).all(), (model["a"], model["c"])
            partial.finish()
        dist.barrier()
        """.replace("\n        ", "\n"),
        2,
    )


def test_the_group_may_come_after_the_model() -> None:
    texts = run(
        """
        torch.set_num_threads(1)
        dist.destroy_process_group()
        torch.manual_seed(rank)
        model = nn.Linear(6, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        partial = earlybird.torch.Gradients(model, state=[optimizer], fire="solo", meet_every=5)
        partial.on_round(optimizer.step)
        dist.init_process_group("earlybird")
        for _ in range(12):
            optimizer.zero_grad()
            model(torch.ones(1, 6)).sum().backward()
            partial.step()
        partial.finish()
        print([parameter.sum().item() for parameter in model.parameters()])
        """.replace("\n        ", "\n"),
        3,
    )
    assert len(set(texts)) == 1, texts


def test_a_checkpoint_goes_on_to_the_same_bits() -> None:
    run(
        """
        import io
        torch.set_num_threads(1)
        def make():
            torch.manual_seed(1)
            model = nn.Linear(6, 3)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
            partial = earlybird.torch.Gradients(model, state=[optimizer, schedule], fire="quorum=3", meet_every=10)
            def apply():
                for parameter in model.parameters():
                    parameter.grad += 0.1 * torch.randn_like(parameter)
                optimizer.step()
                schedule.step()
            partial.on_round(apply)
            return model, optimizer, partial
        def train(made, first, rounds):
            model, optimizer, partial = made
            # All ranks wait for each other, so that both trainings have the same rounds.
            for step in range(first, rounds):
                optimizer.zero_grad()
                torch.manual_seed(100 * step + rank)
                model(torch.randn(4, 6)).square().sum().backward()
                partial.step()
            return [parameter.detach().clone() for parameter in model.parameters()]
        if size != 3:
            raise AssertionError
        whole = make()
        train(whole, 0, 10)
        assert whole[2].met
        saved = io.BytesIO()
        torch.save((whole[0].state_dict(), whole[2].state_dict()), saved)
        expected = train(whole, 10, 25)
        counts = whole[2].rounds, whole[2].contributions
        whole[2].finish()
        saved.seek(0)
        of_model, of_partial = torch.load(saved, weights_only=False)
        again = make()
        again[0].load_state_dict(of_model)
        again[2].load_state_dict(of_partial)
        found = train(again, 10, 25)
        assert (again[2].rounds, again[2].contributions) == counts == (25, 75)
        assert all(map(torch.equal, found, expected))
        again[2].finish()
        dist.barrier()
        """.replace("\n        ", "\n"),
        3,
    )


@pytest.mark.parametrize("preset", ["wagma", "p-reduce", "local"])
@pytest.mark.parametrize("every", [1, 3])
def test_averages_of_models_lose_no_update(preset: str, every: int) -> None:
    run(
        f"""
        import time
        torch.set_num_threads(1)
        torch.manual_seed(rank)
        model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2).bfloat16())
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        average = earlybird.torch.ModelAverage(model, optimizer, preset={preset!r}, every={every})
        begun = torch.cat([parameter.detach().float().reshape(-1) for parameter in model.parameters()])
        updates, arrive = torch.zeros_like(begun), earlybird.Allreduce.arrive
        def recorded(self):
            updates.add_(torch.from_numpy(self.contribution().copy()))
            arrive(self)
        earlybird.Allreduce.arrive = recorded
        for _ in range(20 + (rank if {preset!r} != "local" else 0)):
            optimizer.zero_grad()
            hidden = model[:2](torch.randn(4, 6))
            model[2](hidden.bfloat16()).float().square().mean().backward()
            time.sleep(0.01 * (rank == 1))
            optimizer.step()
            average.step()
            if {preset!r} != "local":
                try:
                    dist.barrier()
                except earlybird.UsageError as problem:
                    assert "where its `met` is true" in str(problem), problem
                else:
                    raise AssertionError("a barrier between averages")
        average.finish()
        ended = torch.cat([parameter.detach().float().reshape(-1) for parameter in model.parameters()])
        others = [torch.empty_like(ended) for _ in range(size)]
        dist.all_gather(others, ended)
        assert all(torch.equal(other, ended) for other in others)
        buffers = [None] * size
        dist.all_gather_object(buffers, [buffer.sum().item() for buffer in model.buffers()])
        assert all(other == buffers[0] for other in buffers), buffers
        dist.all_reduce(updates)
        if {preset!r} != "p-reduce":
            torch.testing.assert_close(ended, begun + updates / size, rtol=1e-2, atol=1e-3)
        assert not torch.equal(ended, begun) and average.rounds > 0
        dist.barrier()
        """.replace("\n        ", "\n"),
        4,
    )


def test_averages_go_on_from_a_checkpoint() -> None:
    run(
        """
        import io
        torch.set_num_threads(1)
        def make(model):
            optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
            return model, optimizer, earlybird.torch.ModelAverage(model, optimizer, preset="local", every=3)
        def train(made, first, last):
            model, optimizer, average = made
            for step in range(first, last):
                torch.manual_seed(10 * step + rank)
                optimizer.zero_grad()
                model(torch.randn(4, 6)).square().mean().backward()
                optimizer.step()
                average.step()
            return [parameter.detach().clone() for parameter in model.parameters()]
        torch.manual_seed(1)
        whole = make(nn.Linear(6, 3))
        train(whole, 0, 6)
        saved = io.BytesIO()
        torch.save((whole[0].state_dict(), whole[2].state_dict()), saved)
        train(whole, 6, 7)
        try:
            whole[2].state_dict()
        except earlybird.UsageError as problem:
            assert "where all ranks have one model" in str(problem), problem
        else:
            raise AssertionError("a checkpoint between averages")
        expected = train(whole, 7, 12)
        whole[2].finish()
        saved.seek(0)
        of_model, of_average = torch.load(saved)
        other = nn.Linear(6, 3)
        other.load_state_dict(of_model)
        again = make(other)
        again[2].load_state_dict(of_average)
        assert all(map(torch.equal, train(again, 6, 12), expected))
        assert (again[2].steps, again[2].rounds) == (12, 4)
        again[2].finish()
        dist.barrier()
        """.replace("\n        ", "\n"),
        3,
    )


@pytest.mark.parametrize("fire", ["all", "solo"])
def test_a_layer_is_thawed_and_another_one_added_at_a_meeting(fire: str) -> None:
    run(
        f"""
        import time
        torch.set_num_threads(1)
        torch.manual_seed(rank)
        model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 2))
        model[0].requires_grad_(False)
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        partial = earlybird.torch.Gradients(model, state=[optimizer], fire={fire!r}, meet_every=5)
        partial.on_round(optimizer.step)
        def step():
            optimizer.zero_grad()
            model(torch.randn(4, 6)).square().sum().backward()
            time.sleep(0.01 * (rank == 1))
            partial.step()
        def until(rounds):
            while not (partial.met and partial.rounds >= rounds):
                step()
        def weights():
            return [parameter.detach().clone() for parameter in model.parameters()]
        until(10)
        frozen = weights()
        model[0].requires_grad_(True)
        partial.rebuild()
        until(20)
        assert not any(map(torch.equal, frozen, weights()))
        model.append(nn.Linear(2, 2))
        optimizer.add_param_group(dict(params=model[2].parameters()))
        partial.rebuild()
        until(30)
        assert len(weights()) == 6 and partial.rounds == 30, partial.rounds
        step()
        try:
            partial.rebuild()
        except earlybird.UsageError as problem:
            assert {fire!r} != "all" and "where partial.met is true" in str(problem), problem
        else:
            assert {fire!r} == "all"
            step()
        partial.finish()
        ends = [None] * size
        dist.all_gather_object(ends, ([weight.tolist() for weight in weights()], partial.rounds, partial.contributions))
        assert all(end == ends[0] for end in ends)
        dist.barrier()
        """.replace("\n        ", "\n"),
        3,
    )


def test_a_group_that_is_destroyed_in_a_training_ends_it_for_all() -> None:
    run(
        """
        import time
        torch.set_num_threads(1)
        group = dist.new_group()
        model = nn.Linear(6, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        partial = earlybird.torch.Gradients(model, state=[optimizer], fire="quorum=3", meet_every=1000, group=group)
        partial.on_round(optimizer.step)
        try:
            while True:
                optimizer.zero_grad()
                model(torch.ones(1, 6)).sum().backward()
                partial.step()
                if rank == 1 and partial.rounds >= 3:
                    dist.destroy_process_group(group)
                    break
        except earlybird.Aborted as problem:
            assert rank != 1 and "rank 1 aborted the job: the process group was destroyed" in str(problem), problem
            # What comes after it has the same cause.
            for call in (lambda: model(torch.ones(1, 6)).sum().backward(), partial.step, partial.finish):
                try:
                    call()
                    raise AssertionError("it went on")
                except earlybird.Aborted as again:
                    assert again is problem
        else:
            assert rank == 1
        dist.barrier()
        """.replace("\n        ", "\n"),
        3,
    )


def test_a_model_and_an_optimizer_are_theirs_again_after_the_end() -> None:
    run(
        """
        torch.set_num_threads(1)
        torch.manual_seed(rank)
        wrapped = DistributedDataParallel(nn.Linear(6, 2))
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
        partial = earlybird.torch.Gradients(wrapped, fire="solo", meet_every=5)
        partial.optimizer(optimizer)
        def train(steps):
            for _ in range(steps):
                optimizer.zero_grad()
                wrapped(torch.randn(4, 6)).tanh().sum().backward()
                optimizer.step()
        def same():
            both = [torch.empty_like(wrapped.module.weight) for _ in range(size)]
            dist.all_gather(both, wrapped.module.weight.detach())
            return all(torch.equal(both[0], other) for other in both)
        train(12)
        partial.finish()
        assert same()
        with wrapped.no_sync():
            wrapped(torch.randn(4, 6)).sum().backward()
        train(3)
        assert same(), "DDP does not average"
        # And another training after it.
        partial = earlybird.torch.Gradients(wrapped, state=[optimizer], fire="quorum=2", meet_every=5, by_hook=True)
        partial.optimizer(optimizer)
        train(7)
        partial.finish()
        assert same()
        try:
            wrapped(torch.randn(4, 6)).sum().backward()
        except earlybird.UsageError as problem:
            assert "its hook is there still" in str(problem), problem
        else:
            raise AssertionError("a backward pass that averages nothing")
        dist.barrier()
        """.replace("\n        ", "\n"),
        3,
    )


def test_a_training_goes_on_from_where_another_one_has_ended() -> None:
    # The round of the checkpoint is no multiple of meet_every: meetings count from it.
    run(
        """
        torch.set_num_threads(1)
        def begin(meet_every):
            torch.manual_seed(3)
            model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
            partial = earlybird.torch.Gradients(model, state=[optimizer], fire="quorum=2", meet_every=meet_every)
            partial.on_round(optimizer.step)
            return model, optimizer, partial
        def train(model, optimizer, partial, steps):
            for _ in range(steps):
                optimizer.zero_grad()
                model(torch.randn(4, 6) + 5).tanh().mean().backward()
                partial.step()
        # Meetings would give all ranks the lowest one's counts.
        first = begin(1000)
        train(*first, 3 if rank == 0 else 8)
        first[2].finish()
        assert first[2].contributions == 3 + 8 * (size - 1), first[2].contributions
        # Buffers of a rank that stopped long ago are not mixed in.
        assert int(first[0][1].num_batches_tracked) >= 8, first[0][1].num_batches_tracked
        saved = copy.deepcopy((first[0].state_dict(), first[2].state_dict()))
        model, optimizer, partial = begin(7)
        model.load_state_dict(saved[0])
        partial.load_state_dict(saved[1])
        train(model, optimizer, partial, 1)
        while not partial.met:
            train(model, optimizer, partial, 1)
        # What was loaded is compared once.
        partial.rebuild()
        train(model, optimizer, partial, 20)
        partial.finish()
        ends = [None] * size
        dist.all_gather_object(ends, [value.tolist() for value in model.state_dict().values()])
        assert all(end == ends[0] for end in ends)
        """.replace("\n        ", "\n"),
        4,
    )


def test_an_interrupt_while_rounds_are_applied_is_the_error_of_all_that_follows() -> None:
    run(
        """
        torch.set_num_threads(1)
        model = nn.Linear(6, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        partial = earlybird.torch.Gradients(model, state=[optimizer], fire="solo", meet_every=1000)
        partial.on_round(optimizer.step)
        load = partial._handin.load
        def interrupted(outcome):
            if outcome.round >= 3:
                raise KeyboardInterrupt
            load(outcome)
        partial._handin.load = interrupted
        try:
            while True:
                model(torch.ones(1, 6)).sum().backward()
                partial.step()
                optimizer.zero_grad()
        except KeyboardInterrupt:
            pass
        for call in (lambda: model(torch.ones(1, 6)).sum().backward(), partial.step, partial.finish):
            try:
                call()
                raise AssertionError("it went on")
            except earlybird.UsageError as problem:
                assert "a round was not applied as a whole (KeyboardInterrupt" in str(problem), problem
        os._exit(0)
        """.replace("\n        ", "\n"),
        2,
    )
