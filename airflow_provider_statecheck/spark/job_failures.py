"""
The error that ended a task of Spark, as one of this package.

Spark gives the driver the text of an error in the Python of a task. Its class decides about a retry.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_statecheck import exceptions
from airflow_provider_statecheck.exceptions import StateCheckError

_TRACEBACK = "Traceback (most recent call last):\n"
_JVM_TRACE = re.compile(r"\n\s*(JVM stacktrace:|at [\w.$]+\()")
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
            raise
        raise found from error


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
