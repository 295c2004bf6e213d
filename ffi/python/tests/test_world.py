"""Worlds, their synchronous collectives and messages."""

from __future__ import annotations

import pytest

import earlybird
from programs import run


def test_the_version_and_one_rank() -> None:
    assert earlybird.__version__.count(".") == 2
    with earlybird.World() as world, world.allreduce([], fire="all") as empty:
        empty.arrive()
        assert empty.wait(5)[0].data.size == 0
        assert empty.tensors() == []
        assert world.hosts == [[0]]
    with pytest.raises(earlybird.ConfigError, match="3 levels: use 1 or 2"):
        earlybird.World(levels=3)
    with pytest.raises(earlybird.ConfigError, match="carrier"):
        earlybird.World(fabric="carrier pigeons")


def test_synchronous_collectives_and_messages() -> None:
    run(
        """
        mine = np.arange(5, dtype=np.int64) + 10 * rank
        all = np.stack([np.arange(5) + 10 * peer for peer in range(size)])
        assert (world.all_gather(mine, timeout=30) == all).all()
        gathered = world.gather(mine, root=1, timeout=30)
        assert (gathered == all).all() if rank == 1 else gathered is None
        out = np.empty(5, dtype=np.int64)
        assert (world.scatter(out, all if rank == 2 else None, root=2, timeout=30) == all[rank]).all()
        rows = np.stack([mine + 100 * peer for peer in range(size)])
        assert (world.all_to_all(rows, timeout=30) == all + 100 * rank).all()
        assert (world.all_reduce(mine.copy(), timeout=30) == all.sum(0)).all()
        assert (world.all_reduce(mine.astype(np.float32), "max", timeout=30) == all.max(0)).all()
        reduced = world.reduce(mine, root=2, reduce="prod", timeout=30)
        assert (reduced == all.prod(0)).all() if rank == 2 else reduced is None
        assert (world.reduce_scatter(rows, timeout=30) == all.sum(0) + size * 100 * rank).all()
        # Row i + 1 goes to rank i: so many rows come of each.
        lengths = [peer + 1 for peer in range(size)]
        sent = np.full((sum(lengths), 2), rank, dtype=np.uint16)
        received = np.zeros((size * (rank + 1), 2), dtype=np.uint16)
        world.all_to_all_of(sent, lengths, received, [rank + 1] * size, timeout=30)
        assert (received == np.repeat(np.arange(size), rank + 1)[:, None]).all()
        if rank == 0:
            assert sorted(world.receive(out, tag=4, timeout=30) for _ in range(size - 1)) == [1, 2]
            assert out.sum() == 0
        else:
            world.send(np.zeros(5, dtype=np.int64), to=0, tag=4, timeout=30)
        try:
            world.all_gather(mine, out=np.empty(7, dtype=np.int64), timeout=30)
        except earlybird.UsageError as problem:
            assert "15 elements of int64 are needed" in str(problem)
        else:
            raise AssertionError("a wrong length was taken")
        world.barrier(30)
        """,
        3,
    )


def test_wrong_arguments_are_refused_before_anything_is_done() -> None:
    run(
        """
        refused(earlybird.UsageError, "cannot be divided among 2 ranks", lambda: world.all_to_all(np.ones(3)))
        refused(earlybird.UsageError, "4 elements of float64", lambda: world.all_gather(np.ones(2), out=np.ones(4, np.float32)))
        refused(earlybird.UsageError, "-1 is not a rank", lambda: world.broadcast(np.ones(2), root=-1))
        refused(earlybird.UsageError, "from 0 on", lambda: world.send(np.ones(2), to=1 - rank, tag=-1))
        refused(earlybird.UsageError, "no list", lambda: world.all_reduce([1.0]))
        refused(earlybird.UsageError, "no float32", lambda: world.all_reduce(np.float32(1)))
        refused(earlybird.UsageError, "no shared array", lambda: world.empty(3, object))
        refused(earlybird.UsageError, "no shared array", lambda: world.empty(-3))
        refused(earlybird.ConfigError, "dtype: u16 is none of f32", lambda: world.allreduce(3, dtype="u16"))
        refused(earlybird.ConfigError, "quorum=9", lambda: world.check_choices(fire="quorum=9"))
        refused(earlybird.UsageError, "no elements of bf16", lambda: world.all_reduce(np.ones(2), dtype="bf16"))
        halves = (np.ones(4, np.float32).view(np.uint32) >> 16).astype(np.uint16)
        world.all_reduce(halves, dtype="bf16", timeout=30)
        assert ((halves.astype(np.uint32) << 16).view(np.float32) == 2).all()
        assert world.copies.into_boards > 0
        """,
        2,
    )


