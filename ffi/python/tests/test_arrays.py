"""Arrays of other libraries, and NumPy's that are not contiguous."""

from __future__ import annotations

import pytest
from programs import run


def test_calls_take_what_has_a_buffer_or_dlpack() -> None:
    run(
        """
        import array, ctypes

        class Foreign:
            def __init__(self, values):
                self.values = np.array(values, np.float32)
            def __dlpack__(self, **choices):
                return self.values.__dlpack__(**choices)
            def __dlpack_device__(self):
                return self.values.__dlpack_device__()

        own = array.array("f", [1, 2, 3])
        assert world.all_reduce(own) is own and list(own) == [2, 4, 6]
        own = (ctypes.c_double * 2)(rank, 1)
        assert world.all_reduce(own, "max") is own and list(own) == [1, 1]
        own = memoryview(bytearray(8)).cast("i")
        own[1] = rank + 1
        world.all_reduce(own, "prod")
        assert own.tolist() == [0, 2]
        own = Foreign([rank, 5])
        world.all_reduce(own)
        assert own.values.tolist() == [1, 10]
        world.broadcast(own, 0)
        assert world.all_gather(bytes([rank, 7])).tolist() == [[0, 7], [1, 7]]
        assert world.reduce_scatter(array.array("i", [1, 2])).tolist() == [2, 4][rank]
        if rank == 0:
            world.send(b"abc", 1)
        else:
            out = bytearray(3)
            assert world.receive(out) == 0 and out == b"abc"
        # Elements that do not lie one behind the other are copied, and stay in their order.
        whole = np.arange(12.0).reshape(3, 4)
        for own in (np.asfortranarray(whole), whole.copy()[:, ::2], whole.copy().T):
            expected = 2 * own
            assert world.all_reduce(own) is own and (own == expected).all()
            assert (world.all_gather(own)[1 - rank] == own).all()
            out = np.zeros(own.shape, order="F")
            world.reduce(own, 1, out=out if rank == 1 else None)
            assert rank == 0 or (out == 2 * own).all()
        fixed = np.ones(2)
        fixed.flags.writeable = False
        for own in (fixed, b"ab"):
            refused(earlybird.UsageError, "may only be read", lambda: world.all_reduce(own))
        refused(earlybird.UsageError, "no set", lambda: world.all_reduce({1}))
        # An outcome goes out without a copy.
        with world.allreduce(3, fire="all") as sum:
            sum.contribution()[:] = 1
            sum.arrive()
            outcome, = sum.wait(30)
            other = np.from_dlpack(outcome.data)
            assert other.tolist() == [2, 2, 2] and np.shares_memory(other, outcome.data) and not other.flags.writeable
            del other, outcome
        """,
        2,
    )


def test_numbers_of_ml_dtypes() -> None:
    pytest.importorskip("ml_dtypes", reason="SKIPPED: ml_dtypes is not installed")
    run(
        """
        import ml_dtypes
        own = np.array([1.5, rank], ml_dtypes.bfloat16)
        assert world.all_reduce(own) is own and own.tolist() == [3.0, 1.0]
        with world.allreduce(2, dtype=ml_dtypes.bfloat16, fire="all") as sum:
            sum.contribution().view(ml_dtypes.bfloat16)[:] = own
            sum.arrive()
            assert sum.wait(30)[0].data.view(ml_dtypes.bfloat16).tolist() == [6.0, 2.0]
            sum.release()
        """,
        2,
    )
