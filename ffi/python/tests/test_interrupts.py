"""Ctrl-C ends what a program waits for."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from programs import run, start


def interrupt(program: str) -> None:
    processes = start(program, 2)
    waiting = processes[0].stdout
    assert waiting is not None and waiting.readline() == "WAITS\n"
    time.sleep(0.3)
    processes[0].send_signal(signal.SIGINT)
    texts = [process.communicate(timeout=60)[0] for process in processes]
    assert "INTERRUPTED" in texts[0] and all(process.returncode == 0 for process in processes), texts


def test_ctrl_c_ends_a_wait() -> None:
    interrupt(
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
    )


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


@pytest.mark.parametrize("call", ["join", "barrier", "all_reduce", "empty", "receive"])
def test_ctrl_c_ends_a_call_of_all_ranks(call: str) -> None:
    interrupt(INTERRUPTED.replace("CALL", call))


@pytest.fixture
def port() -> int:
    """A free port, for a store of ranks that use libfabric."""
    try:
        ctypes.CDLL("libfabric.so.1")
    except OSError as absent:
        pytest.skip(f"SKIPPED: libfabric cannot be loaded: {absent}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_ctrl_c_ends_a_call_over_libfabric(port: int) -> None:
    """Some versions of it load a library that takes the handlers of signals away."""
    # The handler is set before libfabric is loaded.
    join = f"""
    choices = {{"fabric": "ofi", "provider": "tcp;ofi_rxm", "levels": 1}}
    choices |= {{"deadline": 30, "secret": "a secret of this test"}}
    world = earlybird.World.join(rank, 2, "tcp:127.0.0.1:{port}", **choices)
    place ="""
    interrupt(INTERRUPTED.replace("CALL", "barrier").replace("\n    place =", join))


def test_ctrl_c_works_where_a_stranger_has_stopped_libfabric(port: int) -> None:
    """32 bytes stop its tcp inside a call, while ranks connect to each other."""
    texts = run(
        f"""
        import os, signal, socket, threading, time
        signal.signal(signal.SIGINT, signal.default_int_handler)
        choices = {{"fabric": "ofi", "provider": "tcp;ofi_rxm", "levels": 1, "deadline": 40}}

        def listens():
            own = set()
            for number in os.listdir("/proc/self/fd"):
                try:
                    own.add(os.readlink("/proc/self/fd/" + number))
                except OSError:
                    pass
            for line in open("/proc/self/net/tcp").readlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{{fields[9]}}]" in own:
                    yield int(fields[1].split(":")[1], 16)

        def stranger():
            while not (ports := [at for at in listens() if at != {port}]):
                time.sleep(0.01)
            with socket.create_connection(("127.0.0.1", ports[0])) as connection:
                connection.sendall(bytes([3, 0, 0, 0x18]) + bytes(28))
                time.sleep(2.5)
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(30)

        began = time.monotonic()
        if rank == 0:
            threading.Thread(target=stranger, daemon=True).start()
        else:
            time.sleep(1)
        try:
            earlybird.World.join(rank, 2, "tcp:127.0.0.1:{port}", **choices)
        except KeyboardInterrupt:
            print("INTERRUPTED", time.monotonic() - began < 8, flush=True)
        except earlybird.Error as error:
            assert rank == 1, error
        """,
        2,
    )
    assert "INTERRUPTED True" in texts[0], texts


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


def _listens(process: int) -> set[int]:
    """The ports at which a process listens."""
    sockets, ports = set(), set()
    for descriptor in os.listdir(f"/proc/{process}/fd"):
        with contextlib.suppress(OSError):
            sockets.add(os.readlink(f"/proc/{process}/fd/{descriptor}"))
    for name in ("tcp", "tcp6"):
        with open(f"/proc/{process}/net/{name}", encoding="ascii") as table:
            for line in list(table)[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                    ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


JOINS = """
import signal, earlybird
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    earlybird.World(deadline=60)
except KeyboardInterrupt:
    print("INTERRUPTED", flush=True)
except earlybird.Error as error:
    print(error, flush=True)
"""


def test_ctrl_c_ends_a_process_whose_libfabric_does_not_return() -> None:
    """A stranger stops it while ranks join: SECURITY.md has the bytes."""
    try:
        ctypes.CDLL("libfabric.so.1")
    except OSError:
        pytest.skip("SKIPPED: there is no libfabric")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        store = free.getsockname()[1]
    variables = os.environ | {
        "EARLYBIRD_WORLD_SIZE": "2",
        "EARLYBIRD_STORE": f"tcp:127.0.0.1:{store}",
        "EARLYBIRD_SECRET": "a secret of this test",
        "EARLYBIRD_FABRIC": "ofi",
        "EARLYBIRD_LEVELS": "1",
        "EARLYBIRD_PROVIDER": "tcp;ofi_rxm",
        "EARLYBIRD_SILENCE": "3s",
    }

    def begin(rank: int) -> subprocess.Popen[str]:
        of_rank = variables | {"EARLYBIRD_RANK": str(rank)}
        command = [sys.executable, "-c", JOINS]
        return subprocess.Popen(command, env=of_rank, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def ports(process: subprocess.Popen[str]) -> set[int]:
        until = time.monotonic() + 30
        while not (found := _listens(process.pid) - {store}):
            assert time.monotonic() < until
            time.sleep(0.05)
        return found

    first = begin(0)
    with contextlib.ExitStack() as connected:
        for port in ports(first):
            stranger = connected.enter_context(socket.create_connection(("127.0.0.1", port)))
            stranger.sendall(bytes([3, 0, 0, 24]) + bytes(28))
        second = begin(1)
        ports(second)
        time.sleep(1)
        first.send_signal(signal.SIGINT)
        texts = [process.communicate(timeout=60)[0] for process in (first, second)]
    assert first.returncode == 0 and second.returncode == 0, texts
    # It ends by itself, long before its deadline: at the latest where the call is abandoned.
    assert "INTERRUPTED" in texts[0] or "libfabric has not returned for" in texts[0], texts
