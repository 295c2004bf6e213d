"""PyTorch's own tests of a backend, as they come with its wheel: each spawns WORLD_SIZE ranks. `upstream` in this folder starts them.

BACKEND=gloo runs the same with gloo, to compare. Tests that torch has for gloo only are run with this backend, too.
"""

import os
import sys
import unittest
from unittest import mock

BACKEND = os.environ.setdefault("BACKEND", "earlybird")
os.environ.setdefault("WORLD_SIZE", "4")

import torch
import torch.distributed as dist

if not dist.is_available():
    sys.exit("this torch has no torch.distributed")

if BACKEND == "earlybird":
    import earlybird.torch  # noqa: F401

import torch.testing._internal.common_distributed as common


class LikeGloo(str):
    """The name of a backend, which is also that of gloo where a test asks whether it is for a backend."""

    def __eq__(self, other: object) -> bool:
        return other == "gloo" or str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash("gloo")


# What these tests ask about a backend before they try it: the tables must know it when they are imported.
if BACKEND != "gloo":
    for feature in ("ddp", "subgroup", "plugin"):
        common.DistTestCases.backend_feature.setdefault(feature, set()).add(BACKEND)

with mock.patch.object(os, "environ", dict(os.environ, BACKEND=LikeGloo(BACKEND))):
    from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend


class TestOfBackend(TestDistBackend, DistributedTest._DistTestBase):
    """All tests that torch has for any backend."""

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()


# Before, torch's monitored_barrier refuses all backends but gloo, by their names.
if BACKEND != "gloo" and torch.__version__ < (2, 8):
    for name in ("test_monitored_barrier_gloo", "test_monitored_barrier_gloo_subgroup"):
        test = getattr(TestOfBackend, name)
        setattr(TestOfBackend, name, unittest.skip("this torch has it for gloo only")(test))

# The tests look for their class by its name.
del TestDistBackend, DistributedTest


if __name__ == "__main__":
    from torch.testing._internal.common_utils import run_tests

    run_tests()
