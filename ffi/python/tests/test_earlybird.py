"""The Python package as programs meet it: ranks are processes of their own, started as a launcher would."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import socket
import subprocess
import sys
import textwrap
import time
import uuid

import pytest

import earlybird


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


def test_a_death_is_an_exception_that_names_the_rank() -> None:
    processes = start(
        """
        import os
        sum = world.allreduce(4)
        try:
            for step in range(10000):
                if rank == 1 and step == 20:
                    os._exit(1)
                sum.arrive()
                sum.wait(30)
        except earlybird.PeerDied as error:
            assert isinstance(error, RuntimeError) and isinstance(error, ConnectionError)
            assert (error.rank, error.peer) == (rank, 1) and "rank 1 died" in str(error), error
            print("HEARD")
        """,
        3,
    )
    for rank, process in enumerate(processes):
        text = process.communicate(timeout=60)[0]
        assert rank == 1 or (process.returncode == 0 and "HEARD" in text), text


def test_a_timeout_loses_nothing_and_names_the_missing() -> None:
    run(
        """
        import time
        sum = world.allreduce(4)
        sum.contribution()[:] = 1
        if rank == 1:
            time.sleep(0.5)
        sum.arrive()
        if rank == 0:
            try:
                sum.wait(0.15)
            except earlybird.Timeout as error:
                assert isinstance(error, TimeoutError) and error.peer == 1, error
                assert "timeout after 1" in str(error) and "ms" in str(error), error
            else:
                raise AssertionError("no timeout")
            assert sum.test() is None
        assert (sum.wait(30)[0].data == 2).all()
        sum.finish()
        """,
        2,
    )


def test_ctrl_c_ends_a_wait() -> None:
    processes = start(
        """
        import signal, time
        # A shell that starts programs in the background lets them ignore it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sum = world.allreduce(4)
        if rank == 1:
            time.sleep(2)
            sum.arrive()
            sum.wait(30)
            sum.finish(30)
        else:
            sum.arrive()
            print("WAITS", flush=True)
            try:
                sum.wait()
            except KeyboardInterrupt:
                print("INTERRUPTED", flush=True)
            # Nothing is lost by that.
            assert len(sum.wait(30)) == 1
            sum.finish(30)
        """,
        2,
    )
    waiting = processes[0].stdout
    assert waiting is not None and waiting.readline() == "WAITS\n"
    time.sleep(0.2)
    processes[0].send_signal(signal.SIGINT)
    texts = [process.communicate(timeout=60)[0] for process in processes]
    assert "INTERRUPTED" in texts[0] and all(process.returncode == 0 for process in processes), texts


INTERRUPTED = """
    import os, signal, time
    signal.signal(signal.SIGINT, signal.default_int_handler)
    place = "unix:earlybird-again-%d" % os.getppid()
    calls = {
        "join": lambda: earlybird.World.join(0, 2, place),
        "barrier": world.barrier,
        "all_reduce": lambda: world.all_reduce(np.ones(3)),
        "empty": lambda: world.empty(3),
        "receive": lambda: world.receive(np.ones(3)),
    }
    if "CALL" != "all_reduce":
        world.open_messages()
    call = calls["CALL"]
    if rank == 0:
        print("WAITS", flush=True)
        try:
            call()
        except KeyboardInterrupt:
            print("INTERRUPTED", flush=True)
    else:
        time.sleep(1.5)
    if "CALL" == "join":
        # The place of the first attempt is free.
        again = earlybird.World.join(rank, 2, place, deadline=20)
        again.barrier(20)
    elif "CALL" == "receive":
        # Nothing of the message has moved.
        world.receive(np.ones(3), timeout=20) if rank == 0 else world.send(np.ones(3), to=0, timeout=20)
    elif rank == 1:
        try:
            call()
        except earlybird.Aborted as error:
            assert error.peer == 0
        else:
            raise AssertionError("rank 0 was not there")
