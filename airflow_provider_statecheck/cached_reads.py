"""
LRU cache with a bound in bytes, and reads that do not wait, for event loops.

A read of cached data takes microseconds, less than the way to a thread and back. Whether everything is cached is known
only during the read, so the places that would wait for a file, for rows or for another thread call
:func:`about_to_wait`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
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

    :raises WouldWaitError: if the context forbids waiting.
    """
    if not _may_wait.get():
        raise WouldWaitError


class LruCache(Generic[K, V]):
    """
    LRU cache with a bound in bytes, safe for threads.

    :param capacity_bytes: Maximum size of all cached values in bytes.
    :param size_of: Returns the size of a value in bytes; called once for each value, and by :meth:`measure`.
    """

    def __init__(self, capacity_bytes: int, size_of: Callable[[V], int]) -> None:
        self._capacity = capacity_bytes
        self._size_of = size_of
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._loads: dict[K, Future[V]] = {}
        self._lock = Lock()
        self.nbytes = 0
        """Size of all cached values in bytes."""

    def get(self, key: K) -> V | None:
        """Return a cached value, or ``None``."""
        with self._lock:
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def get_or_load(self, key: K, load: Callable[[], V]) -> V:
        """
        Return a cached value, or load and cache it.

        Threads that miss the same value at once share one call of ``load``, and its error.
        """
        value = self.get(key)
        if value is not None:
            return value
        about_to_wait()
        mine: Future[V] = Future()
        with self._lock:
            running = self._loads.setdefault(key, mine)
        return self._load(key, mine, load) if running is mine else running.result()

    def put(self, key: K, value: V) -> None:
        """Cache a value instead of an earlier one, unless it exceeds the capacity."""
        size = self._size_of(value)
        with self._lock:
            self._remove(key)
            if size > self._capacity:
                return
            self._values[key] = value, size
            self.nbytes += size
            while self.nbytes > self._capacity:
                self._remove(next(iter(self._values)))

    def values(self) -> tuple[V, ...]:
        """Return all cached values."""
        with self._lock:
            return tuple(value for value, _ in self._values.values())

    def measure(self, key: K) -> None:
        """Measure a value that has grown, if it is cached."""
        value = self.get(key)
        if value is not None:
            self.put(key, value)

    def remove(self, key: K) -> None:
        """Remove a value, if it is cached."""
        with self._lock:
            self._remove(key)

    def clear(self) -> None:
        """Remove all values."""
        with self._lock:
            self._values.clear()
            self.nbytes = 0

    def _remove(self, key: K) -> None:
        _, size = self._values.pop(key, (None, 0))
        self.nbytes -= size

    def _load(self, key: K, future: Future[V], load: Callable[[], V]) -> V:
        try:
            value = load()
            self.put(key, value)
            future.set_result(value)
        except BaseException as error:
            future.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._loads[key]
        return value
