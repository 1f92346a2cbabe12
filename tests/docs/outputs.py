"""Outputs that pages show, compared with what is printed."""

from __future__ import annotations

import re
from collections.abc import Iterator

_VARYING = re.compile(
    r"(?P<time>\d+(?:\.\d+)? (?:ms|s|min|h)\b)|(?P<number>\d+(?:[.,]\d+)*)|(?P<rest>…)|(?P<space>[ \t]+)"
)
_PATTERNS = {
    "time": r"\d+(?:\.\d+)? (?:ms|s|min|h)",
    "number": r"\d+(?:[.,]\d+)*",
    "rest": ".*",
    "space": r"\s+",
}


def lines_missing(shown: str, printed: str) -> list[str]:
    """
    Return the lines of a page that were not printed in this order.

    Numbers, and the widths of columns, may differ; ``…`` is any text. What is printed in between is no difference.
    """
    lines = iter(printed.splitlines())
    return [line for line in shown.splitlines() if line.strip() and not _is_printed(line, lines)]


def _is_printed(line: str, printed: Iterator[str]) -> bool:
    pattern = _pattern(line.strip())
    return any(pattern.search(each) for each in printed)


def _pattern(line: str) -> re.Pattern[str]:
    parts, end = [], 0
    for found in _VARYING.finditer(line):
        parts += [re.escape(line[end : found.start()]), _PATTERNS[str(found.lastgroup)]]
        end = found.end()
    return re.compile("".join([*parts, re.escape(line[end:])]))
