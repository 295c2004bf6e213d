"""The persistent allreduce as programs meet it."""

from __future__ import annotations

from programs import run


def test_a_quorum_does_not_wait_and_loses_nothing() -> None:
    texts = run(
        """
        import time
        total, left = 0.0, 0
        with world.allreduce([3, 5], dtype="f64", fire="quorum=2") as sum:
            for step in range(30):
                time.sleep(0.003 if rank == 3 else 0.001)
                first, second = sum.tensors()
                first[:] = 1
                second[:] = 2
                del first, second
                sum.arrive()
                for outcome in sum.wait(30):
                    count = len(outcome.fresh) + len(outcome.carried)
                    assert (outcome.tensors()[0] == count).all() and (outcome.tensors()[1] == 2 * count).all()
                    leaves = [entry.rank for entry in outcome.entries if entry.part == "leaving"]
                    assert len(outcome.fresh) + len(leaves) >= min(2, size - left)
                    left += len(leaves)
                    total += float(outcome.data[0])
            late = sum.stats()["late"]
        print("TOTAL", total, "LATE", late)
        """,
        4,
    )
    assert all("TOTAL" in text for text in texts)
    assert any("LATE 0" not in text for text in texts), texts


def test_a_rank_that_leaves_takes_what_it_missed() -> None:
    run(
        """
        import time
        own, rounds = 0, []
        sum = world.allreduce(1000, fire="solo")

        def take(outcomes):
            global own
            for outcome in outcomes:
                count = len(outcome.fresh) + len(outcome.carried)
                assert (outcome.data == count).all()
                own += len([entry for entry in outcome.entries if entry.rank == rank and entry.part != "leaving"])
                rounds.append(outcome.round)

        for step in range(20):
            time.sleep(0.003 if rank == 2 else 0)
            sum.contribution()[:] = 1
            sum.arrive()
            if step < 19:
                take(sum.wait(30))
        take(sum.leave(30))
        assert own == 20 and rounds == list(range(1, len(rounds) + 1)), (own, rounds)
        assert list(sum.leave(30)) == []
        sum.finish(30)
        """,
        3,
    )


def test_every_type_is_summed() -> None:
    run(
        """
        for name, kind in [("f32", np.float32), ("f64", "float64"), ("f16", np.float16), ("i32", np.int32),
                           ("i64", int), ("u32", "u32"), ("u64", np.uint64)]:
            with world.allreduce(7, dtype=kind) as sum:
                sum.contribution()[:] = rank + 1
                sum.arrive()
                outcome = sum.wait(30)[0]
                assert (outcome.data == 3).all() and outcome.data.dtype == sum.dtype, name
        with world.allreduce(2, dtype="bf16") as sum:
            sum.contribution()[:] = 0x3F80
            sum.arrive()
            assert (sum.wait(30)[0].data == 0x4000).all()
        """,
        2,
    )


def test_nothing_is_copied() -> None:
    """Arrays are the registered memory itself."""
    run(
        """
        with world.allreduce(1000, fire="solo") as sum:
            places = set()
            for step in range(12):
                array = sum.contribution()
                assert array is sum.contribution() and array.flags.writeable
                places.add(array.ctypes.data)
                assert memoryview(sum._contribution()).nbytes == 4000
                address = np.frombuffer(sum._contribution(), dtype=np.uint8).ctypes.data
                assert address == array.ctypes.data
                array[:] = step
                sum.arrive()
                outcome = sum.wait(30)[-1]
                one, other = outcome.data, outcome.data
                assert one.ctypes.data == other.ctypes.data and not one.flags.writeable
                del one, other
            assert len(places) <= 3, places
        """,
        1,
    )


