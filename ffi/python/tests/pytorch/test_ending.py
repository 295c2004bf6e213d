"""Processes that end while calls of theirs go on."""

import pytest

pytest.importorskip("torch", reason="SKIPPED: torch is not installed; pip install torch")

from ranks import start  # noqa: E402


@pytest.mark.parametrize("end", ["", "raise ValueError('the end')", "dist.destroy_process_group()"])
def test_an_outstanding_receive_does_not_abort_a_process_that_ends(end: str) -> None:
    # Messages come while the interpreter ends, and take a while to be put where they belong. Some do not come.
    started = start(
        f"""
        import time
        class Slow:
            def __del__(self, sleep=time.sleep):
                sleep(1)
        dist.barrier()
        if rank == 0:
            slow, turned = Slow(), torch.empty(3000, 3000).t()
            works = [dist.irecv(turned, 1) for _ in range(100)] + [dist.irecv(torch.empty(3), 2) for _ in range(100)]
            future = works[0].get_future().then(lambda f: f.value())
            print("ends", flush=True)
            {end}
        else:
            data = torch.ones(3000, 3000)
            until = time.monotonic() + 3
            while rank == 1 and time.monotonic() < until:
                dist.send(data, 0)
            time.sleep(max(0, until - time.monotonic()))
            os._exit(0)
        """.replace("\n        ", "\n"),
        3,
    )
    texts = [process.communicate(timeout=300)[0] for process in started]
    assert "ends" in texts[0] and "terminate called" not in texts[0] and "Fatal" not in texts[0], texts
    assert started[0].returncode == int("raise" in end), (started[0].returncode, texts)
