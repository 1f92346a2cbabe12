"""
Text for terminals and logs.

Names of jobs, operators, steps and items come from users, and so do values and error texts. An escape sequence in one of
them would set the clipboard or the title of an administrator's terminal, or hide what a command is about to delete; a line
break would forge a line of a log. Commands and loggers therefore show such characters as escapes, here and nowhere else.
JSON and YAML stay exact, as both have escapes of their own.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Mapping
from typing import Any, Final

_PACKAGE: Final = __name__.partition(".")[0]
_CONTROLS: Final = r"\x00-\x1f\x7f-\x9f"
_INVISIBLE: Final = r"\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
"""Marks that change the direction of the text around them, or take no space."""
_UNPRINTABLE: Final = re.compile(f"[{_CONTROLS}{_INVISIBLE}\ud800-\udfff]")
_UNPRINTABLE_IN_LINES: Final = re.compile(f"(?![\n\t])[{_CONTROLS}{_INVISIBLE}\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Return a text in one line, with escapes such as ``\x1b`` and ``\n`` for all that is no visible character."""
    return text if text.isprintable() else _UNPRINTABLE.sub(_escape, text)


def printable_lines(text: str) -> str:
    """Return a text as :func:`printable`, but with its line breaks and tabs."""
    return text if text.isprintable() else _UNPRINTABLE_IN_LINES.sub(_escape, text)


def is_printable(text: str) -> bool:
    """Return whether a text has no character that :func:`printable` would replace."""
    return text.isprintable() or _UNPRINTABLE.search(text) is None


def _escape(found: re.Match[str]) -> str:
    return found.group().encode("unicode_escape").decode()


class Lines(str):
    """Several lines, each of which is printable, for a message of a log that has more than one."""

    __slots__ = ()


class _Shown:
    """An argument of a message whose text is not printable as it is."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return printable(str(self._value))

    def __repr__(self) -> str:
        return printable(repr(self._value))


def _shown(value: Any) -> Any:
    if value is None or isinstance(value, int | float | Lines):
        return value
    try:
        return value if is_printable(str(value)) else _Shown(value)
    except Exception:
        return value  # logging reports an argument without a text when it formats the message


def guard_logs() -> None:
    """Let all loggers of this package write printable text, whatever the arguments of their messages are."""
    make = logging.getLogRecordFactory()
    if getattr(make, "is_guarded", False):
        return

    def made(name: str | None, *args: Any, **options: Any) -> logging.LogRecord:
        record = make(name, *args, **options)
        # A record that is made from another one has no name at first.
        if name is not None and f"{name}.".startswith(f"{_PACKAGE}."):
            _guard(record)
        return record

    made.is_guarded = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(made)


def _guard(record: logging.LogRecord) -> None:
    if isinstance(record.args, Mapping):
        record.args = {key: _shown(value) for key, value in record.args.items()}
    elif record.args:
        record.args = tuple(map(_shown, record.args))
    error = record.exc_info[1] if record.exc_info else None
    if error is not None and isinstance(_shown(error), _Shown):
        # A formatter would write the text of the error as it is.
        record.exc_text = printable_lines("".join(traceback.format_exception(error))).rstrip("\n")
        record.exc_info = None
