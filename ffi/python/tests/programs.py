"""Starts ranks of a program, as a launcher would; the tests of this folder share it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import uuid

HEAD = """
import earlybird, numpy as np
world = earlybird.World()
rank, size = world.rank, world.size

def refused(kind, words, call):
    try:
        call()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}: {words}")
"""


def start(program: str, ranks: int) -> list[subprocess.Popen[str]]:
    """Starts a program as every rank of a world."""
    store = f"unix:earlybird-{uuid.uuid4()}"
    started = []
    for rank in range(ranks):
        variables = {name: value for name, value in os.environ.items() if not name.startswith("EARLYBIRD_")}
        variables |= {"EARLYBIRD_RANK": str(rank), "EARLYBIRD_WORLD_SIZE": str(ranks), "EARLYBIRD_STORE": store}
        command = [sys.executable, "-c", HEAD + textwrap.dedent(program)]
        started.append(
            subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    return started


def run(program: str, ranks: int) -> list[str]:
    """Runs a program as every rank; returns what each printed. All must end well."""
    texts = []
    for rank, process in enumerate(start(program, ranks)):
        text = process.communicate(timeout=60)[0]
        assert process.returncode == 0, f"rank {rank}: {text}"
        texts.append(text)
    return texts
