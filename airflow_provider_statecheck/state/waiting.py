"""
Reads that do not wait, for event loops.

A read of cached data takes microseconds, less than the way to a thread and back. Whether everything is cached is known only
during the read, so the places that would wait for a file, for rows or for another thread call :func:`about_to_wait`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_may_wait: ContextVar[bool] = ContextVar("_may_wait", default=True)


class WouldWaitError(Exception):
    """A read without waiting needs something that is not cached; repeat it in a thread."""


@contextmanager
def without_waiting() -> Iterator[None]:
    """Let the reads of this context raise :class:`WouldWaitError` where they would wait."""
    token = _may_wait.set(False)
    try:
        yield
    finally:
        _may_wait.reset(token)


def may_wait() -> bool:
    """Return whether the reads of this context may wait."""
    return _may_wait.get()


def about_to_wait() -> None:
    """
    Announce that a read is about to wait.

    :raises WouldWaitError: in a context without waiting.
    """
    if not _may_wait.get():
        raise WouldWaitError
