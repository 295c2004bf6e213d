"""A rank that is killed: torchrun starts all again, and they end with one model."""

import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="SKIPPED: torch is not installed; pip install torch")

HERE = pathlib.Path(__file__).parent


@pytest.mark.parametrize(
    "place", ["before hand-in", "after hand-in", "inside a replay", "at a meeting", "while saving", "inside finish"]
)
def test_a_rank_that_is_killed(place: str, tmp_path: pathlib.Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4", "--max-restarts=1"]
    done = subprocess.run(
        [*launcher, str(HERE / "killed.py"), str(tmp_path), place],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        text=True,
        capture_output=True,
        timeout=180,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert (tmp_path / "killed").exists(), "no rank was killed"
    assert done.stdout.count("one model") == 1
    assert "rank 0 goes on after round" in done.stdout, "it began anew"