"""


def interrupt(program: str) -> None:
    processes = start(program, 2)
    waiting = processes[0].stdout
    assert waiting is not None and waiting.readline() == "WAITS\n"
    time.sleep(0.3)
    processes[0].send_signal(signal.SIGINT)
    texts = [process.communicate(timeout=60)[0] for process in processes]
    assert "INTERRUPTED" in texts[0] and all(process.returncode == 0 for process in processes), texts


@pytest.mark.parametrize("call", ["join", "barrier", "all_reduce", "empty", "receive"])
def test_ctrl_c_ends_a_call_of_all_ranks(call: str) -> None:
    interrupt(INTERRUPTED.replace("CALL", call))


def test_ctrl_c_ends_a_call_over_libfabric() -> None:
    """Some versions of it load a library that takes the handlers of signals away."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    try:
        ctypes.CDLL("libfabric.so.1")
    except OSError as absent:
        pytest.skip(f"SKIPPED: libfabric cannot be loaded: {absent}")
    # The handler is set before libfabric is loaded.
    join = f"""
    choices = {{"fabric": "ofi", "provider": "tcp;ofi_rxm", "deadline": 30}}
    world = earlybird.World.join(rank, 2, "tcp:127.0.0.1:{port}", **choices)
    place ="""
    interrupt(INTERRUPTED.replace("CALL", "barrier").replace("\n    place =", join))


