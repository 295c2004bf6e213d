"""Situations of larger programs: processes that fork, libraries over groups, long runs, odd data, and ranks that disagree."""

import pytest

pytest.importorskip("torch", reason="SKIPPED: torch is not installed; pip install torch")

from ranks import run  # noqa: E402

FORKED = """
import signal
data = torch.ones(3)
dist.all_reduce(data, async_op=True).wait()
# The thread of the group is in a call, and another one waits behind it.
waiting = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(2)] if rank == 0 else []
calls = [
    lambda: dist.all_reduce(data),
    lambda: dist.all_reduce(data, async_op=True),
    lambda: dist.barrier(),
    lambda: dist.send(data, 1 - rank),
    lambda: dist.recv(data, 1 - rank),
    lambda: dist.group.WORLD.monitored_barrier(timeout=datetime.timedelta(seconds=20)),
    *[lambda work=work: work.wait() for work in waiting],
    *[lambda work=work: work.get_future() for work in waiting],
]
child = os.fork()
if child == 0:
    # It ends by a signal if it hangs, and as a program does if it does not.
    signal.alarm(40)
    for number, call in enumerate(calls):
        try:
            call()
        except RuntimeError as problem:
            assert "forked child must not use" in str(problem), (number, problem)
        else:
            raise AssertionError(f"call {number} of a forked child")
    # Before, gloo's own group joins threads that a child does not have.
    if torch.__version__ >= (2, 8):
        dist.destroy_process_group()
    sys.exit(7)
status = os.waitpid(child, 0)[1]
assert os.waitstatus_to_exitcode(status) == 7, status
dist.barrier(gloo)
for work in waiting:
    work.wait()
if rank == 1:
    [dist.all_reduce(torch.ones(3)) for _ in range(2)]
# The parent's world is what it was.
dist.all_reduce(data)
assert (data == size * size).all(), data
"""

LOADERS = """
from torch.utils.data import DataLoader, Dataset, DistributedSampler
class Samples(Dataset):
    def __len__(self):
        return 32 * size
    def __getitem__(self, index):
        return index, torch.tensor([float(index), 1.0, -float(index)]), os.getpid()

total = sum(range(size))
for persistent in (False, True):
    # Workers are forked while the thread of a group waits in a call for rank 1, which is late.
    late = torch.full((1000,), float(rank))
    waiting = dist.all_reduce(late, async_op=True) if rank != 1 else None
    sampler = DistributedSampler(Samples(), size, rank, shuffle=True, seed=5)
    workers = {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": persistent}
    loader = DataLoader(Samples(), 4, sampler=sampler, **workers)
    next(iter(loader))
    dist.barrier(gloo)
    waiting.wait() if waiting is not None else dist.all_reduce(late)
    assert (late == total).all(), late

    network = nn.Linear(3, 1, bias=False)
    nn.init.zeros_(network.weight)
    wrapped = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=1.0)
    workers = [set(), set()]
    for of_epoch in workers:
        seen = []
        for indices, inputs, processes in loader:
            optimizer.zero_grad()
            wrapped(inputs).mean().backward()
            optimizer.step()
            seen += indices.tolist()
            of_epoch.update(processes.tolist())
        all = torch.empty(32 * size, dtype=torch.int64)
        dist.all_gather_into_tensor(all, torch.tensor(seen))
        assert sorted(all.tolist()) == list(range(32 * size)), all
    assert len(workers[0]) == len(workers[1]) == 2 and os.getpid() not in workers[0] | workers[1], workers
    assert (workers[0] == workers[1]) == persistent, (persistent, workers)
    # Each gradient is the mean of a step's inputs, and each epoch of 8 steps has every input once.
    mean = sum(range(32 * size)) / (32 * size)
    expected = -2 * 8 * torch.tensor([[mean, 1.0, -mean]])
    assert torch.allclose(network.weight, expected, rtol=1e-5), (network.weight, expected)
"""


