"""Texts in messages and rows: replacement of characters that cannot be stored, and truncation."""

from __future__ import annotations

import json
from typing import Any

LONGEST_TEXT = 2000
"""Maximum number of characters of an error text in a message."""


def storable_text(text: str) -> str:
    """
    Truncate an error text and replace the characters that a database cannot store.

    An error may quote data that contains U+0000 or a lone surrogate, and the API limits the size of a message.
    """
    return text[:LONGEST_TEXT].replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def truncated(text: str, max_bytes: int) -> str:
    """Truncate a text to its maximum size in a row; an ellipsis replaces the rest."""
    if json_size(text) <= max_bytes:
        return text
    prefix = text[:max_bytes]
    while json_size(f"{prefix}…") > max_bytes:
        prefix = prefix[: len(prefix) * 9 // 10]
    return f"{prefix}…"


def json_size(value: Any) -> int:
    """Return the size of a value in a row as JSON, in which a character takes up to twelve bytes."""
    return len(json.dumps(value))
