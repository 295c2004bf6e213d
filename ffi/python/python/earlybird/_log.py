"""Passes the library's messages to Python's ``logging``, as messages of the logger ``earlybird``."""

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
    """Starts to pass messages on, once. It passes those of the logger's level, or of ``EARLYBIRD_LOG`` if that is set.
    """
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
    # A user who asks for messages in the environment gets them, even if the program has no handlers.
    own = logging.StreamHandler()
    while (message := _earlybird.next_message()) is not None:
        level, text = message
        # A filter of the program may raise. Later messages are passed on nevertheless.
        with contextlib.suppress(Exception):
            if is_asked_for and not _LOGGER.hasHandlers():
                own.handle(_LOGGER.makeRecord(_LOGGER.name, level, "", 0, text, (), None))
            else:
                _LOGGER.log(level, text)


# Registered before the function that aborts the worlds of a failing program, and so called after it.
@atexit.register
def _end() -> None:
    # A forked child does not have this thread.
    if _THREAD is not None and os.getpid() == _PROCESS:
        _earlybird.end_log()
        _THREAD.join(timeout=5)