def test_forked_children_get_errors_and_loaders_fork_workers() -> None:
    # In this order: a child that ends tells workers of its parent to end, too.
    run(FORKED + LOADERS, 2)


TENSORS = """
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

def whole(*shape):
    # Whole numbers: sums in any order are equal.
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(sum(shape))).float()
def part(tensor, dimension):
    # As torch.chunk cuts: the last ranks may have less, or nothing.
    parts = list(tensor.chunk(size, dimension))
    return parts[rank] if rank < len(parts) else tensor.narrow(dimension, 0, 0)

mesh = DeviceMesh.from_group(dist.group.WORLD, "cpu")
for rows, columns in ((8, 12), (size + 3, 5), (size - 1, 2 * size + 1)):
    data = whole(rows, columns)
    # Only rank 0 has the right one; others get their part from it.
    given = data if rank == 0 else torch.full_like(data, 99.0)
    sharded = distribute_tensor(given.clone(), mesh, [Shard(0)])
    assert torch.equal(sharded.to_local(), part(data, 0)), sharded
    assert torch.equal(distribute_tensor(given.clone(), mesh, [Replicate()]).to_local(), data)
    replicated = sharded.redistribute(mesh, [Replicate()])
    assert torch.equal(replicated.to_local(), data)
    for one in (replicated, sharded):
        assert torch.equal(one.redistribute(mesh, [Shard(1)]).to_local(), part(data, 1))
    partial = DTensor.from_local(data * (rank + 1), mesh, [Partial()])
    summed = data * sum(range(1, size + 1))
    assert torch.equal(partial.redistribute(mesh, [Replicate()]).to_local(), summed)
    assert torch.equal(partial.redistribute(mesh, [Shard(0)]).to_local(), part(summed, 0))
    # Products: rows by a replica, and columns by rows, which leaves sums to be made.
    other = whole(columns, 7)
    for left, right in ((Shard(0), Replicate()), (Shard(1), Shard(0))):
        product = distribute_tensor(data, mesh, [left]) @ distribute_tensor(other, mesh, [right])
        assert torch.equal(product.full_tensor(), data @ other), (rows, columns, product.placements)

# Two dimensions of ranks: each row and each column is a group.
square = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("rows", "columns"))
assert square.get_group("rows").getBackendName() == square.get_group("columns").getBackendName() == "earlybird"
data = whole(6, 8)
blocks = distribute_tensor(data, square, [Shard(0), Shard(1)])
row, column = square.get_coordinate()
assert torch.equal(blocks.to_local(), data.chunk(2, 0)[row].chunk(size // 2, 1)[column])
assert torch.equal(blocks.redistribute(square, [Replicate(), Shard(0)]).to_local(), data.chunk(size // 2, 0)[column])
assert torch.equal(blocks.full_tensor(), data)
"""


ZERO = """
from torch.distributed.optim import ZeroRedundancyOptimizer
def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 10), nn.ReLU(), nn.Linear(10, 5))
def batch(step, of):
    return torch.randn(8, 20, generator=torch.Generator().manual_seed(100 * step + of))
def parameters(net):
    return torch.cat([parameter.data.reshape(-1) for parameter in net.parameters()])

# What one process does with the batches of all ranks.
alone = network()
optimizer = torch.optim.Adam(alone.parameters(), lr=0.01)
for step in range(6):
    optimizer.zero_grad()
    alone(torch.cat([batch(step, of) for of in range(size)])).square().mean().backward()
    optimizer.step()
state = optimizer.state_dict()["state"]
assert not torch.allclose(parameters(alone), parameters(network()), atol=1e-2)

for as_views in (False, True):
    wrapped = DistributedDataParallel(network())
    sharded = ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.Adam, parameters_as_bucket_view=as_views, lr=0.01)
    for step in range(6):
        sharded.zero_grad()
        wrapped(batch(step, rank)).square().mean().backward()
        sharded.step()
    difference = (parameters(wrapped) - parameters(alone)).abs().max()
    assert difference < 1e-5, difference
    # The states of all parameters, each on one rank.
    held = torch.tensor([sum(value["exp_avg"].numel() for value in sharded.optim.state.values())])
    every = torch.empty(size, dtype=torch.int64)
    dist.all_gather_into_tensor(every, held)
    assert every.sum() == len(parameters(alone)) and every.min() > 0, every
    sharded.consolidate_state_dict(to=0)
    if rank == 0:
        found = sharded.state_dict()["state"]
        assert found.keys() == state.keys()
        for key in state:
            assert torch.allclose(found[key]["exp_avg"], state[key]["exp_avg"], atol=1e-5), key
"""