def test_short_integers_wrap_and_truth_values_are_or_and_and() -> None:
    run(
        """
for dtype in (np.int8, np.uint8, np.int16):
    for n in (1, 7, 1000, 20_001):
        mine = (np.arange(n) * 7 + 100 * rank).astype(dtype)
        all = world.all_gather(mine)
        for reduce, of in (("sum", np.sum), ("prod", np.prod), ("min", np.min), ("max", np.max)):
            expected = of(all, axis=0, dtype=dtype) if reduce in ("sum", "prod") else of(all, axis=0)
            assert (world.all_reduce(mine.copy(), reduce) == expected).all(), (dtype, n, reduce)
        mean = (all.sum(0, dtype=np.int64) / size).astype(dtype)
        assert (world.all_reduce(mine.copy(), "mean") == mean).all(), (dtype, n)
    with world.allreduce([3, 5], dtype=dtype) as total:
        total.contribution()[:] = 100
        total.arrive()
        for outcome in total.wait(60):
            assert (outcome.data == np.full(8, 100 * size).astype(dtype)).all(), outcome.data
for n in (1, 7, 20_001):
    mine = (np.arange(n) + rank) % 3 == 0
    all = world.all_gather(mine)
    for reduce, of in (("sum", np.any), ("max", np.any), ("prod", np.all), ("min", np.all)):
        found = world.all_reduce(mine.copy(), reduce)
        assert found.dtype == bool and (found == of(all, axis=0)).all(), (n, reduce)
""",
        3,
    )


def test_arrays_that_all_ranks_have_are_reduced_without_copies() -> None:
    run(
        """
        array = world.empty((100, 1000), np.int64)
        assert array.shape == (100, 1000) and not array.any()
        array[:] = rank
        before = world.copies
        assert world.all_reduce(array, timeout=30) is array
        world.all_reduce(array[10:], "max", timeout=30)
        assert (array == 3).all() and world.copies == before
        # A few bytes go through boards, and so does what lies elsewhere.
        world.all_reduce(array[0, :100], timeout=30)
        into, out = world.copies
        assert (array[0, :100] == 9).all() and into > before[0]
        mine = np.full((100, 1000), rank)
        world.all_reduce(mine, timeout=30)
        assert (mine == 3).all() and into + mine.nbytes <= world.copies[0] <= into + 1.34 * mine.nbytes
        # Some ranks pass another part: an error on all, and then they go on.
        try:
            world.all_reduce(array[rank:][:50], timeout=30)
        except earlybird.Mismatch as problem:
            assert "first byte" in str(problem)
        else:
            raise AssertionError("different parts were taken")
        world.all_reduce(array[1:], timeout=30)
        assert (array[1:] == 9).all() and world.empty(np.int64(0)).size == 0
        part = array[5:7]
        del array
        world.close()
        assert (part == 9).all()
        """,
        3,
    )


def test_a_world_is_split() -> None:
    run(
        """
        for color, key, words in [(-1, 0, "color is -1"), (0, 2**31, "key is 2147"), (0.5, 0, "no float"), (None, 0, "None")]:
            refused(earlybird.UsageError, words, lambda: world.split(color, key))
        half = world.split(rank % 2, key=-rank)
        assert (half.rank, half.size) == (1 - rank // 2, 2), (rank, half.rank, half.size)
        both = half.all_gather(np.array([rank], dtype=np.uint32), timeout=30)
        assert both.ravel().tolist() == [2 + rank % 2, rank % 2]
        world.close()
        assert (half.all_reduce(np.ones(3), timeout=30) == 2).all()
        try:
            world.split(0)
        except earlybird.UsageError as error:
            assert "was closed" in str(error)
        else:
            raise AssertionError("a closed world was split")
        """,
        4,
    )


def test_a_program_joins_worlds_by_itself() -> None:
    run(
        """
        half = earlybird.World.join(rank // 2, 2, f"unix:test-{os.environ['EARLYBIRD_STORE'][5:30]}-{rank % 2}", deadline=30.0)
        assert (half.rank, half.size) == (rank // 2, 2)
        both = half.all_gather(np.array([rank], dtype=np.uint32), timeout=30)
        assert both.ravel().tolist() == [rank % 2, rank % 2 + 2]
        world.barrier(30)
        """.replace("half =", "import os\n        half =", 1),
        4,
    )
