"""The persistent allreduce in buckets, as programs meet it."""

from __future__ import annotations

from programs import run


def test_sums_are_right_whatever_shares_a_bucket_and_nothing_is_lost() -> None:
    run(
        """
        import time
        lengths = [3, 500, 0, 7]
        for buckets in ["each", "one", 200, "measured"]:
            own, rounds, steps = 0, 0, 15 + rank
            sum = world.allreduce(lengths, dtype="f64", fire="solo", buckets=buckets)
            assert sum.lengths == lengths and sum.dtype == np.float64
            assert [bucket[0] for bucket in sum.buckets] + [4] == [0] + [bucket[1] for bucket in sum.buckets]

            def are_right(tensors, count):
                assert [len(tensor) for tensor in tensors] == lengths
                return all((tensor == count * (index + 1)).all() for index, tensor in enumerate(tensors))

            def take(outcomes):
                global own, rounds
                for outcome in outcomes:
                    rounds += 1
                    assert outcome.round == rounds
                    assert are_right(outcome.tensors(), len(outcome.fresh) + len(outcome.carried))
                    own += len([entry for entry in outcome.entries if entry.rank == rank and entry.part != "leaving"])

            for step in range(steps):
                time.sleep(0.002 if rank == 1 else 0)
                sum.begin()
                for index in (3, 2, 1, 0) if step % 2 else (0, 1, 2, 3):
                    sum.fill(index, np.full(lengths[index], index + 1.0))
                take(sum.wait(30))
            take(sum.leave(30))
            assert own == steps, (own, steps)
            sum.finish(30)
        """,
        3,
    )


def test_each_mistake_is_named() -> None:
    run(
        """
        sum = world.allreduce([2, 3], buckets="each")
        ones = np.ones(2, np.float32)
        refused(earlybird.UsageError, "call begin first", lambda: sum.fill(0, ones))
        refused(earlybird.UsageError, "no step has begun", lambda: sum.wait(1))
        sum.begin()
        refused(earlybird.UsageError, "another length", lambda: sum.fill(1, ones))
        refused(earlybird.UsageError, "float64 has no elements of f32", lambda: sum.fill(0, np.ones(2)))
        refused(earlybird.UsageError, "no tensor of this number", lambda: sum.fill(2, ones))
        sum.fill(0, ones)
        refused(earlybird.UsageError, "filled already", lambda: sum.fill(0, ones))
        refused(earlybird.UsageError, "not all tensors", lambda: sum.wait(1))
        refused(earlybird.UsageError, "call wait first", sum.begin)
        sum.fill(1, memoryview(np.ones(3, np.float32)))
        outcome = sum.wait(30)[0]
        tensor = outcome.tensor(1)
        assert (tensor == 1).all() and not tensor.flags.writeable
        refused(BufferError, "copy what you keep", sum.begin)
        del tensor
        sum.release()
        refused(BufferError, "released", lambda: outcome.tensor(0))
        refused(earlybird.UsageError, "released", lambda: outcome.fresh)
        sum.begin()
        sum.fill(0, ones)
        refused(earlybird.UsageError, "not all tensors", lambda: sum.finish(1))
        sum.fill(1, np.full(3, 0.5, np.float32))
        assert next(sum.leave(30)).round == 2
        sum.finish(30)
        refused(earlybird.UsageError, "has finished", sum.begin)
        refused(ValueError, "such as 25M", lambda: world.allreduce(4, buckets="most"))
        refused(earlybird.UsageError, "leave out the model", lambda: world.allreduce(4, buckets="one", model=ones))
        refused(earlybird.UsageError, 'add buckets="measured"', lambda: world.allreduce(4, preset="mg-wfbp"))
        with world.allreduce([2, 3], preset="mg-wfbp", dtype="bf16", buckets="measured") as sum:
            sum.begin()
            sum.fill(0, np.full(2, 0x3F80, np.uint16))
            sum.fill(1, np.full(3, 0x4000, np.uint16))
            assert (sum.wait(30)[0].tensor(1) == 0x4000).all()
        """,
        1,
    )
