"""
The error that ended a task of Spark, as one of this package.

Spark gives the driver the text of an error in the Python of a task. Its class decides about a retry.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile

from airflow_provider_statecheck import exceptions
from airflow_provider_statecheck.exceptions import StateCheckError

log = logging.getLogger(__name__)

_TRACEBACK = "Traceback (most recent call last):\n"
_FRAME = '  File "'
_OF_LIBRARY = re.compile(r"/(airflow_provider_statecheck|pyspark)/|<frozen ")
_JVM_LINE = re.compile(r"JVM stacktrace:|at [\w.$]+\(")
_OWN = re.compile(rf"{re.escape(exceptions.__name__)}\.(\w+): (.*)", re.DOTALL)


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
            for line in error_of_user_in(str(error)):
                log.error("%s", line)  # noqa: TRY400 - the traceback is that of Spark
            raise
        raise found from error


def error_of_user_in(text: str) -> list[str]:
    """
    Return the error that the user's Python raised in a task: its message with the place, then the user's own frames.

    Spark's text has them at the end, below the frames of Spark and of this package.

    :return: One text for each line, empty if Python raised no error in a task.
    """
    frames, message = _parts_of(text)
    own = [line for frame in frames if not _OF_LIBRARY.search(frame[0]) for line in frame]
    return [*message, *own] if message else []


def _parts_of(text: str) -> tuple[list[list[str]], list[str]]:
    """Return the frames of the last traceback in a text, each with its lines, and the lines of the message."""
    _, traceback, last = text.rpartition(_TRACEBACK)
    lines = last.split("\n") if traceback else []
    # The lines of frames are indented; the one with the class and the message is not.
    begin = next((number for number, line in enumerate(lines) if not line.startswith(" ")), len(lines))
    frames: list[list[str]] = []
    for line in lines[:begin]:
        if line.startswith(_FRAME):
            frames.append([])
        if frames and line.strip("~^ "):
            frames[-1].append(line)
    message = "\n".join(takewhile(lambda line: not _JVM_LINE.match(line.lstrip()), lines[begin:])).rstrip()
    return frames, message.split("\n") if message else []


def _own_error_in(text: str) -> StateCheckError | None:
    _, message = _parts_of(text)
    found = _OWN.match("\n".join(message))
    kind: object = getattr(exceptions, found[1], None) if found else None
    if found is None or not isinstance(kind, type) or not issubclass(kind, StateCheckError):
        return None
    return kind(found[2])
