"""Protocol between clients and the API: paths, the challenge, and errors."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_statecheck.exceptions import CoordinatorError, StateCheckError

MOUNT_PATH = "/statecheck"
VERSION_PATH = "/v1"
JOB_PAGES = "/jobs"
MAX_BODY_BYTES = 1 << 20
"""Maximum size of a message."""
MAX_ALIGNED_BODY_BYTES = 16 << 20
"""Maximum size of a message about aligned checkpoints, which may name thousands of tasks."""


CHALLENGE_KEY = "statecheck.challenge"


def challenge_of(secret: str) -> str:
    """Return the hash that a task writes into its task state store before it sends the secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


_PLAIN = (str, int, float, bool, type(None))
_RESERVED = ("self", "message")
"""Parameters of ``StateCheckError.__init__``, which attributes cannot use as names."""


def encode_error(error: StateCheckError) -> dict[str, Any]:
    """Encode an error as JSON, without attributes that are not plain values."""
    attributes = {name: value for name, value in vars(error).items() if _is_plain(value)}
    return {"code": error.code, "message": str(error), "attributes": attributes}


def decode_error(data: dict[str, Any]) -> StateCheckError:
    """Decode an error from JSON; an unknown code results in a ``CoordinatorError``."""
    kind = _CLASSES.get(str(data["code"]), CoordinatorError)
    message, attributes = str(data["message"]), _attributes(data)
    try:
        return kind(message, **attributes)
    except TypeError:  # the class requires an attribute that was not sent
        return CoordinatorError(message, **attributes)


def _attributes(data: dict[str, Any]) -> dict[str, Any]:
    sent = data.get("attributes")
    return {name: value for name, value in sent.items() if name not in _RESERVED} if isinstance(sent, Mapping) else {}


def _is_plain(value: object) -> bool:
    # JSON has no infinity or NaN; with such a value, the server could not send the reply.
    return isinstance(value, _PLAIN) and (not isinstance(value, float) or math.isfinite(value))


def _tree(kind: type[StateCheckError]) -> Iterator[type[StateCheckError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _tree(child)


# A subclass without its own code is decoded as the class whose code it inherits.
_CLASSES = {kind.code: kind for kind in _tree(StateCheckError) if "code" in vars(kind)}
