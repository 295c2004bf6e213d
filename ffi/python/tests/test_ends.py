"""Deaths, timeouts, aborts, forks, and the end of the interpreter."""

from __future__ import annotations

import textwrap

import pytest
from programs import run, start


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
            assert sum.try_wait() is None
        assert (sum.wait(30)[0].data == 2).all()
        sum.finish()
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
            calls = [sum.arrive, lambda: sum.wait(1), sum.try_wait, lambda: sum.finish(1), world.barrier]
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
