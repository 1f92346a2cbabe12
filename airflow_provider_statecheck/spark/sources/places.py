"""Where the files of a source are: a directory, a file or a pattern, as a user writes it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.storage.uris import LOCAL_SCHEMES, redact, scheme_of

_WILDCARD = re.compile(r"[*?\[]")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True, slots=True)
class Place:
    """A directory or a file, of which a pattern may choose a part."""

    root: str
    """Absolute URI without wildcards and without a slash at its end."""
    pattern: str = ""
    """What follows it; ``*`` stays within a name, ``**`` does not."""

    def chooses(self, below: str) -> bool:
        """Tell whether a file is meant, directly or by a directory that it is in."""
        if not self.pattern:
            return True
        parts = below.split("/")
        expression = _expression(self.pattern)
        return any(expression.fullmatch("/".join(parts[:length])) for length in range(1, len(parts) + 1))


def places_of(paths: Any) -> tuple[Place, ...]:
    """
    Return the places that a user names by one path or several.

    :raises InvalidConfigurationError: for a path that is empty, relative with a scheme, or no path.
    """
    several = paths if isinstance(paths, Sequence) and not isinstance(paths, str) else [paths]
    if not several:
        raise InvalidConfigurationError("Expected a path to read, found none.")
    return tuple(_place(path) for path in several)


def _place(path: Any) -> Place:
    text = os.fspath(path).strip() if isinstance(path, str | os.PathLike) else ""
    if not isinstance(text, str) or not text:
        raise InvalidConfigurationError(f"Expected a path or a URI such as s3://lake/orders/, found {path!r}.")
    parts = _absolute(text).split("/")
    # The scheme and the host take no wildcards.
    first = next((i for i, part in enumerate(parts) if i > 2 and _WILDCARD.search(part)), len(parts))
    root = "/".join(parts[:first]).rstrip("/")
    if not _SCHEME.match(root) or _WILDCARD.search(parts[2]):
        raise InvalidConfigurationError(
            f"Expected a directory or a bucket before any wildcard, found {redact(text)!r}."
        )
    return Place(root, "/".join(parts[first:]))


def _absolute(text: str) -> str:
    if not _SCHEME.match(text):
        return f"file://{Path(text).expanduser().absolute()}"
    scheme, rest = scheme_of(text), text.partition("://")[2].rstrip("/")
    if scheme in LOCAL_SCHEMES:
        if not rest.startswith("/"):
            raise InvalidConfigurationError(
                f"Expected a local path with three slashes as in file:///data/orders, found {redact(text)!r}."
            )
        return f"file://{rest}"
    return f"{scheme}://{rest}"


def _expression(pattern: str) -> re.Pattern[str]:
    parts = [_segment(part) for part in pattern.split("/")]
    joined = "/".join(parts)
    return re.compile(joined.replace(f"{_ANY}/", f"(?:{_ANY}/)?"), re.DOTALL)


_ANY = ".*"


def _segment(part: str) -> str:
    if part == "**":
        return _ANY
    pieces = re.split(r"(\*|\?|\[[^\]]+\])", part)
    return "".join({"*": "[^/]*", "?": "[^/]"}.get(piece) or _characters(piece) for piece in pieces)


def _characters(piece: str) -> str:
    if not (piece.startswith("[") and piece.endswith("]") and len(piece) > 2):
        return re.escape(piece)
    inner = piece[1:-1].replace("\\", "\\\\")
    return f"[^{inner[1:]}]" if inner[0] in "!^" else f"[{inner}]"