def test_dtensors_and_zero_redundancy_optimizers_do_what_one_process_does() -> None:
    run(TENSORS + ZERO, 4)


LONG = """
import gc
def held():
    gc.collect()
    with open("/proc/self/maps") as maps, open("/proc/self/statm") as memory:
        pages = int(memory.read().split()[1])
        counts = len(list(maps)), len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
        return *counts, pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
def check(what, before):
    mappings, threads, files, memory = (now - then for now, then in zip(held(), before))
    print(what, mappings, "mappings", threads, "threads", files, "files", round(memory, 2), "MiB")
    assert threads <= 0 and files <= 0 and mappings <= 20 and memory <= 8, what
def total(number):
    return size * number + sum(range(size))
def group(number):
    made = dist.new_group()
    tensor = torch.full((1000,), float(rank + number))
    work = dist.all_reduce(tensor, group=made, async_op=True)
    work.wait()
    assert (tensor == total(number)).all(), (number, tensor)
    dist.destroy_process_group(made)

def calls(many):
    tensors = [torch.full((4000,), float(rank + number)) for number in range(many)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for number, (work, tensor) in enumerate(zip(works, tensors)):
        work.wait()
        assert (tensor == total(number)).all(), (number, tensor)

# What is made once is made before it is counted.
[group(number) for number in range(20)]
before = held()
[group(number) for number in range(300)]
check("groups", before)
calls(2000)
before = held()
calls(2000)
# Their tensors have 31 MiB.
check("calls", before)
"""


def test_groups_and_calls_leave_nothing_behind() -> None:
    print(*run(LONG, 2))


EMPTY = """
ops = dist.ReduceOp
def after(number):
    # All ranks are in step.
    tensor = torch.full((3,), float(rank + number))
    dist.all_reduce(tensor)
    assert (tensor == size * number + sum(range(size))).all(), (number, tensor)

for number, dtype in enumerate((torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64)):
    for shape in ((0,), (0, 3), (2, 0, 4)):
        def empty(*front):
            return torch.empty((*front, *shape), dtype=dtype)
        def check(tensor, *front):
            assert tensor.shape == (*front, *shape) and tensor.dtype == dtype
        for op in [ops.SUM] + [ops.MIN, ops.MAX, ops.PRODUCT] * (not dtype.is_complex) + [ops.AVG] * (dtype != torch.bool):
            tensor = empty()
            dist.all_reduce(tensor, op)
            dist.reduce(tensor, 1, op)
            dist.reduce_scatter_tensor(tensor, empty(size), op)
            dist.reduce_scatter(tensor, [empty() for _ in range(size)], op)
            check(tensor)
        tensor = empty()
        work = dist.all_reduce(tensor, async_op=True)
        assert work.wait() and work.get_future().wait()[0].numel() == 0
        dist.broadcast(tensor, size - 1)
        parts, all = [empty() for _ in range(size)], empty(size)
        dist.all_gather(parts, tensor)
        dist.all_gather_into_tensor(all, tensor)
        check(all, size)
        dist.all_to_all(parts, [empty() for _ in range(size)])
        dist.all_to_all_single(all, empty(size))
        for part in [tensor, *parts]:
            check(part)
    after(number)

# Some have something, and others nothing.
sent = [torch.full((2 * to if to > rank else 0,), 10.0 * rank + to) for to in range(size)]
expected = [torch.full((2 * rank if rank > peer else 0,), 10.0 * peer + rank) for peer in range(size)]
parts = [torch.zeros(part.shape) for part in expected]
dist.all_to_all(parts, sent)
assert [part.tolist() for part in parts] == [part.tolist() for part in expected], parts
out = torch.zeros(sum(map(len, expected)))
dist.all_to_all_single(out, torch.cat(sent), list(map(len, expected)), list(map(len, sent)))
assert torch.equal(out, torch.cat(expected)), out
out = torch.zeros(rank)
dist.reduce_scatter(out, [torch.full((to,), float(rank + to)) for to in range(size)])
assert out.tolist() == [sum(range(size)) + size * rank] * rank
after(7)
"""

