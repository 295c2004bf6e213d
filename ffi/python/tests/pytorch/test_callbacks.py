"""Calls that callbacks of futures make: they have one order on all ranks, and no thread waits for itself."""

import pytest

pytest.importorskip("torch", reason="SKIPPED: torch is not installed; pip install torch")

from ranks import run  # noqa: E402

CALLBACKS = """
total = sum(range(size))
def ones(n=3):
    return torch.full((n,), float(rank))
def started(tensor, group=None):
    return dist.all_reduce(tensor, async_op=True, group=group).get_future()

# A collective in a callback, asynchronous, waited for, and in a callback of a callback.
u = ones()
assert started(ones()).then(lambda f: dist.all_reduce(u)).wait() is None
assert (u == total).all(), u
f = started(ones()).then(lambda f: started(f.value()[0]).wait()[0]).then(lambda f: started(f.value()).wait()[0])
assert (f.wait() == total * size * size).all(), f.wait()
f = started(ones()).then(lambda f: started(ones(5)).then(lambda g: started(g.value()[0]).wait()).wait())
assert (f.wait()[0] == total * size).all()
dist.barrier()

# Other calls of the same group.
def several(f):
    dist.barrier()
    gathered = torch.empty(size)
    dist.all_gather_into_tensor(gathered, torch.tensor([float(rank)]))
    other = torch.empty(1)
    if rank == 0:
        dist.send(torch.tensor([7.0]), 1)
        dist.recv(other, 1)
    elif rank == 1:
        dist.recv(other, 0)
        dist.send(other + 1, 0)
    dist.broadcast(other, 0)
    dist.group.WORLD.monitored_barrier()
    return gathered, other
gathered, other = started(ones()).then(several).wait()
assert (gathered == torch.arange(float(size))).all() and other == 8, (gathered, other)

# Another group's, and from there the first one's again: the thread of each is in a callback of its own.
second = dist.new_group()
f = started(ones()).then(lambda f: started(ones(2), second).then(lambda g: started(ones(4)).wait()[0]).wait())
assert (f.wait() == total).all() and len(f.wait()) == 4

# A message's callback.
if rank < 2:
    data = torch.full((2,), float(rank))
    coming = torch.empty(2)
    received = dist.irecv(coming, 1 - rank).get_future()
    sent = dist.isend(data, 1 - rank)
    def answer(f):
        again = torch.empty(2)
        back = dist.isend(coming + 10, 1 - rank)
        dist.recv(again, 1 - rank)
        back.wait()
        return again
    assert (received.then(answer).wait() == rank + 10).all()
    sent.wait()
dist.barrier()

# A callback that raises: what waits for it gets the error, and the group goes on.
def raises(f):
    dist.all_reduce(ones())
    raise ValueError("a callback's own")
f = started(ones()).then(raises)
g = f.then(lambda f: f.value())
for failed in (f, g):
    try:
        failed.wait()
    except Exception as problem:
        assert "a callback's own" in str(problem), problem
    else:
        raise AssertionError("no error")
started(ones()).add_done_callback(raises)
u = ones()
dist.all_reduce(u)
assert (u == total).all()
# A call that fails in a callback fails there.
f = started(ones()).then(lambda f: dist.all_to_all_single(torch.ones(size + 1), torch.ones(size + 1)))
try:
    f.wait()
except RuntimeError as problem:
    assert "does not divide equally" in str(problem), problem
else:
    raise AssertionError("no error")
"""

# Ranks come to the calls at different times. Sizes differ, so an order of calls that is not the same on all ranks fails.
ORDER = """
import random, time
random.seed(rank)
total = sum(range(size))
for step in range(60):
    results = []
    for bucket in range(3):
        tensor, n = torch.full((10 + bucket,), float(rank)), 100 + 10 * step + bucket
        def first(f, n=n):
            time.sleep(random.random() * 0.002)
            return dist.all_reduce(torch.full((n,), float(rank)), async_op=True).get_future().wait()[0]
        def second(f, n=n):
            return f.value(), dist.all_reduce(torch.full((n + 5,), float(rank)), async_op=True).get_future().wait()[0]
        results.append(dist.all_reduce(tensor, async_op=True).get_future().then(first).then(second))
        time.sleep(random.random() * 0.002)
    own = torch.full((7,), float(rank))
    dist.all_reduce(own)
    assert (own == total).all()
    for bucket, future in enumerate(results):
        a, b = future.wait()
        assert len(a) == 100 + 10 * step + bucket and len(b) == len(a) + 5 and (a == total).all() and (b == total).all()

# A callback may wait for what was handed in before it was attached.
for step in range(40):
    one = dist.all_reduce(torch.full((3,), float(rank)), async_op=True)
    two = dist.all_reduce(torch.full((4,), float(rank)), async_op=True)
    time.sleep(random.random() * 0.001)
    def both(f):
        two.wait()
        three = torch.full((5,), float(rank))
        dist.all_reduce(three)
        return two.result()[0], three
    after, three = one.get_future().then(both).wait()
    assert (after == total).all() and (three == total).all()
    together = torch.futures.collect_all([one.get_future(), two.get_future()])
    assert len(together.then(lambda f: dist.all_reduce(torch.ones(6), async_op=True).get_future().wait()[0]).wait()) == 6
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_callbacks_make_calls(ranks: int) -> None:
    run(CALLBACKS, ranks, timeout=180)


@pytest.mark.parametrize("ranks", [2, 3])
def test_calls_of_callbacks_have_one_order_on_all_ranks(ranks: int) -> None:
    run(ORDER, ranks)


HOOKS = """
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power, quantization_hooks, default_hooks

def train(group, register, megabytes=25):
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(40, 60), nn.ReLU(), nn.Linear(60, 30), nn.ReLU(), nn.Linear(30, 5))
    network = DistributedDataParallel(network, process_group=group, bucket_cap_mb=megabytes)
    register(network, group)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    torch.manual_seed(10 + rank)
    inputs = torch.randn(16, 40)
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = (network(inputs) - inputs[:, :5]).square().mean()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    assert losses[-1] < losses[0], losses
    return torch.cat([parameter.data.reshape(-1) for parameter in network.parameters()])

def power_sgd(network, group):
    state = power.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=3, min_compression_rate=0.5)
    network.register_comm_hook(state, power.powerSGD_hook)

def per_tensor(network, group):
    network.register_comm_hook(group, quantization_hooks.quantization_pertensor_hook)

def per_channel(network, group):
    network.register_comm_hook(group, quantization_hooks.quantization_perchannel_hook)

def half(network, group):
    network.register_comm_hook(group, default_hooks.fp16_compress_hook)

# Before, these hooks of torch took what only NCCL's futures give.
quantized = (per_tensor, per_channel) if torch.__version__ >= (2, 8) else ()
for register in (power_sgd, half, *quantized):
    # One bucket, which gloo can do as well: its callbacks run when they like.
    ours, theirs = (train(group, register) for group in (dist.group.WORLD, gloo))
    assert torch.allclose(ours, theirs, atol=1e-3), (register, (ours - theirs).abs().max())
    # Several buckets: all ranks have the same parameters.
    ours = train(dist.group.WORLD, register, 0.001)
    all = [torch.empty_like(ours) for _ in range(size)]
    dist.all_gather(all, ours)
    for other in all:
        assert torch.equal(other, ours), register
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_hooks_of_ddp_that_make_calls_in_callbacks(ranks: int) -> None:
    run(HOOKS, ranks)
