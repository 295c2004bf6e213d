"""Finds calls in which ranks wait for each other, and tells the ranks.

A thread of each process polls once a second. If a call has waited that long, the thread writes a *note* into torch's
store: the calls in which the process waits, and the number of calls of each of its groups that it has handed in. The
lowest rank that waits in a call reads the notes of the ranks that have not handed it in. If these wait in other calls,
and so on in a cycle, none of them can continue.

A process counts as waiting only while all of its threads that may make a call are in one. These are the main thread,
other threads that are not daemons, and threads that have ever made a call. So a rank that computes or sleeps is never
part of such a cycle, nor is a rank whose main thread waits for its helpers. A rank reads notes until each was
rewritten twice without a change: at some time all of these calls waited. Then each of their groups gets a text in the
store. The ranks that wait in the group read it, and end their calls a few polls later, so all of them know the cycle
before the first of their processes ends.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import threading
import time
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch.distributed as dist

from .._errors import Aborted

if TYPE_CHECKING:
    from ._group import EarlybirdProcessGroup

_LOG = logging.getLogger("earlybird")

# The time between two polls, in seconds, and the wait after which the log says which rank is in which call.
_PAUSE = 1.0
_LONG = 10.0


class Entry(NamedTuple):
    """A call of a group."""

    group: str
    number: int
    """The call's number among those that the process has handed in to the group; the same on all ranks."""
    name: str
    since: float


class _Waiting(threading.local):
    """The calls that this thread waits in; the innermost is the last."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        with _LOCK:
            # A thread that has ended can make no call.
            for thread in [thread for thread in _CALLERS if not thread.is_alive()]:
                del _CALLERS[thread]
            _CALLERS[threading.current_thread()] = self.entries

    def leave_out(self) -> None:
        """Records that this thread makes the calls of others."""
        with _LOCK:
            del _CALLERS[threading.current_thread()]


_LOCK = threading.Lock()
# Why the calls of a group can never end, by the group's key.
_CIRCLES: dict[str, str] = {}
_CALLERS: dict[threading.Thread, list[Entry]] = {}
_GROUPS: weakref.WeakValueDictionary[str, EarlybirdProcessGroup] = weakref.WeakValueDictionary()
_HERE = _Waiting()


@contextlib.contextmanager
def waiting(entry: Entry | None) -> Iterator[None]:
    """Within it, this thread waits for a call."""
    entries = _HERE.entries
    if entry is not None:
        entries.append(entry)
    try:
        yield
    finally:
        if entry is not None:
            entries.pop()


def make_calls_of_others() -> None:
    """Excludes this thread from those that may make a call."""
    _HERE.leave_out()


def _base(store: dist.Store) -> dist.Store:
    """Returns the store of all ranks, on which those of groups are based."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store


def explained(entry: Entry | None, error: Exception) -> Exception:
    """Returns the error of a call, with an explanation if the call could never end."""
    text = _CIRCLES.get(entry.group) if entry is not None else None
    return error if text is None else Aborted(text)


Note = dict[str, Any]


def _edges(rank: int, notes: dict[int, Note]) -> Iterator[tuple[int, list[Any]]]:
    """Yields the ranks that a rank waits for, because they have not handed in its call, with that call."""
    note = notes.get(rank)
    for wait in note["waits"] if note is not None and note["is_waiting"] else ():
        for peer in wait["ranks"]:
            counts = notes[peer]["counts"] if peer in notes else {}
            # A group that it does not know belongs to an earlier process.
            if counts.get(wait["group"], wait["number"]) < wait["number"]:
                yield peer, wait


def _circle(rank: int, notes: dict[int, Note]) -> list[tuple[int, Any]]:
    """Returns ranks, with their calls, of which each waits for the next and the last for the first. This rank waits
    for them, or is one of them.
    """
    way: list[tuple[int, Any]] = []
    over = set()

    def search(rank: int) -> list[tuple[int, Any]]:
        over.add(rank)
        for peer, wait in _edges(rank, notes):
            way.append((rank, wait))
            on_the_way = [number for number, (before, _) in enumerate(way) if before == peer]
            found = way[on_the_way[0] :] if on_the_way else [] if peer in over else search(peer)
            if found:
                return found
            way.pop()
        return []

    return search(rank)


def _named(wait: Any) -> str:
    ranks = ", ".join(map(str, wait["ranks"]))
    return f"{wait['name']} (call {wait['number']} of group {wait['of']}, ranks {ranks})"


