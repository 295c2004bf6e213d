"""Networks that torch.compile has compiled, over this backend."""

import pytest

pytest.importorskip("torch", reason="SKIPPED: torch is not installed; pip install torch")

from ranks import run  # noqa: E402

COMPILED = """
import torch._dynamo
def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 30), nn.ReLU(), nn.Linear(30, 5))

def train(make, steps=5):
    model = make(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if partial and not partial[-1].rounds:
        partial[-1].optimizer(optimizer)
    torch.manual_seed(10 + rank)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 20)).square().mean().backward()
        optimizer.step()
    return torch.cat([parameter.data.reshape(-1) for parameter in model.parameters()])

def ddp(net, group=None):
    return DistributedDataParallel(net, process_group=group)

def hooked(net):
    model = ddp(net)
    partial.append(earlybird.torch.partial_hook(fire="all").register(model))
    return torch.compile(model, backend="aot_eager")

def resting(net):
    model = ddp(net)
    partial.append(earlybird.torch.Gradients(model, fire="all"))
    return torch.compile(model, backend="aot_eager")

def plain_module(net):
    model = torch.compile(net, backend="aot_eager")
    partial.append(earlybird.torch.Gradients(model, fire="all"))
    return model

partial = []
plain = train(ddp)
for make in (lambda net: torch.compile(ddp(net), backend="aot_eager"), lambda net: ddp(torch.compile(net, backend="aot_eager")),
             hooked, resting, plain_module):
    torch._dynamo.reset()
    found = train(make)
    assert torch.allclose(found, plain, atol=1e-6), (found - plain).abs().max()
[each.finish() for each in partial]

# A function that is compiled as a whole makes calls of its own.
@torch.compile(backend="aot_eager")
def step(tensor):
    tensor = tensor * 2
    dist.all_reduce(tensor)
    return tensor + 1
assert (step(torch.ones(4)) == 2 * size + 1).all()
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_compiled_networks_train_as_others_do(ranks: int) -> None:
    run(COMPILED, ranks)
