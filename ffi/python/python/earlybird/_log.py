"""The library's messages in Python's ``logging``, as those of the logger ``earlybird``."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading

from . import _earlybird

_LOGGER = logging.getLogger("earlybird")

_LEVELS = {"trace": 5, "debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}

_THREAD: threading.Thread | None = None


def start() -> None:
    """Begins to pass messages on, once: those of the level of the logger now, or of ``EARLYBIRD_LOG`` if that is set."""
    global _THREAD
    if _THREAD is not None:
        return
    _earlybird.start_log(min(_LOGGER.getEffectiveLevel(), 40))
    chosen = os.environ.get("EARLYBIRD_LOG", "").lower()
    if chosen in _LEVELS:
        # Who asks for messages by the environment sees them, also where the program has no handlers.
        _LOGGER.setLevel(_LEVELS[chosen])
        if not _LOGGER.hasHandlers():
            _LOGGER.addHandler(logging.StreamHandler())
    _THREAD = threading.Thread(target=_pass_on, name="earlybird log", daemon=True)
    _THREAD.start()
    atexit.register(_end, _THREAD, os.getpid())


def _pass_on() -> None:
    while (message := _earlybird.next_message()) is not None:
        # A filter of the program may raise: the messages that follow are passed on all the same.
        with contextlib.suppress(Exception):
            _LOGGER.log(*message)


def _end(thread: threading.Thread, process: int) -> None:
    # A forked child has no such thread. One that is held up by a handler is given up.
    if os.getpid() == process:
        _earlybird.end_log()
        thread.join(timeout=5)