class _Watch:
    """The polling thread of this process."""

    def __init__(self, store: dist.Store, rank: int) -> None:
        self._store, self._rank = store, rank
        self._ends = threading.Event()
        self._looks = 0
        # The last note, and the poll since which it has not changed.
        self._said: Note = {}
        # For each rank: what its note said, and the poll in which it first said so.
        self._since: dict[int, tuple[str, int]] = {}
        self._logged: Entry | None = None
        # The groups whose cycles this process knows, and the poll in which it learned of them.
        self._known: dict[str, int] = {}
        self._thread = threading.Thread(target=self._run, name="earlybird waits", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ends.set()
        self._thread.join(_PAUSE)

    def _run(self) -> None:
        while not self._ends.wait(_PAUSE):
            # The store ends with the process that hosts it.
            with contextlib.suppress(RuntimeError):
                self._look()

    def _look(self) -> None:
        note, oldest = self._note()
        if not note["waits"] and not self._said.get("waits"):
            return
        self._said = note
        self._looks += 1
        note["looks"] = self._looks
        self._store.set(self._key(self._rank), json.dumps(note))
        self._end_calls_in_circles(note)
        if oldest is None or oldest.group not in _GROUPS or oldest.group in self._known:
            return
        notes = {self._rank: note}
        own = next(wait for wait in note["waits"] if wait["group"] == oldest.group)
        if not self._is_first(own, notes):
            return
        self._read(notes)
        circle = _circle(self._rank, notes)
        if circle and all(self._is_lasting(rank, notes[rank]) for rank, _ in circle):
            self._tell(circle)
        elif self._logged != oldest and time.monotonic() - oldest.since > _LONG:
            self._logged = oldest
            self._log(own, notes)

    def _note(self) -> tuple[Note, Entry | None]:
        """Returns what this process writes, and the call in which it has waited longest."""
        with _LOCK:
            callers = [list(entries) for thread, entries in _CALLERS.items() if thread.is_alive()]
            # Threads that have made no call may make their first one, except daemons such as those of a data loader.
            may_call = any(not thread.daemon and thread not in _CALLERS for thread in threading.enumerate())
        now = time.monotonic()
        entries = [entry for entries in callers for entry in entries[-1:] if now - entry.since >= _PAUSE]
        waits = []
        for entry in entries:
            group = _GROUPS.get(entry.group)
            ranks, name = (group.ranks(), group.group_name) if group is not None else ([], "")
            waits.append({"group": entry.group, "number": entry.number, "name": entry.name, "of": name, "ranks": ranks})
        counts = {key: group.handed_in for key, group in list(_GROUPS.items())}
        is_waiting = not may_call and all(callers)
        oldest = min(entries, key=lambda entry: entry.since, default=None)
        return {"is_waiting": is_waiting, "waits": waits, "counts": counts}, oldest

    def _end_calls_in_circles(self, note: Note) -> None:
        for key in {wait["group"] for wait in note["waits"]}:
            place = self._place(key)
            if key not in self._known and self._store.check([place]):
                self._known[key] = self._looks
                _CIRCLES[key] = self._store.get(place).decode()
            group = _GROUPS.get(key)
            if group is not None and self._looks >= self._known.get(key, self._looks) + 2:
                group.give_up(_CIRCLES[key])

    def _key(self, rank: int) -> str:
        return f"earlybird/waits/{rank}"

    def _place(self, group: str) -> str:
        return f"earlybird/waits/in a circle/{group}"

    def _note_of(self, rank: int, notes: dict[int, Note]) -> Note | None:
        """Returns the note of a rank; ``None`` if it has written none yet."""
        if rank not in notes and self._store.check([self._key(rank)]):
            notes[rank] = json.loads(self._store.get(self._key(rank)))
        return notes.get(rank)

    def _is_first(self, own: Any, notes: dict[int, Note]) -> bool:
        """Returns whether this is the lowest rank that waits in its call, so that not all ranks of a large group read
        all notes.
        """
        for rank in own["ranks"]:
            if rank == self._rank:
                break
            note = self._note_of(rank, notes)
            if note is not None and own in note["waits"]:
                return False
        return True

    def _read(self, notes: dict[int, Note]) -> None:
        """Adds the notes of the ranks for which some of these wait."""
        left = list(notes)
        while left:
            for wait in notes[left.pop()]["waits"]:
                for peer in wait["ranks"]:
                    if peer not in notes and self._note_of(peer, notes) is not None:
                        left.append(peer)

    def _is_lasting(self, rank: int, note: Note) -> bool:
        said = json.dumps({key: value for key, value in note.items() if key != "looks"}, sort_keys=True)
        before, look = self._since.get(rank, ("", 0))
        if before != said:
            self._since[rank] = (said, note["looks"])
            return False
        return bool(note["looks"] >= look + 2)

    def _tell(self, circle: list[tuple[int, Any]]) -> None:
        others = [*circle[1:], circle[0]]
        said = [
            f"rank {rank} is in {_named(wait)}, which rank {other} has not made"
            for (rank, wait), (other, _) in zip(circle, others, strict=True)
        ]
        text = f"ranks wait for each other: {'; '.join(said)}. All ranks make the calls of several groups in one order"
        for key in {wait["group"] for _, wait in circle} | {wait["group"] for wait in self._said["waits"]}:
            self._store.set(self._place(key), text)

    def _log(self, own: Any, notes: dict[int, Note]) -> None:
        parts = []
        for peer in own["ranks"]:
            note = notes.get(peer, {"waits": [], "counts": {}})
            if note["counts"].get(own["group"], 0) < own["number"]:
                there = " and ".join(_named(wait) for wait in note["waits"])
                parts.append(f"rank {peer} has not made it, and " + (f"is in {there}" if there else "waits in no call"))
        _LOG.warning("%s has waited for %d s: %s", _named(own), _LONG, "; ".join(parts) or "all ranks are in it")


_WATCH: _Watch | None = None


def watch(group: EarlybirdProcessGroup, key: str, store: dist.Store) -> None:
    """Watches the calls of a group, whose key is the same on all ranks."""
    global _WATCH
    _GROUPS[key] = group
    if dist.is_initialized():
        if _WATCH is None:
            _WATCH = _Watch(_base(store), dist.get_rank())
        return
    # The group of all ranks, which torch does not know yet; there may have been an earlier one.
    if _WATCH is not None:
        _WATCH.end()
    _WATCH = _Watch(_base(store), group.rank())


@atexit.register
def _end() -> None:
    if _WATCH is not None:
        _WATCH.end()
