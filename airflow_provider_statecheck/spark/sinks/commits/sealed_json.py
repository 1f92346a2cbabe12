"""
JSON files that contain a digest of their other fields.

They hold small records whose digest is in no row and in no other file. Without it, a changed byte could make another valid
record, such as one that names other files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from airflow_provider_statecheck.exceptions import CorruptStateError

_DIGEST = "sha256"


def seal(document: Mapping[str, Any]) -> bytes:
    """
    Return the content of a file; equal documents have equal contents.

    :param document: Plain JSON values with string keys.
    """
    return json.dumps({**document, _DIGEST: _digest(document)}, sort_keys=True, indent=1).encode()


def unseal(data: bytes, what: str, where: str) -> dict[str, Any]:
    """
    Return the document of a file after verifying its digest.

    :param what: Description of the document for error messages.
    :param where: Location of the file for error messages.
    :raises CorruptStateError: if the content is no sealed document, or was changed after it was written.
    """
    try:
        document: dict[str, Any] = json.loads(data)
        expected = str(document.pop(_DIGEST))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(what, where, repr(data[:100])) from error
    if (found := _digest(document)) != expected:
        raise damaged(f"{what} with the digest {expected[:12]}…", where, f"content with {found[:12]}…")
    return document


def damaged(expected: str, where: str, found: str) -> CorruptStateError:
    """Return the error for a file with other content than expected."""
    return CorruptStateError(
        f"Expected {expected} in {where}, found {found}; the file was changed after it was written. Restore the file from a "
        "backup, or delete the output of the sink together with its log and start over."
    )


def _digest(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
