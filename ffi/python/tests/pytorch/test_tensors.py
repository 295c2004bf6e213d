"""Tensors of all types and layouts that programs reduce and move, and what they may do with them afterwards."""

import pytest

pytest.importorskip("torch", reason="SKIPPED: torch is not installed; pip install torch")

from ranks import run  # noqa: E402

MEANS = """
AVG = dist.ReduceOp.AVG
# The sum does not fit, and the mean does.
for dtype, value in ((torch.float16, 60_000), (torch.int8, 120), (torch.uint8, 250), (torch.int16, -32_000)):
    for shape in ((5,), (3000,)):
        tensor = torch.full(shape, value, dtype=dtype)
        dist.all_reduce(tensor, AVG)
        assert tensor.dtype == dtype and (tensor == value).all(), (dtype, tensor)
        on_root = torch.full(shape, value, dtype=dtype)
        dist.reduce(on_root, 0, AVG)
        assert (on_root == value).all(), (dtype, on_root)
        mine = torch.empty(shape, dtype=dtype)
        dist.reduce_scatter_tensor(mine, torch.full((size, *shape), value, dtype=dtype), AVG)
        assert (mine == value).all(), (dtype, mine)
        dist.reduce_scatter(mine.zero_(), [torch.full(shape, value, dtype=dtype)] * size, AVG)
        assert (mine == value).all(), (dtype, mine)
# Rounded once: a sum of halves would round each time, and at the end.
tensor = torch.tensor([2049.0 if rank else 2047.0], dtype=torch.float32).half()
expected = (sum([2047.0] + [torch.tensor(2049.0).half().item()] * (size - 1)) / size)
dist.all_reduce(tensor, AVG)
assert tensor == torch.tensor(expected).half(), (tensor, expected)
# Means of integers are rounded towards 0.
for dtype in (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint32, torch.uint64):
    signed = not str(dtype).startswith("torch.uint")
    total = sum(7 + r for r in range(size))
    tensor = torch.tensor([7 + rank, -7 - rank if signed else 0]).to(dtype)
    dist.all_reduce(tensor, AVG)
    assert tensor.tolist() == [total // size, -(total // size) if signed else 0], (dtype, tensor)
# What two ranks hand in differs, and both are told.
if size == 2:
    try:
        dist.all_reduce(torch.ones(2 if rank else 4, dtype=(torch.float16, torch.float32)[rank]), AVG, dist.new_group())
    except earlybird.Error as problem:
        assert "mean of f16" in str(problem) and "mean of f32" in str(problem), problem
    else:
        raise AssertionError("a mean of two types")
try:
    dist.all_reduce(torch.tensor([True]), AVG)
except earlybird.UsageError as problem:
    assert "no mean of torch.bool" in str(problem)
else:
    raise AssertionError("a mean of truth values")

# Partial rounds.
network = nn.Linear(4, 1, bias=False).half()
wrapped = DistributedDataParallel(network)
partial = earlybird.torch.partial_hook(fire="all").register(wrapped)
partial.on_round(lambda: None)
for step in range(4):
    network.weight.grad = None
    wrapped(torch.full((1, 4), 60_000.0).half()).sum().backward()
    partial.step()
    assert (network.weight.grad == 60_000).all(), (step, network.weight.grad)
partial.finish()
"""


FLUSHED = """
AVG = dist.ReduceOp.AVG
# The threads of a group that is made from here on flush tiny numbers to zero on one rank, as this one does.
torch.set_flush_denormal(rank == 1)
for group in (dist.group.WORLD, dist.new_group()):
    for dtype, value in ((torch.float32, 1.2e-38), (torch.float64, 2.3e-308), (torch.complex64, 1.2e-38)):
        for length in (3, 100_000):
            tensor = torch.full((length,), 0 if rank else value, dtype=dtype)
            work = dist.all_reduce(tensor, AVG, group=group, async_op=True)
            work.wait()
            dist.all_reduce(tensor, AVG, group=group)
            others = [torch.empty_like(tensor) for _ in range(size)]
            dist.all_gather(others, tensor)
            torch.set_flush_denormal(False)
            expected = torch.full((length,), value / 2, dtype=dtype)
            assert all(torch.equal(other, expected) for other in others), (dtype, length, others)
            torch.set_flush_denormal(rank == 1)
"""


def test_means_have_the_same_bits_on_ranks_that_flush_tiny_numbers() -> None:
    run(FLUSHED, 2)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_means_that_fit_are_right(ranks: int) -> None:
    run(MEANS, ranks)


