"""Full disks: told before hours are computed for nothing, and named as what they are when they fill up all the same."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from airflow_provider_statecheck.exceptions import StateCheckError, StorageError
from airflow_provider_statecheck.storage.uris import redact

log = logging.getLogger(__name__)

UNKNOWN_SIZE_BYTES = 64 * 1024 * 1024
"""What must be free for a snapshot of which nothing is known yet."""
_SIGNS = ("no space left on device", "disk quota exceeded")


class Disk(Protocol):
    """What is needed of checkpoint storage."""

    base_uri: str

    def free_bytes(self) -> int | None:
        """Return how much space is left, ``None`` where the storage cannot tell."""
        ...


def require_room(storage: Disk, what: str, known_bytes: int | None) -> None:
    """
    Refuse to begin what will not fit; where the storage cannot tell, nothing is asked and nothing refused.

    :param storage: The checkpoint storage.
    :param what: The step, for messages.
    :param known_bytes: The size of this step's snapshot in an earlier try, or as estimated.
    :raises StorageError: Says how much was expected and how much is free.
    """
    shortage = shortage_of(storage, what, known_bytes)
    if shortage is not None:
        raise StorageError(shortage)


def shortage_of(storage: Disk, what: str, known_bytes: int | None) -> str | None:
    """Return what is wrong with the free space, or ``None``; a warning is logged where it gets near."""
    free = storage.free_bytes()
    if free is None:
        return None
    needed = UNKNOWN_SIZE_BYTES if known_bytes is None else known_bytes
    if free < needed:
        return (
            f"Expected at least {needed} bytes to be free for step {what} "
            f"({'a floor, its size is not known' if known_bytes is None else 'its size as known or estimated'}), found "
            f"{free} bytes in {redact(storage.base_uri)}; free some space or use a larger checkpoint_dir, then retry."
        )
    if free < 2 * max(needed, UNKNOWN_SIZE_BYTES):
        log.warning("Only %s bytes are free in %s, step %s may need %s.", free, redact(storage.base_uri), what, needed)
    return None


@contextmanager
def full_disk_named(uri: str) -> Iterator[None]:
    """
    Turn what Spark raises on a full disk into an error that says so.

    :param uri: The checkpoint directory.
    :raises StorageError: instead of an error that has a full disk at its bottom.
    """
    try:
        yield
    except StateCheckError:
        raise
    except Exception as error:
        if not _tells_of_full_disk(error):
            raise
        log.debug("The write that found no space", exc_info=True)
        # Without the cause: hundreds of lines of a JVM would bury the one that matters.
        raise StorageError(
            f"Expected room for a snapshot, found no space left on device, in {redact(uri)} or in Spark's own directories "
            f"(spark.local.dir). What was half written is removed and older checkpoints stay; free some space, then retry."
        ) from None


def _tells_of_full_disk(error: BaseException | None) -> bool:
    while error is not None:
        text = f"{error} {getattr(error, '_stackTrace', '')}".lower()
        if any(sign in text for sign in _SIGNS):
            return True
        error = error.__cause__
    return False
