"""Ranks that need not wait for a slow one: one of them takes four times as long as the others.

    earlybird run -n 4 -- python ffi/python/examples/straggler.py
    torchrun --nproc-per-node 4 ffi/python/examples/straggler.py
"""

import time

import numpy as np

import earlybird

STEPS = 100


def steps_of(world: earlybird.World, fire: str) -> tuple[float, int, int]:
    """Makes the steps under a rule: the seconds until this rank had its own, the contributions it saw, and the late ones."""
    is_slow = world.size > 1 and world.rank == world.size - 1
    seen = late = 0
    model = np.zeros(10_000, dtype=np.float32)
    with world.allreduce(10_000, fire=fire, scale="contributions") as mean:
        world.barrier(timeout=30)
        begin = time.perf_counter()
        for _ in range(STEPS // 4 if is_slow else STEPS):
            time.sleep(0.008 if is_slow else 0.002)
            mean.contribution()[:] = 1.0
            mean.arrive()
            for outcome in mean.wait(timeout=30):
                model -= 0.01 * outcome.data
                seen += len(outcome.fresh) + len(outcome.carried)
                late += len(outcome.carried)
        seconds = time.perf_counter() - begin
    return seconds, seen, late


with earlybird.World() as world:
    for fire in ["all", f"quorum={max(1, world.size // 2)}"]:
        seconds, seen, late = steps_of(world, fire)
        if world.rank == 0:
            print(f"{fire}: {STEPS} steps of rank 0 in {seconds:.2f} s, {seen} contributions seen, {late} of them late")
