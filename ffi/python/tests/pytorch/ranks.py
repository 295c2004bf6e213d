"""Starts ranks of a program with torch, as processes; the tests of this folder share it."""

import os
import pathlib
import socket
import subprocess
import sys
import textwrap
import time

HEAD = """
import copy, datetime, os, sys, torch, torch.distributed as dist
import earlybird, earlybird.torch, earlybird.torch._tensors
from torch import nn
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("earlybird")
rank, size = dist.get_rank(), dist.get_world_size()
gloo = dist.new_group(backend="gloo")
"""


def start(program: str, ranks: int) -> list[subprocess.Popen[str]]:
    """Starts a program as each rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank in range(ranks):
        variables = os.environ | {
            "RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(pathlib.Path(__file__).parent),
        }
        command = [sys.executable, "-W", "ignore", "-c", HEAD + textwrap.dedent(program)]
        started.append(
            subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    return started


def run(program: str, ranks: int, timeout: float = 180) -> list[str]:
    """Runs a program as each rank to its end; returns what they print."""
    started = start(textwrap.dedent(program) + "\ndist.destroy_process_group()\n", ranks)
    texts, until = [], time.monotonic() + timeout
    try:
        for rank, process in enumerate(started):
            text = process.communicate(timeout=max(0.0, until - time.monotonic()))[0]
            assert process.returncode == 0, f"rank {rank}: {text}"
            texts.append(text)
    finally:
        # One rank that fails or hangs leaves the others waiting.
        for process in started:
            if process.poll() is None:
                process.kill()
                print(process.communicate()[0])
    return texts