def test_outcomes_that_came_at_ctrl_c_are_not_lost() -> None:
    run(
        """
        import os, signal, threading, time
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with world.allreduce(1) as total:
            for turn in range(5):
                total.contribution()[:] = turn
                world.barrier(20)
                if rank == 1:
                    # After the signal, and before rank 0 looks after signals again.
                    time.sleep(0.07)
                    total.arrive()
                    total.wait(20)
                    continue
                total.arrive()
                alarm, rounds = threading.Timer(0.04, os.kill, (os.getpid(), signal.SIGINT)), None
                try:
                    alarm.start()
                    rounds = total.wait(20)
                    alarm.join()
                except KeyboardInterrupt:
                    rounds = total.wait(20) if rounds is None else rounds
                assert rounds[-1].data[0] == 2 * turn
                rounds = None
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
                sum.test()
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


def test_a_forked_child_gets_an_error() -> None:
    run(
        """
        import os
        sum = world.allreduce(4)
        sum.contribution()[:] = 1
        child = os.fork()
        if child == 0:
            code = 1
            try:
                sum.contribution()
                sum.arrive()
            except earlybird.UsageError as error:
                code = 0 if "forked child" in str(error) else 2
            del sum, world
            os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        sum.arrive()
        assert len(sum.wait(30)) == 1
        sum.finish(30)
        """,
        2,
    )


def test_what_is_collected_in_the_middle_of_a_round_aborts_the_job() -> None:
    processes = start(
        """
        sum = world.allreduce(4)
        if rank == 1:
            del sum
        else:
            try:
                sum.arrive()
                sum.wait(30)
            except earlybird.Aborted as error:
                assert error.peer == 1, error
                print("ABORTED")
        """,
        2,
    )
    texts = [process.communicate(timeout=60)[0] for process in processes]
    assert "ABORTED" in texts[0], texts


def test_the_version_and_one_rank() -> None:
    assert earlybird.__version__.count(".") == 2
    with earlybird.World() as world, world.allreduce([], fire="all") as empty:
        empty.arrive()
        assert empty.wait(5)[0].data.size == 0
        assert empty.tensors() == []
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


@pytest.mark.parametrize("block", ["with world:\n    fail()", "fail()"])
def test_an_exception_aborts_the_job(block: str) -> None:
    processes = start(
        f"""
def fail():
    raise ValueError("no data")

if rank == 1:
{textwrap.indent(block, "    ")}
try:
    world.all_reduce(np.ones(3))
except earlybird.Aborted as error:
    assert error.peer == 1 and "ValueError: no data" in str(error)
    print("TOLD")
""",
        2,
    )
    texts = [process.communicate(timeout=30)[0] for process in processes]
    assert "TOLD" in texts[0] and processes[0].returncode == 0 and processes[1].returncode == 1, texts


@pytest.mark.parametrize("failure", ["abort", "death"])
@pytest.mark.parametrize("fire", ["all", "solo"])
def test_a_failed_world_stays_failed_in_every_call(failure: str, fire: str) -> None:
    processes = start(
        f"""
        import os, time
        kind = earlybird.Aborted if "{failure}" == "abort" else earlybird.PeerDied
        sum = world.allreduce(4, fire="{fire}")
        world.open_messages()
        sum.arrive()
        sum.wait(30)
        world.barrier(30)
        if rank == 1:
            world.abort("enough") if "{failure}" == "abort" else os._exit(1)
        else:
            def fails():
                try:
                    world.barrier(30)
                except kind:
                    return True
            while not fails():
                time.sleep(0.01)
            sends = [np.ones(3), 1] if rank == 0 else [np.ones(3), 0]
            calls = [sum.arrive, lambda: sum.wait(1), sum.test, lambda: sum.finish(1), world.barrier]
            calls += [lambda: world.all_reduce(np.ones(3)), lambda: world.send(*sends), lambda: world.receive(np.ones(3))]
            calls += [lambda: world.allreduce(3), lambda: world.empty(3), lambda: world.split(0), lambda: sum.finish(1)]
            for number, call in enumerate(calls):
                try:
                    call()
                except kind as error:
                    assert error.peer == 1, (number, error)
                else:
                    raise AssertionError(f"call {{number}} did not fail")
            print("ALL FAILED")
        """,
        3,
    )
    for rank, process in enumerate(processes):
        text = process.communicate(timeout=60)[0]
        assert rank == 1 or ("ALL FAILED" in text and process.returncode == 0), text


def test_a_rank_that_closed_its_world_is_named() -> None:
    run(
        """
        world.all_reduce(np.ones(3))
        if rank == 1:
            world.close()
        else:
            for call in (world.barrier, lambda: world.all_reduce(np.ones(3))):
                try:
                    call()
                except (earlybird.PeerLeft, earlybird.Aborted) as error:
                    print(type(error))
                else:
                    raise AssertionError("it came")
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


def messages(program: str, **variables: str) -> str:
    """What a program that is a world of one prints on standard error."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("EARLYBIRD_")}
    command = [sys.executable, "-c", "import earlybird, logging\n" + textwrap.dedent(program)]
    ended = subprocess.run(command, env=inherited | variables, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


def test_messages_go_to_logging() -> None:
    joins = "earlybird.World().close()"
    format = "%(name)s %(levelname)s %(message)s"
    joined = f"{platform.node()}: joined rank=0"
    assert messages(joins) == ""
    assert joined in messages(joins, EARLYBIRD_LOG="debug")
    configured = f"logging.basicConfig(level=LEVEL, format='{format}')\n{joins}"
    assert f"earlybird DEBUG {joined}" in messages(configured.replace("LEVEL", "logging.DEBUG"))
    assert messages(configured.replace("LEVEL", "logging.INFO")) == ""
    # The environment says what is collected, also where the program wants more.
    assert messages(configured.replace("LEVEL", "logging.DEBUG"), EARLYBIRD_LOG="off") == ""
    refused = "try: earlybird.World()\nexcept earlybird.ConfigError as error: assert 'EARLYBIRD_LOG=loud' in str(error)"
    messages(refused + "\nelse: raise AssertionError('it was taken')", EARLYBIRD_LOG="loud")


def test_a_forked_child_of_a_program_that_logs_ends() -> None:
    text = messages(
        """
        import os
        world = earlybird.World()
        child = os.fork()
        if child == 0:
            raise SystemExit(0)
        assert os.waitpid(child, 0)[1] == 0
        world.close()
        """,
        EARLYBIRD_LOG="debug",
    )
    assert "joined" in text


def test_calls_at_the_end_of_the_interpreter_wait() -> None:
    texts = run(
        """
        class Trainer:
            def __del__(self):
                world.barrier(30)
                print("MET", flush=True)

        trainer = Trainer()
        """,
        2,
    )
    assert all("MET" in text and "panicked" not in text for text in texts), texts


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
