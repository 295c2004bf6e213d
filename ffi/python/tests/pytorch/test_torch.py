"""The torch backend against gloo, as programs meet it: ranks are processes. Without torch these tests are skipped, loudly."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="SKIPPED: torch is not installed; pip install torch")

from ranks import HEAD, run, start  # noqa: E402

COLLECTIVES = """
torch.manual_seed(rank)
for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64):
    for shape in ((), (7,), (0,), (3, 50), (70_001,)):
        data = (torch.randn(shape) * 4).to(dtype)
        ops = [dist.ReduceOp.SUM]
        if not dtype.is_complex:
            ops += [dist.ReduceOp.MIN, dist.ReduceOp.MAX]
        if dtype in (torch.int32, torch.int64, torch.uint8):
            ops += [dist.ReduceOp.PRODUCT, dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR]
        for op in ops:
            ours, theirs = data.clone(), [torch.empty_like(data) for _ in range(size)]
            dist.all_reduce(ours, op)
            dist.all_gather(theirs, data, group=gloo)
            folds = {"SUM": torch.add, "MIN": torch.minimum, "MAX": torch.maximum, "PRODUCT": torch.mul,
                     "BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}
            fold = folds[str(op).split(".")[-1].split(":")[0].rstrip(">")] if dtype != torch.bool else (
                torch.logical_and if op == dist.ReduceOp.MIN else torch.logical_or)
            wide = torch.float32 if dtype == torch.bfloat16 else dtype
            expected = theirs[0].to(wide)
            for other in theirs[1:]:
                expected = fold(expected, other.to(wide))
            assert torch.equal(ours, expected.to(dtype)), (dtype, shape, op)
# Not contiguous, in and out.
matrix = torch.arange(12.0).reshape(3, 4) + rank
turned = matrix.t()
dist.all_reduce(turned)
assert torch.equal(matrix, size * torch.arange(12.0).reshape(3, 4) + sum(range(size)))
works = [dist.all_reduce(torch.full((1000,), float(i)), async_op=True) for i in range(20)]
for i, work in enumerate(works):
    work.wait()
    assert work.result()[0][0] == size * i
# Tensors of inference mode, and a call that another thread makes.
with torch.inference_mode():
    of_inference = torch.arange(12.0).reshape(3, 4) + rank
    works = [dist.all_reduce(of_inference.t(), dist.ReduceOp.AVG, async_op=True)]
    into = torch.empty(size, 4).t()
    works.append(dist.all_gather(list(into.t()), of_inference[0], async_op=True))
    sparse = torch.eye(3).to_sparse()
    works.append(dist.all_reduce(sparse, async_op=True))
    [work.wait() for work in works]
    assert torch.equal(sparse.to_dense(), size * torch.eye(3))
    assert torch.equal(of_inference, torch.arange(12.0).reshape(3, 4) + sum(range(size)) / size)
    assert torch.equal(into, of_inference[:1].t().expand(4, size))
dist.group.WORLD.monitored_barrier()
# What does not fit is refused before anything is done.
for call, text in (
    (lambda: dist.all_to_all_single(torch.ones(size + 1), torch.ones(size + 1)), "does not divide equally"),
    (lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3), [3], [3]), "Split sizes"),
    (lambda: earlybird.torch.Gradients(nn.Linear(2, 2), fire=f"quorum={size + 1}"), "quorum"),
    (lambda: earlybird.torch.Gradients(nn.Linear(2, 2), fires="all"), "fires"),
):
    try:
        call()
    except earlybird.Error as problem:
        assert text in str(problem), problem
    else:
        raise AssertionError(text)
# A wait with a limit of its own. The call goes on.
if rank == 0:
    late = dist.all_reduce(torch.ones(3), async_op=True)
    try:
        late.wait(datetime.timedelta(milliseconds=50))
    except earlybird.Timeout:
        dist.send(torch.ones(1), 1)
    late.wait()
else:
    if rank == 1:
        dist.recv(torch.ones(1), 0)
    dist.all_reduce(torch.ones(3))
"""


COPIES = """
world = dist.group.WORLD.world
def copied(tensor):
    before = world.copies
    dist.all_reduce(tensor)
    after = world.copies
    return after[0] - before[0], after[1] - before[1]

