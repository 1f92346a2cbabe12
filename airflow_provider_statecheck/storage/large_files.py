"""
Large files that one process reads one at a time.

Maintenance and servers work on several jobs at the same time, and what a hostile job wrote may take a hundred times the
usual memory. Each piece of their work is a block; only one block at a time holds what it has decoded from a large file,
until its end. Drivers, which read the files of their own job only, have no blocks.
"""

from __future__ import annotations

import ctypes
import gc
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from airflow_provider_statecheck.exceptions import RequestLimitError, errors_before

LARGE: Final = 1024 * 1024
"""Size in bytes above which a file is large."""
_FOREVER: Final = -1.0
_M_MMAP_THRESHOLD: Final = -3
"""Name of an option of ``mallopt`` in ``malloc.h``."""
_ONE = threading.Lock()


@dataclass(slots=True)
class _Block:
    seconds: float
    has_turn: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Threads of one block have one turn."""

    def wait(self) -> None:
        with self.lock:
            self.has_turn = self.has_turn or _ONE.acquire(timeout=self.seconds)
        if not self.has_turn:
            raise RequestLimitError(
                f"Expected to read a large file within {self.seconds:g} seconds, found that others are being read; "
                "send the request again later.",
                retry_after_seconds=self.seconds,
            )
        _return_large_pieces()


_block: ContextVar[_Block | None] = ContextVar("statecheck_large_files", default=None)


@contextmanager
def one_large_at_a_time(seconds: float = _FOREVER) -> Iterator[None]:
    """
    Let a block hold large files only while no other block does. A block within another one belongs to it.

    :param seconds: Longest wait for the others; by default any.
    """
    if _block.get() is not None:
        yield
        return
    block = _Block(seconds)
    token = _block.set(block)
    try:
        yield
    except BaseException as error:
        if block.has_turn:
            # The calls of the block have ended, and must hold nothing.
            for each in errors_before(error):
                traceback.clear_frames(each.__traceback__)
        raise
    finally:
        _block.reset(token)
        if block.has_turn:
            _let_go()
            _ONE.release()


@cache
def _return_large_pieces() -> None:
    """
    Let the C library take each large piece of memory from the system and return it when it is freed.

    Otherwise it raises the limit for that with each piece, and each thread keeps what it once had for itself: eight
    threads that read in turn took three times the memory of one.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, LARGE // 4)


def _let_go() -> None:
    """Return the memory of a block to the system, before the next one takes as much in another thread."""
    # Tracebacks that were dropped refer to what their frames held, in cycles.
    gc.collect()
    # The C library keeps freed memory for the thread that had it.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def about_to_hold(size: int) -> None:
    """
    Announce that a block is about to read and decode a file; outside of blocks, any number is read.

    :param size: Size of the file in bytes.
    :raises RequestLimitError: if other blocks hold large files for longer than this one may wait.
    """
    block = _block.get()
    if size > LARGE and block is not None:
        block.wait()