BITS = """
ops = dist.ReduceOp
def bits(tensor):
    return tensor.view({8: torch.int64, 4: torch.int32, 2: torch.int16}[tensor.dtype.itemsize])
def of_all(tensor):
    # As bytes, by gloo: no number is changed on the way.
    all = [torch.empty_like(tensor).view(torch.uint8) for _ in range(size)]
    dist.all_gather(all, tensor.view(torch.uint8), group=gloo)
    return [other.view(tensor.dtype) for other in all]
def first_of(a, b, takes_b):
    # Of two that compare equal the first is kept. NaN stays.
    nan = torch.full_like(a, float("nan"))
    return torch.where(a.isnan() | b.isnan(), nan, torch.where(takes_b(b, a), b, a))
folds = {
    ops.SUM: torch.add,
    ops.PRODUCT: torch.mul,
    ops.MIN: lambda a, b: first_of(a, b, torch.lt),
    ops.MAX: lambda a, b: first_of(a, b, torch.gt),
}
odd = [0.0, -0.0, 1.0, -1.5, float("inf"), float("-inf"), float("nan"), 1e-40, -3e38, 6e4, 1e-7]
torch.manual_seed(3 + rank)
for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
    for n in (1, 7, 1000, 70_001):
        # Some elements are zeros on all ranks, with the signs that they happen to have.
        mine = torch.tensor(odd)[torch.randint(len(odd), (n,))]
        mine[1::3] = torch.tensor([0.0, -0.0])[torch.randint(2, (n,))][1::3]
        mine[2::3] = torch.randn(n)[2::3]
        mine = mine.to(dtype)
        all = of_all(mine)
        for op, fold in folds.items():
            wide = torch.float64 if dtype == torch.float64 else torch.float32
            expected = all[0].to(wide)
            for other in all[1:]:
                expected = fold(expected, other.to(wide))
            expected = expected.to(dtype)
            def check(found, expected=expected):
                numbers = ~expected.isnan()
                assert torch.equal(found.isnan(), ~numbers), (dtype, n, op)
                assert torch.equal(bits(found)[numbers], bits(expected)[numbers]), (dtype, n, op)
            found = mine.clone()
            dist.all_reduce(found, op)
            check(found)
            # NaNs, too.
            for other in of_all(found):
                assert torch.equal(bits(other), bits(found)), (dtype, n, op)
            found = torch.empty_like(mine)
            dist.reduce_scatter_tensor(found, mine.repeat(size), op)
            check(found)
    in_place = earlybird.torch.empty(70_001, dtype=dtype)
    for value, op, expected in (
        (-0.0, ops.SUM, -0.0), (-0.0, ops.AVG, -0.0), (0.0 if rank else -0.0, ops.SUM, 0.0),
        (0.0 if rank else -0.0, ops.MAX, -0.0), (-0.0 if rank else 0.0, ops.MIN, 0.0),
    ):
        for tensor in (torch.empty(1, dtype=dtype), torch.empty(70_001, dtype=dtype), in_place):
            dist.all_reduce(tensor.fill_(value), op)
            assert torch.equal(bits(tensor), bits(torch.full_like(tensor, expected))), (dtype, value, op, tensor)
    # Of one rank only, in a place of its own.
    for op in (ops.SUM, ops.AVG, ops.PRODUCT, ops.MIN, ops.MAX):
        for tensor in (torch.empty(100, dtype=dtype), in_place):
            tensor.fill_(1.0)[rank] = float("nan")
            dist.all_reduce(tensor, op)
            assert tensor[:size].isnan().all() and tensor[size:].isfinite().all(), (dtype, op, tensor)
"""