TYPES = """
SUM, MIN, MAX, PROD = dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT
def gathered(*_):
    raise AssertionError("gathered instead of reduced")
earlybird.torch._tensors._gathered = gathered
torch.manual_seed(0)
for dtype in (torch.int8, torch.uint8, torch.int16, torch.uint32, torch.uint64, torch.bool):
    bits = {torch.bool: 1, torch.int8: 8, torch.uint8: 8, torch.int16: 16, torch.uint32: 32, torch.uint64: 64}[dtype]
    signed = dtype in (torch.int8, torch.int16)
    for n in (1, 7, 1000, 20_001):
        low, high = (-(1 << bits - 1), 1 << bits - 1) if signed else (0, 1 << min(bits, 62))
        all = [torch.randint(low, high, (n,)) for _ in range(size)]
        def wrapped(numbers):
            numbers = numbers % (1 << bits)
            return numbers - (1 << bits) if signed and numbers >= 1 << bits - 1 else numbers
        def fold(op, numbers):
            if dtype == torch.bool:
                return any(numbers) if op in (SUM, MAX) else __builtins__.all(numbers)
            import math
            return wrapped({SUM: sum, PROD: math.prod, MIN: min, MAX: max}[op](numbers))
        for op in (SUM, MIN, MAX, PROD):
            tensor = all[rank].to(dtype)
            expected = [fold(op, [of[i].item() for of in all]) for i in range(min(n, 50))]
            dist.all_reduce(tensor, op)
            assert tensor[:50].tolist() == expected, (dtype, op, n)
            tensor = all[rank].to(dtype)
            dist.reduce(tensor, 1, op)
            assert rank != 1 or tensor[:50].tolist() == expected, (dtype, op, n)
            tensor = torch.empty(n, dtype=dtype)
            dist.reduce_scatter_tensor(tensor, all[rank].to(dtype).repeat(size), op)
            assert tensor[:50].tolist() == expected, (dtype, op, n)
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_library_reduces_integers_of_all_lengths(ranks: int) -> None:
    run(TYPES, ranks)


LAYOUTS = """
total = sum(range(size))
# Expanded tensors have one element for many.
for shape, expanded in (((1,), (4,)), ((3, 1), (3, 4)), ((4,), (2, 4)), ((1, 5, 1), (2, 5, 3))):
    count = torch.Size(shape).numel()
    base = torch.arange(float(count)).reshape(shape)
    def tensor():
        return (base + rank).expand(expanded)
    def check(found, expected):
        assert torch.equal(found, expected.expand(expanded)), (shape, found)
    t = tensor()
    dist.all_reduce(t)
    check(t, size * base + total)
    t = tensor()
    dist.broadcast(t, 1)
    check(t, base + 1)
    t = tensor()
    dist.reduce(t, 0)
    check(t, size * base + total if rank == 0 else base + rank)
    t = tensor()
    dist.reduce_scatter(t, [tensor()] * size)
    check(t, size * base + total)
    parts = [torch.empty(expanded) for _ in range(size)]
    dist.all_gather(parts, tensor())
    for peer, part in enumerate(parts):
        check(part, base + peer)
    t = tensor()
    dist.scatter(t, [base.expand(expanded) + 10 * r for r in range(size)] if rank == 0 else None)
    check(t, base + 10 * rank)
    if rank == 0:
        dist.send(tensor(), 1)
    elif rank == 1:
        t = tensor()
        dist.recv(t, 0)
        check(t, base)

# Blocks of different lengths.
for op, expected in ((dist.ReduceOp.SUM, lambda r: size * r + total), (dist.ReduceOp.AVG, lambda r: r + total / size),
                     (dist.ReduceOp.MAX, lambda r: r + size - 1)):
    out = torch.zeros(2 * rank + 1)
    dist.reduce_scatter(out, [torch.full((2 * r + 1,), float(r + rank)) for r in range(size)], op)
    assert (out == expected(rank)).all(), (op, out)
out = torch.zeros(rank, 3)
dist.reduce_scatter(out, [torch.full((r, 3), float(r + rank)) for r in range(size)])
assert (out == size * rank + total).all()
for out, blocks in ((torch.zeros(5), [torch.ones(4)] * size), (torch.zeros(4), [torch.ones(4)] * (size + 1))):
    try:
        dist.reduce_scatter(out, blocks)
    except (RuntimeError, ValueError):
        pass
    else:
        raise AssertionError("blocks that do not fit")

# A tensor can be resized after each kind of call.
def after(call, *tensors):
    call(*tensors)
    for tensor in tensors:
        tensor.resize_(10_000)
        tensor.untyped_storage().resize_(80_000)
for dtype in (torch.float32, torch.float16, torch.uint8, torch.bool, torch.complex64):
    ones = lambda n=4: torch.ones(n, dtype=dtype)
    after(dist.all_reduce, ones())
    after(lambda t: dist.broadcast(t, 0), ones())
    after(lambda t: dist.reduce(t, 0), ones())
    after(dist.all_gather_into_tensor, ones(4 * size), ones())
    after(dist.reduce_scatter_tensor, ones(), ones(4 * size))
    after(dist.all_to_all_single, ones(size), ones(size))
    after(lambda t, *parts: dist.all_gather(list(parts), t), *[ones() for _ in range(size + 1)])
    after(lambda t: dist.gather(t, [ones() for _ in range(size)] if rank == 0 else None), ones())
    after(lambda t: dist.scatter(t, [ones() for _ in range(size)] if rank == 0 else None), ones())
    after(lambda a, b: (dist.isend(a, (rank + 1) % size), dist.recv(b, (rank - 1) % size)), ones(), ones())
    work = dist.all_reduce(resized := ones(), async_op=True)
    work.wait()
    resized.resize_(100)
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_layouts_of_gloo_are_taken_and_tensors_stay_resizable(ranks: int) -> None:
    run(LAYOUTS, ranks)
