"""
JSON from storage: read within bounds, with one error for all that cannot be read.

Any job writes below a checkpoint directory, and commands and servers read the files of all jobs. JSON has no bounds of
its own: it may be nested deeper than the interpreter's stack, have numbers that no column holds, or take twenty times
its size in memory. All JSON that is read from storage is therefore read here.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from airflow_provider_statecheck.exceptions import CorruptStateError
from airflow_provider_statecheck.storage.uris import redact

DEEPEST: Final = 256
"""Deepest nesting of arrays and objects; that of state values, which may be 64 collections deep, is below 200."""
MOST_VALUES: Final = 1_000_000
"""Largest number of values in one text. An empty array has three bytes as JSON, and sixty-four in memory."""
UNDECODABLE: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, zlib.error)
"""Errors of code that decodes values of a form that it did not write."""

# A text without an end reaches to that of the data, and nothing is matched twice: otherwise the search would start
# again at each quote, and take hours for a megabyte.
_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_WHOLE_TEXTS = re.compile(rb'(?:[^"]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
_PIECE = 1024 * 1024
_TO_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(each for each in range(256) if each not in b"[]{}")
_DIGITS = 20
_HIGHEST = 2**64


def read_json(data: bytes | str, uri: str, *, is_bounded: bool = True) -> Any:
    """
    Return the values of a JSON text.

    :param uri: URI of its file, for messages.
    :param is_bounded: Whether the number of values is bounded.
    :raises CorruptStateError: if it is no JSON, is nested too deeply, has too many values, or a number that is not
        finite or above 64 bits.
    """
    try:
        return parse(data, is_bounded=is_bounded)
    except (ValueError, RecursionError) as error:
        raise CorruptStateError(
            f"Expected JSON in {redact(uri)}, found other content: {error}.", uri=redact(uri)
        ) from error


def parse(data: bytes | str, *, is_bounded: bool = True) -> Any:
    """
    Return the values of a JSON text within the bounds of this module.

    :param is_bounded: Whether the number of values is bounded.
    :raises ValueError: if it is not within them, or no JSON.
    """
    text = data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass")
    if is_bounded:
        require_bounds(text)
    require_flat(text)
    return json.loads(data, parse_int=_whole, parse_float=_finite, parse_constant=_refuse)


@contextmanager
def decoding(expected: str) -> Iterator[None]:
    """
    Report values from storage that a block cannot decode.

    :param expected: What the values were expected to be.
    :raises CorruptStateError: if the block raises an error for invalid values.
    """
    try:
        yield
    except UNDECODABLE as error:
        raise CorruptStateError(
            f"Expected {expected}, found invalid data or those of another source: {error!r:.500}; restore another "
            "checkpoint, or start without the state."
        ) from error


def require_bounds(data: bytes, longest: int | None = None, most_values: int = MOST_VALUES) -> None:
    """
    Raise an error for a JSON text that would take too much memory or time.

    :param longest: Largest size in bytes; by default the caller has bounded it.
    :param most_values: Largest number of values.
    :raises ValueError: if it is too long, or has too many values.
    """
    if longest is not None and len(data) > longest:
        raise ValueError(f"{len(data)} bytes instead of at most {longest}")
    if data.count(b",") + data.count(b"[") + data.count(b"{") > most_values:
        raise ValueError(f"more than {most_values} values")


def require_flat(data: bytes) -> None:
    """
    Raise an error for a JSON text that would end the stack of the interpreter.

    :raises ValueError: if it is nested too deeply.
    """
    if data.count(b"[") + data.count(b"{") > DEEPEST and _is_deep(data):
        raise ValueError(f"nested more than {DEEPEST} deep")


def _is_deep(data: bytes) -> bool:
    # Each pass removes the innermost arrays and objects, at the speed of C.
    brackets = _brackets(data)
    for _ in range(DEEPEST):
        left = brackets.replace(b"[]", b"")
        if len(left) == len(brackets):
            return False  # none are left, or they are not in pairs, which the parser reports
        brackets = left
    return bool(brackets)


def _brackets(data: bytes) -> bytes:
    """Return the brackets outside of texts, piece by piece: what is around many texts takes ten times its size."""
    found, start = bytearray(), 0
    while start < len(data):
        end = _end_of(_WHOLE_TEXTS.match(data, start, start + _PIECE))
        if end == start:  # a text that is longer than a piece
            end = _end_of(_TEXT.match(data, start))
        found += _TEXT.sub(b"", data[start:end]).translate(_TO_BRACKETS, _NO_BRACKETS)
        start = end
    return bytes(found)


def _end_of(found: re.Match[bytes] | None) -> int:
    assert found is not None  # noqa: S101 - both patterns match at each place that they are asked for
    return found.end()


def _whole(text: str) -> int:
    number = int(text) if len(text) <= _DIGITS + 1 else _HIGHEST
    if not -_HIGHEST < number < _HIGHEST:
        raise ValueError("a whole number above 64 bits")
    return number


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number that is not finite")
    return number


def _refuse(text: str) -> float:
    raise ValueError(f"the number {text}")
