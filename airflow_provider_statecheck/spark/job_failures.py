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
_GROUP = "+ Exception Group "
"""What precedes the first line of the traceback of a group of errors, whose lines are all indented."""
_OF_LIBRARY = re.compile(
    r"/(?:site|dist)-packages/(?:airflow_provider_statecheck|pyspark)/|/pyspark\.zip/|/python/pyspark/|<frozen "
    r"|/airflow_provider_statecheck/(?:checkpoint|flink|formats|spark|state|storage)/"
)
_NEXT_OF_CHAIN = re.compile(
    r"\n\n(The above exception was the direct cause of the following exception"
    rf"|During handling of the above exception, another exception occurred):\n\n{re.escape(_TRACEBACK)}"
)
_MOST_LINES = 50
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

    Its causes follow. Spark's text has them in the other order, below the frames of Spark and of this package.

    :return: One text for each line, empty if Python raised no error in a task.
    """
    before, traceback, rest = text.partition(_TRACEBACK)
    if not traceback:
        return []
    if before.endswith(_GROUP):
        return _capped([*_without_libraries(rest.split("\n"))])
    first, *others = _NEXT_OF_CHAIN.split(rest)
    links = ["Caused by: " if link.startswith("The above") else "While handling: " for link in others[::2]]
    # Spark repeats the text of an error below its own frames.
    errors: dict[tuple[str, ...], str] = {}
    for begin, one in zip(("", *reversed(links)), (*reversed(others[1::2]), first), strict=True):
        errors.setdefault(_lines_of(one), begin)
    return _capped([line for lines, begin in errors.items() for line in _begun(begin, lines)])


def _begun(begin: str, lines: tuple[str, ...]) -> tuple[str, ...]:
    return (begin + lines[0], *lines[1:]) if lines else ()


def _capped(lines: list[str]) -> list[str]:
    more = len(lines) - _MOST_LINES
    return [*lines[:_MOST_LINES], f"… {more:,} more lines"] if more > 0 else lines


def _lines_of(traceback: str) -> tuple[str, ...]:
    """Return the message of one error, then its frames without those of libraries."""
    lines = traceback.split("\n")
    begin = _begin_of_message(lines)
    message = _message_of(lines[begin:])
    return (*message, *_without_libraries(lines[:begin])) if message else ()


def _begin_of_message(lines: list[str]) -> int:
    # The lines of frames are indented; the one with the class and the message is not.
    return next((number for number, line in enumerate(lines) if not line.startswith(" ")), len(lines))


def _message_of(lines: list[str]) -> list[str]:
    message = "\n".join(takewhile(lambda line: not _JVM_LINE.match(line.lstrip()), lines)).rstrip()
    return message.split("\n") if message else []


def _without_libraries(lines: list[str]) -> Iterator[str]:
    """Yield the lines of a traceback, or of one of a group, without the frames of libraries and empty lines."""
    hidden = -1
    for line in takewhile(lambda line: not _JVM_LINE.match(line.lstrip()), lines):
        indentation = len(line) - len(line.lstrip(" |"))
        if line[indentation:].startswith('File "'):
            hidden = indentation if _OF_LIBRARY.search(line) else -1
        elif indentation <= hidden:
            hidden = -1
        if hidden < 0 and line.strip("~^ |"):
            yield line


def _own_error_in(text: str) -> StateCheckError | None:
    _, _, rest = text.partition(_TRACEBACK)
    lines = _NEXT_OF_CHAIN.split(rest)[-1].split("\n")
    found = _OWN.match("\n".join(_message_of(lines[_begin_of_message(lines) :])))
    kind: object = getattr(exceptions, found[1], None) if found else None
    if found is None or not isinstance(kind, type) or not issubclass(kind, StateCheckError):
        return None
    return kind(found[2])
