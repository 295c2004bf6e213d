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

_LOCK = threading.Lock()
_THREAD: threading.Thread | None = None
_PROCESS = os.getpid()


def start() -> None:
    """Begins to pass messages on, once: those of the level of the logger now, or of ``EARLYBIRD_LOG`` if that is set."""
    global _THREAD
    with _LOCK:
        if _THREAD is not None:
            return
        _earlybird.start_log(min(_LOGGER.getEffectiveLevel(), 40))
        chosen = _LEVELS.get(os.environ.get("EARLYBIRD_LOG", "").lower())
        if chosen is not None:
            _LOGGER.setLevel(chosen)
        _THREAD = threading.Thread(target=_pass_on, args=(chosen is not None,), name="earlybird log", daemon=True)
        _THREAD.start()


def _pass_on(is_asked_for: bool) -> None:
    # Who asks for messages by the environment sees them, also where the program has no handlers.
    own = logging.StreamHandler()
    while (message := _earlybird.next_message()) is not None:
        level, text = message
        # A filter of the program may raise: the messages that follow are passed on all the same.
        with contextlib.suppress(Exception):
            if is_asked_for and not _LOGGER.hasHandlers():
                own.handle(_LOGGER.makeRecord(_LOGGER.name, level, "", 0, text, (), None))
            else:
                _LOGGER.log(level, text)


# Registered before what aborts the worlds of a program that fails, and so called after it.
@atexit.register
def _end() -> None:
    # A forked child has no such thread.
    if _THREAD is not None and os.getpid() == _PROCESS:
        _earlybird.end_log()
        _THREAD.join(timeout=5)
