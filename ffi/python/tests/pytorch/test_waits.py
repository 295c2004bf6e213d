"""Ranks that wait for each other in different calls, and such that only wait."""

import pytest

pytest.importorskip("torch", reason="SKIPPED: torch is not installed; pip install torch")

from ranks import run  # noqa: E402

HEAD = """
def ends(*calls):
    try:
        for call in calls:
            call()
    except earlybird.Error as error:
        return str(error)
    raise AssertionError("the calls came to an end")

def groups(*members):
    return [dist.new_group(ranks, timeout=datetime.timedelta(seconds=60)) for ranks in members]
"""


def test_two_groups_in_opposite_order_end_with_the_names_of_both_calls() -> None:
    run(
        HEAD
        + """
a, b = groups([0, 1], [0, 1])
calls = [lambda: dist.all_reduce(torch.ones(3), group=a), lambda: dist.barrier(b)]
for call in calls:
    call()
text = ends(*(calls if rank == 0 else reversed(calls)))
assert "ranks wait for each other" in text, text
for call, group in (("all_reduce", a), ("barrier", b)):
    assert f"{call} (call 2 of group {group.group_name}, ranks 0, 1)" in text, text
os._exit(0)
""",
        2,
    )


def test_a_circle_of_three_is_found_also_where_calls_are_asynchronous() -> None:
    run(
        HEAD
        + """
pairs = groups([0, 1], [1, 2], [0, 2])
mine = {0: (0, 2), 1: (1, 0), 2: (2, 1)}[rank]
def wait(group):
    work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
    work.wait()
text = ends(*[lambda pair=pair: wait(pairs[pair]) for pair in mine])
assert "ranks wait for each other" in text and text.count("all_reduce (call 1") == 3, text
os._exit(0)
""",
        3,
    )


def test_a_rank_that_sleeps_is_not_reported() -> None:
    run(
        HEAD
        + """
import threading, time
a, b = groups([0, 1], [0, 1])
# Calls that are on their way on other threads are none that a rank lacks.
works = [dist.all_reduce(torch.ones(3), group=group, async_op=True) for group in ((a, b) if rank == 0 else (b, a))]
for work in works:
    work.wait()
if rank == 1:
    time.sleep(20)
dist.all_reduce(torch.ones(3), group=a)
# A thread that may yet make the call which the main thread of rank 0 waits for.
if rank == 1:
    def later():
        dist.barrier(b)
        time.sleep(8)
        dist.all_reduce(torch.ones(3), group=a)
    thread = threading.Thread(target=later)
    thread.start()
    dist.broadcast(torch.ones(1), 0)
    thread.join()
else:
    dist.barrier(b)
    dist.all_reduce(torch.ones(3), group=a)
    dist.broadcast(torch.ones(1), 0)
dist.barrier()
""",
        2,
    )
