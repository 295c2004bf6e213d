"""How the ranks of a group find each other, through torch's store.

The store may outlive the processes: after a restart it still holds what the previous processes wrote. So each rank
writes a new random word, and continues only when rank 0 has repeated it.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

_PAUSE = 0.005


def _this_machine() -> str:
    """Returns a name that the processes of this machine share with no others."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    namespace = Path("/proc/self/ns/net")
    parts = [socket.gethostname()]
    if boot.exists():
        parts.append(boot.read_text().strip())
    if namespace.exists():
        # Ranks in separate containers share no socket.
        parts.append(os.readlink(namespace))
    return " ".join(parts)


def _own_address() -> str:
    """Returns an address of this machine that the others can reach: the one on the route to the job's first machine."""
    target = os.environ.get("MASTER_ADDR", "")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((target or socket.gethostname(), 9))
            address: str = probe.getsockname()[0]
    except OSError:
        return socket.gethostname()
    return socket.gethostname() if address.startswith("127.") else address


def _place(machines: set[str]) -> str:
    """Returns a new place to meet at, for ranks on these machines."""
    if len(machines) == 1:
        return f"unix:earlybird-{secrets.token_hex(16)}"
    with socket.socket() as free:
        free.bind(("", 0))
        return f"tcp:{_own_address()}:{free.getsockname()[1]}"


def _said(store: dist.Store, key: str) -> str:
    """Returns the current value of a key; an empty text if it was never set."""
    return store.get(key).decode() if store.check([key]) else ""


def _wait(until: float, rank: int, is_done: Callable[[], bool], missing: Callable[[], str]) -> None:
    while not is_done():
        if time.monotonic() > until:
            raise RuntimeError(f"rank {rank}: the group could not meet in time; {missing()}")
        time.sleep(_PAUSE)


def _lead(store: dist.Store, size: int, until: float) -> str:
    """Rank 0 chooses the place. All ranks must confirm it, with their current words."""
    heard: list[str] = []
    meeting = ""

    def confirmed() -> list[bool]:
        version = meeting.split()[0]
        return [_said(store, f"earlybird/confirmed/{rank}") == version for rank in range(1, size)]

    def is_done() -> bool:
        nonlocal heard, meeting
        now = [_said(store, f"earlybird/here/{rank}") for rank in range(size)]
        if not all(now):
            return False
        if now != heard:
            heard = now
            words, machines = zip(*(said.split(" ", 1) for said in now), strict=True)
            meeting = " ".join([secrets.token_hex(16), _place(set(machines)), *words])
            store.set("earlybird/meeting", meeting)
        return all(confirmed())

    def missing() -> str:
        absent = [rank for rank in range(size) if not _said(store, f"earlybird/here/{rank}")]
        late = [rank for rank, there in enumerate(confirmed(), 1) if not there] if meeting else []
        return f"waiting for ranks {absent or late}"

    _wait(until, 0, is_done, missing)
    store.set("earlybird/held", meeting.split()[0])
    return meeting


def _follow(store: dist.Store, rank: int, word: str, until: float) -> str:
    """Other ranks confirm the newest place that knows their word, until rank 0 says that all have done so."""
    meeting, confirmed = "", ""

    def is_done() -> bool:
        nonlocal meeting, confirmed
        meeting = _said(store, "earlybird/meeting")
        version, place, *words = (*meeting.split(), "", "")
        if len(words) <= rank or words[rank] != word:
            return False
        if not place.startswith(("unix:earlybird-", "tcp:")):
            raise RuntimeError(f"rank {rank}: torch's store names {place!r}, where no group meets: another process writes to it")
        if confirmed != version:
            confirmed = version
            store.set(f"earlybird/confirmed/{rank}", version)
        return _said(store, "earlybird/held") == version

    _wait(until, rank, is_done, lambda: "waiting for rank 0")
    return meeting


def meet(store: dist.Store, rank: int, size: int, timeout: float) -> tuple[str, str]:
    """Returns where the ranks of a group meet, and their secret."""
    word, until = secrets.token_hex(8), time.monotonic() + timeout
    store.set(f"earlybird/here/{rank}", f"{word} {_this_machine()}")
    meeting = _lead(store, size, until) if rank == 0 else _follow(store, rank, word, until)
    secret, place, *_ = meeting.split()
    # A process that reaches torch's store can read its contents.
    given = os.environ.get("EARLYBIRD_SECRET", "")
    if not given and rank == 0 and place.startswith("tcp:"):
        logging.getLogger("earlybird").warning(
            "the ranks are on several hosts, and other processes that reach torch's store (MASTER_ADDR, MASTER_PORT) can join "
            "in place of one: set EARLYBIRD_SECRET on all ranks to the same 16 bytes or more; openssl rand -hex 16 makes them"
        )
    return place, f"{given} {secret}" if given else secret
