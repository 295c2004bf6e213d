"""What ranks of a training compare, and give each other, beside parameters."""

import pytest

torch = pytest.importorskip("torch", reason="SKIPPED: torch is not installed; pip install torch")

from ranks import run  # noqa: E402

import numpy as np  # noqa: E402
from torch import nn  # noqa: E402

import earlybird  # noqa: E402
from earlybird.torch._replica import Replica, fingerprint  # noqa: E402


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8])
@pytest.mark.parametrize("size", [4, 4097, 9_000_001])
def test_a_fingerprint_tells_signs_places_and_single_bits(dtype: torch.dtype, size: int) -> None:
    torch.manual_seed(1)
    tensor = torch.randn(size, dtype=torch.float64).mul(100).to(dtype)
    others = [-tensor, tensor.roll(1), tensor.flip(0), tensor.clone(), tensor.clone()]
    # Two elements change places; one changes by its last bit.
    others[3][[0, -1]] = others[3][[-1, 0]]
    others[4].view(torch.uint8)[0] ^= 1
    if size > 3 * 8192:
        # The corners of a rectangle, whose rows and columns keep their sums.
        swapped = tensor.clone()
        words = swapped[: size // 8192 * 8192].view(torch.int64).view(-1, 1024)
        words[0, 0], words[0, 7], words[1, 0], words[1, 7] = 1, 2, 2, 1
        first = fingerprint(swapped)
        words[0, 0], words[0, 7], words[1, 0], words[1, 7] = 2, 1, 1, 2
        assert fingerprint(swapped) != first
    assert fingerprint(tensor.clone()) == fingerprint(tensor)
    assert len({fingerprint(other) for other in (tensor, *others)}) == 1 + len(others)


def test_what_modules_and_optimizers_have_beside_tensors_is_given_and_compared() -> None:
    run(
        """
        torch.set_num_threads(1)

        class Counted(nn.Linear):
            seen = 0

            def forward(self, x):
                self.seen += len(x)
                return super().forward(x)

            def get_extra_state(self):
                return {"seen": self.seen}

            def set_extra_state(self, state):
                self.seen = state["seen"]

        class Own(torch.optim.SGD):
            "Has state that belongs to no parameter, in its state and beside it."
            beside = 0

            def step(self, closure=None):
                self.state["steps"] = self.state.get("steps", 0) + 1
                super().step(closure)

            def state_dict(self):
                return super().state_dict() | {"beside": self.beside}

            def load_state_dict(self, saved):
                self.beside = saved["beside"]
                super().load_state_dict({key: value for key, value in saved.items() if key != "beside"})

        model = Counted(6, 2)
        optimizer = Own(model.parameters(), lr=0.1, momentum=0.9)
        model.seen, optimizer.beside, optimizer.state["steps"] = 100 * rank, 7 + rank, 3 + rank
        partial = earlybird.torch.Gradients(model, state=[optimizer], fire="quorum=2", meet_every=5)
        partial.on_round(optimizer.step)
        assert (model.seen, optimizer.beside, optimizer.state["steps"]) == (0, 7, 3)

        def until(rounds):
            while not (partial.met and partial.rounds == rounds):
                optimizer.zero_grad()
                model(torch.ones(1 + rank, 6)).sum().backward()
                partial.step()

        until(10)
        counts = [None] * size
        dist.all_gather_object(counts, (model.seen, optimizer.state["steps"]))
        assert counts == [counts[0]] * size and counts[0][1] == 13, counts

        for change in ('optimizer.state["steps"] += 1', "optimizer.beside += 1"):
            before = (optimizer.state["steps"], optimizer.beside)
            if rank == 1:
                exec(change)
            try:
                until(partial.rounds + 5)
                raise AssertionError(f"nothing was said: {change}")
            except earlybird.Mismatch as error:
                name = "steps" if "steps" in change else "beside"
                assert f"differ after round {partial.rounds}" in str(error) and f"{name} of Own" in str(error), error
            optimizer.state["steps"], optimizer.beside = partial.rounds + 3, before[1]
            partial.met = True
        os._exit(0)
        """.replace("\n        ", "\n"),
        3,
    )


def _replica(seed: int) -> tuple[Replica, nn.Module]:
    """A model and state of several kinds, which an average of weights shares."""
    torch.manual_seed(seed)
    model, average = nn.Linear(3, 2), nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 * (1 + np.cos(step + seed)))
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    schedule.step()
    numbers = {"array": np.arange(3.0) + seed, "half": np.float16(seed), "set": {seed}, "complex": 1j * seed, "tensors": {}}
    weights = list(average.parameters())
    # Of another class than what it will be loaded into.
    numbers["tensors"] = {"weight": weights[0] if seed == 2 else weights[0].detach()}
    return Replica(model, [optimizer, schedule, weights, numbers]), average


@pytest.mark.parametrize("is_checkpoint", [False, True])
def test_state_comes_back_in_place_and_to_the_bit(is_checkpoint: bool) -> None:
    (saved, there), (loaded, here) = _replica(1), _replica(2)
    array = loaded.state[3]["array"]
    assert loaded.fingerprints(False) != saved.fingerprints(False)
    if is_checkpoint:
        loaded.load_all(saved.save_all())
    else:
        loaded.load(saved.save())
    with torch.no_grad():
        for mine, other in zip(loaded.model.parameters(), saved.model.parameters(), strict=True):
            mine.copy_(other)
    assert loaded.fingerprints(False) == saved.fingerprints(False)
    # What shares the tensors has them, too.
    assert all(mine.equal(other) for mine, other in zip(here.parameters(), there.parameters(), strict=True))
    assert array[0] == 1 and loaded.state[3]["array"] is array


def test_a_checkpoint_that_could_not_be_loaded_is_not_made() -> None:
    for value in (object(), {"a": [1, object()]}, np.array([object()])):
        replica = Replica(nn.Linear(1, 1), [{"mine": value}])
        with pytest.raises(earlybird.UsageError, match=r"dict\['mine'\].*which a checkpoint would not bring back"):
            replica.save_all()