def test_what_is_not_lent_any_more_is_refused() -> None:
    run(
        """
        def write(array):
            array[0] = 1

        sum = world.allreduce(4)
        array = sum.contribution()
        memory = sum._contribution()
        write(array)
        sum.arrive()
        refused(ValueError, "read-only", lambda: write(array))
        refused(BufferError, "handed in", lambda: memoryview(memory))
        outcome = sum.wait(30)[0]
        data = outcome.data
        refused(ValueError, "read-only", lambda: write(data))
        refused(BufferError, "copy what you keep", sum.contribution)
        refused(BufferError, "copy what you keep", sum.arrive)
        refused(BufferError, "copy what you keep", sum.release)
        view = data[1:]
        del data
        refused(BufferError, "1 arrays", sum.release)
        del view
        sum.release()
        refused(BufferError, "released", lambda: outcome.data)
        refused(earlybird.UsageError, "released", lambda: outcome.fresh)
        refused(earlybird.UsageError, "call arrive first", lambda: sum.wait(1))
        refused(earlybird.UsageError, "executor=thread", sum.fileno)
        sum.finish(30)
        refused(earlybird.UsageError, "has finished", sum.contribution)
        refused(ValueError, "fire", lambda: world.allreduce(4, fire="most"))
        refused(ValueError, "dtype", lambda: world.allreduce(4, dtype=complex))
        refused(ValueError, "colour", lambda: world.allreduce(4, colour="red"))
        refused(ValueError, "timeout", lambda: world.barrier(-1))
        refused(earlybird.UsageError, "not a rank", lambda: world.broadcast(np.zeros(3), root=5))
        world.close()
        refused(earlybird.UsageError, "closed", lambda: world.rank)
        # Arrays outlive their handles.
        del sum, world
        assert array[0] == 1
        """,
        1,
    )


def test_models_and_broadcast() -> None:
    run(
        """
        model = np.full(5, 10.0 if rank == 0 else 0.0, dtype=np.float32)
        world.broadcast(model, root=0, timeout=30)
        assert (model == 10).all()
        with world.allreduce([5], preset="wagma", model=model, fire="all") as models:
            models.contribution()[:] = 2 * rank
            models.arrive()
            assert (models.wait(30)[-1].data == 11).all()
        """,
        2,
    )


def test_threads_run_while_one_waits() -> None:
    """A wait gives the interpreter's lock away."""
    run(
        """
        import threading, time
        sum = world.allreduce(4)
        counted = 0
        if rank == 0:
            sum.arrive()
            waits = threading.Thread(target=lambda: sum.wait(30))
            waits.start()
            until = time.monotonic() + 0.5
            while time.monotonic() < until:
                counted += 1
            assert counted > 10000, counted
            try:
                sum.try_wait()
            except earlybird.UsageError as error:
                assert "another thread" in str(error)
            else:
                raise AssertionError("two threads are in calls")
            world.barrier(30)
            waits.join()
        else:
            world.barrier(30)
            sum.arrive()
            sum.wait(30)
        sum.finish(30)
        """,
        2,
    )


def test_asyncio_goes_on_while_one_waits() -> None:
    run(
        """
        import asyncio, time

        async def play():
            ticks = 0

            async def tick():
                nonlocal ticks
                while True:
                    await asyncio.sleep(0.01)
                    ticks += 1

            ticking = asyncio.create_task(tick())
            with world.allreduce(100, executor="thread") as mean:
                for step in range(10):
                    if rank == 1:
                        await asyncio.sleep(0.03)
                    mean.contribution()[:] = step
                    mean.arrive()
                    outcomes = await mean.outcomes()
                    assert (outcomes[-1].data == 2 * step).all()
            assert ticks >= 10, ticks
            ticking.cancel()

        asyncio.run(play())
        """,
        2,
    )


def test_one_task_waits_for_outcomes() -> None:
    run(
        """
        import asyncio, time

        async def both(mean):
            first = asyncio.ensure_future(mean.outcomes())
            await asyncio.sleep(0)
            try:
                await mean.outcomes()
            except earlybird.UsageError as problem:
                assert "another task" in str(problem)
            else:
                raise AssertionError("two wait")
            await first

        with world.allreduce(3, executor="thread") as mean:
            if rank == 1:
                time.sleep(0.5)
            mean.arrive()
            asyncio.run(both(mean)) if rank == 0 else mean.wait(30)
        """,
        2,
    )


def test_entries_and_the_account_say_which_rank_is_slow() -> None:
    texts = run(
        """
        import time
        with world.allreduce(10) as sum:
            for step in range(30):
                time.sleep(0.02 if rank == 1 and step >= 10 else 0.004)
                sum.contribution()[:] = 1
                sum.arrive()
                for outcome in sum.wait(30):
                    known = [entry for entry in outcome.entries if entry.computed is not None]
            assert len(known) == size and known[1].computed > 0.018, known
            ranks = sum.lateness()
            assert [of.rank for of in ranks] == list(range(size))
            spells = ranks[1].spells
            print("SLOW", [(of.rank, len(of.spells)) for of in ranks], spells)
            assert spells and abs(spells[0].since - 11) <= 2 and spells[0].factor > 1.5 and spells[0].until is None
        """,
        3,
    )
    assert all("SLOW" in text for text in texts)
