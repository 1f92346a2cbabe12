"""
Errors of Spark jobs as those of this package: the error that ended a task, and that of a disk.

Spark gives the driver the text of an error, from a JVM or from the Python of a task, whose class decides about a retry.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_statecheck import exceptions
from airflow_provider_statecheck.exceptions import StateCheckError, StorageError
from airflow_provider_statecheck.storage.uris import redact

log = logging.getLogger(__name__)
_TRACEBACK = "Traceback (most recent call last):\n"
_JVM_TRACE = re.compile(r"\n\s*(JVM stacktrace:|at [\w.$]+\()")
_OWN = re.compile(rf"{re.escape(exceptions.__name__)}\.(\w+): (.*)", re.DOTALL)
# Java's file streams name the file before the error; Hadoop names no error if it cannot create a directory.
_OF_A_DISK = re.compile(
    r"no space left on device|disk quota exceeded|read-only file system|mkdirs failed to create", re.IGNORECASE
)
_CLASS = re.compile(r".*\b[\w.$]+(?:Exception|Error): ")
_SHOWN_CHARACTERS = 300


@contextmanager
def task_errors_raised() -> Iterator[None]:
    """
    Replace Spark's error about a task by the error of this package that ended the task.

    :raises StateCheckError: if such an error ended the task.
    """
    try:
        yield
    except StateCheckError:
        raise
    except Exception as error:
        found = _own_error_in(str(error))
        if found is None:
            raise
        raise found from error


@contextmanager
def disk_failures_named(uri: str) -> Iterator[None]:
    """
    Replace Spark's error about a disk that is full or read-only, or whose quota is used up.

    :param uri: Directory that Spark writes to, in addition to its local directories.
    :raises StorageError: if such a disk caused the error.
    """
    try:
        yield
    except StateCheckError:
        raise
    except Exception as error:
        reason = _disk_failure_in(error)
        if reason is None:
            raise
        log.debug("A disk did not take what Spark wrote.", exc_info=True)
        # Without the cause: its hundreds of lines of JVM trace would hide this message.
        raise StorageError(
            f"Expected disks that take what Spark writes, found: {reason}, in {redact(uri)} or in Spark's local directories "
            "(spark.local.dir); free some space, raise the quota or make the disk writable, then retry. Older checkpoints are "
            "unaffected."
        ) from None


def _own_error_in(text: str) -> StateCheckError | None:
    _, traceback, last = text.rpartition(_TRACEBACK)
    lines = last.split("\n") if traceback else []
    # The lines of frames are indented; the one with the class and the message is not.
    begin = next((number for number, line in enumerate(lines) if not line.startswith(" ")), len(lines))
    found = _OWN.match(_JVM_TRACE.split("\n".join(lines[begin:]))[0].rstrip())
    kind: object = getattr(exceptions, found[1], None) if found else None
    if found is None or not isinstance(kind, type) or not issubclass(kind, StateCheckError):
        return None
    return kind(found[2])


def _disk_failure_in(error: BaseException | None) -> str | None:
    while error is not None:
        text = f"{error}\n{getattr(error, '_stackTrace', '')}"
        line = next((line for line in text.splitlines() if _OF_A_DISK.search(line)), None)
        if line is not None:
            return _CLASS.sub("", line).strip().removeprefix("Caused by: ").rstrip(".")[:_SHOWN_CHARACTERS]
        error = error.__cause__
    return None
