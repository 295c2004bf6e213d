"""Classes that torch.compile must not compile."""

from __future__ import annotations

import inspect


def never_compiled(*classes: type) -> None:
    """Makes the compiler run the methods of these classes, and all that they call, uncompiled.

    The reducer of ``torch.compile(DistributedDataParallel(...))`` calls a group while the compiler inspects every
    frame, and the compiler cannot trace a group. ``torch.compiler.disable`` would have the same effect. But it imports
    the compiler, which takes seconds, and adds 8 µs to each call.
    """
    try:
        from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
    except ImportError:
        # Before torch 2.8. There the compiler continues by itself after what it cannot trace.
        return
    skipped = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    for of in classes:
        for _, function in inspect.getmembers(of, inspect.isfunction):
            if function.__module__.startswith("earlybird."):
                set_code_exec_strategy(function.__code__, skipped)
