"""Checks of free space before a snapshot is written, and errors for full disks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from airflow_provider_statecheck.exceptions import StateCheckError, StorageError
from airflow_provider_statecheck.storage.uris import redact

log = logging.getLogger(__name__)

UNKNOWN_SIZE_BYTES = 64 * 1024 * 1024
"""Least free space for a snapshot of unknown size."""
_FULL_DISK_MESSAGES = ("no space left on device", "disk quota exceeded")


class Disk(Protocol):
    """Part of the checkpoint storage that the checks use."""

    base_uri: str

    def free_bytes(self) -> int | None:
        """Return the free space in bytes, ``None`` if the storage does not report it."""
        ...


def require_room(storage: Disk, step_name: str, known_bytes: int | None) -> None:
    """
    Check that there is free space for the snapshot of a step, if the storage reports it.

    :param storage: Checkpoint storage.
    :param step_name: Name of the step, for messages.
    :param known_bytes: Size of the step's last snapshot, or its estimated size; ``None`` if unknown.
    :raises StorageError: if there is too little space.
    """
    shortage = shortage_of(storage, step_name, known_bytes)
    if shortage is not None:
        raise StorageError(shortage)


def shortage_of(storage: Disk, step_name: str, known_bytes: int | None) -> str | None:
    """Return an error message if there is too little space, else ``None``; log a warning if space is low."""
    free = storage.free_bytes()
    if free is None:
        return None
    needed = UNKNOWN_SIZE_BYTES if known_bytes is None else known_bytes
    if free < needed:
        return (
            f"Expected at least {needed} free bytes for step {step_name} "
            f"({'the minimum for an unknown size' if known_bytes is None else 'its known or estimated size'}), found "
            f"{free} bytes in {redact(storage.base_uri)}; free some space or use a larger checkpoint_dir, then retry."
        )
    if free < 2 * max(needed, UNKNOWN_SIZE_BYTES):
        uri = redact(storage.base_uri)
        log.warning("Only %s bytes are free in %s; step %s may need %s bytes.", free, uri, step_name, needed)
    return None


@contextmanager
def full_disk_named(uri: str) -> Iterator[None]:
    """
    Replace Spark's error on a full disk by a :class:`StorageError`.

    :param uri: URI of the checkpoint directory.
    :raises StorageError: if a full disk caused the error.
    """
    try:
        yield
    except StateCheckError:
        raise
    except Exception as error:
        if not _is_full_disk(error):
            raise
        log.debug("A write failed on a full disk.", exc_info=True)
        # Without the cause: its hundreds of lines of JVM trace would hide this message.
        raise StorageError(
            f"Expected space for a snapshot, found no space left on device, in {redact(uri)} or in Spark's local directories "
            f"(spark.local.dir); free some space, then retry. Older checkpoints are unaffected."
        ) from None


def _is_full_disk(error: BaseException | None) -> bool:
    while error is not None:
        text = f"{error} {getattr(error, '_stackTrace', '')}".lower()
        if any(message in text for message in _FULL_DISK_MESSAGES):
            return True
        error = error.__cause__
    return False
