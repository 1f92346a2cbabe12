"""
Text for terminals and logs.

Names of jobs, operators, steps and items come from users, and so do values and error texts. An escape sequence in one
of them would set the clipboard or the title of an administrator's terminal, or hide what a command is about to delete;
a line break would forge a line of a log. Commands and loggers therefore show such characters as escapes, here and
nowhere else. JSON and YAML stay exact, as both have escapes of their own.
"""

from __future__ import annotations

import re
from typing import Final

_CONTROLS: Final = r"\x00-\x1f\x7f-\x9f"
_INVISIBLE: Final = r"\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
"""Marks that change the direction of the text around them, or take no space."""
_UNPRINTABLE: Final = re.compile(f"[{_CONTROLS}{_INVISIBLE}\ud800-\udfff]")
_UNPRINTABLE_IN_LINES: Final = re.compile(f"(?![\n\t])[{_CONTROLS}{_INVISIBLE}\ud800-\udfff]")


def counted(number: int, noun: str) -> str:
    """
    Return a number with its noun, such as ``1 job`` or ``1,200 jobs``.

    The plural of the noun ends in ``s`` or ``ies``.
    """
    if number == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if re.search("[^aeiou]y$", noun) else f"{noun}s"
    return f"{number:,} {plural}"


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
    """Several printable lines, for a message of a log that has more than one."""

    __slots__ = ()
