#!/usr/bin/env python3
"""Prints delays of 8 ranks in 400 steps, drawn from published distributions: step,rank,seconds. See README.md."""

import math
import random

RANKS = 8
STEPS = 100  # of each kind
SHRINK = 0.01  # a published second is 10 ms here

# The least, the largest and the mean time of a batch in milliseconds, and its standard deviation.
BATCHES = [
    ("LSTM on UCF101: lengths of videos", 201, 3410, 1235, 706),
    ("Transformer on WMT16: lengths of sentences", 179, 3482, 475, 144),
    ("ResNet-50 on a cloud: noise of the machines", 399, 1892, 454, 116),
]
# A rank that is slow for a while, and how many times as long it takes.
FAIL_SLOW = ("fail-slow: rank 5, steps 325 to 374", 5, 325, 375, 1.34, 454)


def batch(rng, least, most, mean, deviation):
    """A lognormal time above the least one, with the published mean and deviation, but for the largest one."""
    above = mean - least
    sigma = math.sqrt(math.log(1 + (deviation / above) ** 2))
    return min(most, least + rng.lognormvariate(math.log(above) - sigma**2 / 2, sigma))


def main():
    rng = random.Random(1)
    print("step,rank,seconds")
    for kind, (name, least, most, mean, deviation) in enumerate(BATCHES):
        print(f"# {name}")
        for step in range(kind * STEPS, (kind + 1) * STEPS):
            for rank in range(RANKS):
                late = batch(rng, least, most, mean, deviation) - least
                print(f"{step},{rank},{late / 1e3 * SHRINK:.6f}")
    name, rank, begins, ends, factor, usual = FAIL_SLOW
    print(f"# {name}")
    for step in range(len(BATCHES) * STEPS, (len(BATCHES) + 1) * STEPS):
        late = (factor - 1) * usual / 1e3 * SHRINK if begins <= step < ends else 0
        print(f"{step},{rank},{late:.6f}")


main()
