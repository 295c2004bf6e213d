"""Times allreduce of torch.distributed over earlybird and over gloo, by turns in the same run.

    torchrun --nproc-per-node 2 ffi/python/examples/torch_latency.py
"""

import argparse
import math
import statistics
import time

import torch
import torch.distributed as dist

import earlybird.torch  # noqa: F401  (older versions of torch find the backend by this import)


def measure(data: torch.Tensor, group: dist.ProcessGroup | None, calls: int) -> float:
    """Seconds of a call."""
    for _ in range(3):
        dist.all_reduce(data, group=group)
    dist.barrier()
    begun = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(data, group=group)
    return (time.perf_counter() - begun) / calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=5)
    turns = parser.parse_args().turns
    dist.init_process_group("earlybird")
    gloo = dist.new_group(backend="gloo")
    ratios = []
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks, medians of {turns} turns")
        print(f"{'bytes':>10} {'earlybird us':>14} {'gloo us':>14} {'ratio':>8}")
    for exponent in range(12, 27, 2):
        data = torch.zeros(2**exponent // 4)
        calls = max(5, min(200, 2**26 // 2**exponent))
        times: dict[str, list[float]] = {"earlybird": [], "gloo": []}
        for _ in range(turns):
            times["earlybird"].append(measure(data, None, calls))
            times["gloo"].append(measure(data, gloo, calls))
        ours, theirs = (1e6 * statistics.median(times[name]) for name in ("earlybird", "gloo"))
        ratios.append(theirs / ours)
        if dist.get_rank() == 0:
            print(f"{2**exponent:10} {ours:14.1f} {theirs:14.1f} {theirs / ours:7.2f}x")
    if dist.get_rank() == 0:
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        print(f"geometric mean {mean:.2f}x, least {min(ratios):.2f}x")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