def test_empty_tensors_are_taken_and_odd_numbers_have_the_same_bits_on_all_ranks() -> None:
    run(EMPTY + BITS, 3)


APART = """
def ones(length, dtype=torch.float32):
    return torch.ones(length, dtype=dtype)
# Rank 1 differs: it has 20 bytes instead of 16, or another type.
n, lengths = 4 + (rank == 1), ("length", "16", "20")
def typed(usual, other):
    return ones(4, other if rank == 1 else usual)
into, ops = dist.all_gather_into_tensor, (dist.ReduceOp.SUM, dist.ReduceOp.MAX)
disagreements = [
    (lambda group: dist.all_reduce(ones(n), group=group), lengths),
    (lambda group: dist.all_reduce(ones(n), group=group, async_op=True).wait(), lengths),
    (lambda group: dist.all_reduce(ones(250_000 * n), group=group), ("length", "4000000", "5000000")),
    (lambda group: dist.all_reduce(typed(torch.float32, torch.float64), group=group), ("sum of f32", "sum of f64")),
    (lambda group: dist.all_reduce(typed(torch.float16, torch.bfloat16), group=group), ("sum of f16", "sum of bf16")),
    (lambda group: dist.all_reduce(ones(4), ops[rank == 1], group=group), ("sum of", "max of")),
    (lambda group: dist.reduce(ones(n), 0, group=group), lengths),
    (lambda group: dist.reduce_scatter_tensor(ones(n), ones(n * size), group=group), lengths),
    (lambda group: dist.broadcast(ones(n), 0, group=group), lengths),
    (lambda group: dist.all_gather([ones(n) for _ in range(size)], ones(n), group=group), lengths),
    (lambda group: into(typed(torch.float32, torch.float64).repeat(size), typed(torch.float32, torch.float64), group=group),
     ("length", "16", "32")),
    (lambda group: dist.all_to_all_single(ones(n * size), ones(n * size), group=group), lengths),
    (lambda group: dist.all_to_all([ones(n) for _ in range(size)], [ones(n) for _ in range(size)], group=group), ("16", "20")),
    (lambda group: dist.barrier(group) if rank == 1 else into(ones(size), ones(1), group=group), ("another call",)),
]
for number, (call, words) in enumerate(disagreements):
    group = dist.new_group(timeout=datetime.timedelta(seconds=60))
    # A rank that reads nothing of rank 1 may get it in its next call.
    try:
        call(group)
        dist.barrier(group)
        dist.barrier(group)
    except (earlybird.Mismatch, earlybird.Aborted) as problem:
        kind, text = type(problem).__name__, str(problem)
    else:
        raise AssertionError(f"call {number} went well")
    assert all(word in text for word in ("all ranks must pass the same", "rank 1", *words)), (number, text)
    said = [None] * size
    dist.all_gather_object(said, kind, group=gloo)
    assert "Mismatch" in said, (number, said)
    # It stays so until it is destroyed.
    try:
        dist.all_reduce(ones(4), group=group)
    except earlybird.Error:
        dist.destroy_process_group(group)
    else:
        raise AssertionError(f"a call after call {number} went well")
# The group of all has lost nothing.
tensor = ones(4)
dist.all_reduce(tensor)
assert (tensor == size).all()
"""


def test_ranks_that_disagree_get_an_error_that_says_in_what() -> None:
    run(APART, 3)