n = 1_000_000
for dtype in (torch.float32, torch.bfloat16, torch.int64):
    tensor = earlybird.torch.empty(10, n // 10, dtype=dtype)
    assert tensor.shape == (10, n // 10) and tensor.dtype == dtype
    tensor += rank
    address = tensor.data_ptr()
    assert copied(tensor) == (0, 0) and copied(tensor[5:]) == (0, 0)
    assert (tensor[:5] == sum(range(size))).all() and tensor.data_ptr() == address
    work = dist.all_reduce(tensor[2:4].view(-1), async_op=True)
    work.wait()
    assert (tensor[2:4] == size * sum(range(size))).all()
    # Elsewhere: one copy in, of all but the part that this rank reduces, which is published as well; one out.
    into, out = copied(torch.ones(n, dtype=dtype))
    bytes = n * dtype.itemsize
    assert bytes <= into <= bytes + -(-bytes // size) + 64 and out <= bytes - bytes // size + 64 * size
pair = dist.new_group([0, 1])
if rank < 2:
    tensor = earlybird.torch.empty(n, group=pair).fill_(1)
    dist.all_reduce(tensor, group=pair)
    assert (tensor == 2).all() and pair.world.copies == (0, 0)
"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_tensors_are_copied_once_or_not_at_all(ranks: int) -> None:
    run(COPIES, ranks)


@pytest.mark.parametrize("ranks", [2, 4])
def test_collectives_equal_those_of_gloo(ranks: int) -> None:
    run(COLLECTIVES, ranks)


TRAINING = """
def train(group, wrap):
    torch.manual_seed(1)
    network = wrap(nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 5)), group)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(10 + rank)
    for _ in range(5):
        optimizer.zero_grad()
        network(torch.randn(8, 20)).square().mean().backward()
        optimizer.step()
    return [parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter.data for parameter in network.parameters()]

def ddp(network, group):
    return DistributedDataParallel(network, process_group=group, bucket_cap_mb=0.001)

for ours, theirs in zip(train(None, ddp), train(gloo, ddp), strict=True):
    assert torch.allclose(ours, theirs, atol=1e-6), (ours - theirs).abs().max()
"""

SHARDED = """
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

def fsdp(network, group):
    mesh = DeviceMesh.from_group(group if group is not None else dist.group.WORLD, "cpu")
    for layer in (network[0], network[3]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(network, mesh=mesh)

# Before, gloo's reduce_scatter summed where FSDP2 asks for a mean.
theirs_by = fsdp if torch.__version__ >= (2, 8) else ddp
for ours, theirs in zip(train(None, fsdp), train(gloo, theirs_by), strict=True):
    assert torch.allclose(ours, theirs, atol=1e-6), (ours - theirs).abs().max()
"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_ddp_trains_as_with_gloo(ranks: int) -> None:
    run(TRAINING, ranks)


@pytest.mark.parametrize("ranks", [2, 4])
def test_fsdp2_trains_as_with_gloo(ranks: int) -> None:
    run(TRAINING + SHARDED, ranks)


CUDA = """
device = torch.device("cuda", rank % torch.cuda.device_count())
torch.cuda.set_device(device)
total = sum(range(1, size + 1))
for length in (1, 1000, 3_000_000):
    # Written on the device right before the call, and read right after it.
    tensor = torch.full((length,), float(rank + 1), device=device)
    tensor.mul_(2)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    assert (tensor + 1 == 2 * total + 1).all()
    dist.broadcast(tensor.fill_(rank), 1)
    assert (tensor == 1).all()
    gathered = torch.empty(size * length, device=device)
    dist.all_gather_into_tensor(gathered, tensor.fill_(rank))
    assert (gathered.view(size, -1) == torch.arange(size, device=device)[:, None]).all()
    dist.reduce_scatter_tensor(tensor, gathered)
    assert (tensor == size * rank).all()
    if rank == 0:
        dist.send(tensor.fill_(7), 1)
    elif rank == 1:
        dist.recv(tensor, 0)
        assert (tensor == 7).all()

def train(group):
    torch.manual_seed(1)
    network = DistributedDataParallel(nn.Linear(300, 50).to(device), process_group=group)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for _ in range(4):
        optimizer.zero_grad()
        network(torch.randn(8, 300, device=device)).square().mean().backward()
        optimizer.step()
    return [parameter.data for parameter in network.parameters()]

for ours, theirs in zip(train(None), train(gloo)):
    torch.testing.assert_close(ours, theirs)
network = DistributedDataParallel(nn.Linear(30, 5).to(device))
partial = earlybird.torch.partial_hook(fire="all").register(network)
optimizer = partial.optimizer(torch.optim.SGD(network.parameters(), lr=0.1))
for _ in range(5):
    optimizer.zero_grad()
    network(torch.ones(2, 30, device=device)).sum().backward()
    optimizer.step()
partial.finish()
assert partial.contributions == 5 * size
"""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="SKIPPED: there is no GPU")
def test_tensors_on_a_gpu() -> None:
    run(CUDA, 2)


def test_partial_gradients_are_conserved() -> None:
    texts = run(
        """
        import time
        network = nn.Linear(3, 1, bias=False)
        nn.init.zeros_(network.weight)
        wrapped = DistributedDataParallel(network)
        partial = earlybird.torch.partial_hook(fire="solo", timeout=60, scale="sum").register(wrapped)
        optimizer = partial.optimizer(torch.optim.SGD(wrapped.parameters(), lr=1.0))
        steps = 30
        for step in range(steps):
            optimizer.zero_grad()
            time.sleep(0.004 if rank == 0 else 0.001)
            wrapped(torch.ones(1, 3)).sum().backward()
            optimizer.step()
        partial.finish()
        # Each gradient is 1.
        applied = -network.weight.detach()[0, 0].item()
        assert applied == partial.contributions == steps * size, (applied, partial.contributions)
        print("rounds", partial.rounds, "contributions", partial.contributions)
        """.replace("\n        ", "\n"),
        3,
    )
    assert all("contributions" in text for text in texts)


@pytest.mark.parametrize("call", ["dist.all_reduce(data)", "dist.all_reduce(data, async_op=True).wait()", "dist.barrier()"])
def test_ctrl_c_ends_a_call(call: str) -> None:
    started = start(
        f"""
        import signal, time
        signal.signal(signal.SIGINT, signal.default_int_handler)
        data = torch.ones(10)
        dist.all_reduce(data)
        if rank == 0:
            print("WAITS", flush=True)
            try:
                {call}
            except KeyboardInterrupt:
                print("INTERRUPTED", flush=True)
        else:
            time.sleep(2)
        os._exit(0)
        """.replace("\n        ", "\n"),
        2,
    )
    waiting = started[0].stdout
    assert waiting is not None
    while "WAITS" not in (line := waiting.readline()):
        assert line
    time.sleep(0.3)
    started[0].send_signal(signal.SIGINT)
    texts = [process.communicate(timeout=30)[0] for process in started]
    assert "INTERRUPTED" in texts[0] and all(process.returncode == 0 for process in started), texts


def test_a_killed_rank_is_named() -> None:
    started = start(
        """
        data = torch.ones(10)
        dist.all_reduce(data)
        print("ready", flush=True)
        try:
            while True:
                dist.all_reduce(data)
        except RuntimeError as problem:
            print("caught", problem, flush=True)
            os._exit(0)
        """.replace("\n        ", "\n"),
        3,
    )
    for process in started:
        assert process.stdout is not None
        while "ready" not in (line := process.stdout.readline()):
            assert line, process.wait(timeout=60)
    started[1].send_signal(signal.SIGKILL)
    for rank in (0, 2):
        text = started[rank].communicate(timeout=60)[0]
        assert "caught" in text and "rank 1 died" in text, text
    started[1].communicate(timeout=60)


def test_an_elastic_restart_gets_a_new_world(tmp_path: Path) -> None:
    program = tmp_path / "restarted.py"
    program.write_text(
        # gloo does not meet again after a restart.
        "\n".join(line for line in HEAD.splitlines() if "gloo" not in line)
        + textwrap.dedent(
            """
            attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
            data = torch.full((70_001,), float(rank + 1))
            dist.all_reduce(data)
            if attempt == 0 and rank == 1:
                os._exit(3)
            dist.all_reduce(data) if attempt else dist.barrier()
            assert data[0] == size * sum(range(1, size + 1)), data[0]
            print(f"attempt {attempt} of rank {rank} ended well", flush=True)
            dist.destroy_process_group()
            """
        )
    )
    before = set(os.listdir("/dev/shm"))
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--nproc-per-node", "3"]
    command += ["--max-restarts", "1", "--master-port", "0", "--standalone", str(program)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=180)
    assert ended.returncode == 0, ended.stdout
    for rank in range(3):
        assert f"attempt 1 of rank {rank} ended well" in ended.stdout, ended.stdout
    left = {name for name in os.listdir("/dev/shm") if name not in before and "earlybird" in name}
    assert not left, left
