"""The examples for frameworks train on four ranks, of which one is late, and end with one model."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples/frameworks"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]

# What each needs, and how it is started.
PROGRAMS = {
    "lightning_trainer.py": ("lightning", []),
    "lightning_fabric.py": ("lightning", TORCHRUN),
    "accelerate_loop.py": ("accelerate", TORCHRUN),
    "hugging_face.py": ("transformers", TORCHRUN),
    "ray_train.py": ("ray", []),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_example_trains(program: str, tmp_path: pathlib.Path) -> None:
    package, launcher = PROGRAMS[program]
    if importlib.util.find_spec(package) is None:
        assert "frameworks" not in os.environ.get("TEST_NO_SKIPS", ""), f"{package} is not installed"
        pytest.skip(f"SKIPPED: {package} is not installed; run frameworks installs it")
    done = subprocess.run(
        [sys.executable, *launcher, str(EXAMPLES / program)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "RAY_RESULTS": str(tmp_path), "RAY_DEDUP_LOGS": "1"},
        cwd=tmp_path,
        text=True,
        capture_output=True,
        timeout=300,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    ended = re.search(r"(\d+) gradients in (\d+) rounds, one model, (?:([0-9.]+)% right|loss ([0-9.]+)); .*'late/3': '(\d+) %'", done.stdout)
    assert ended, "it did not say how it ended"
    gradients, rounds, right, loss, late = ended.groups()
    assert int(gradients) >= 600 and int(rounds) < int(gradients) / 2
    assert int(late) > 30, "the last rank was to be late"
    assert float(right or 100) > 90 and float(loss or 0) < 2.6
