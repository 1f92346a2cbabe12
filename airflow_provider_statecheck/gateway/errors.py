"""Errors of the coordinator as they travel: by their code, their text and what a program may want to know."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_statecheck.exceptions import CoordinatorError, StateCheckError

_PLAIN = (str, int, float, bool, type(None))
_TAKEN = ("self", "message")
"""Names of parameters that no attribute may have."""


def encode_error(error: StateCheckError) -> dict[str, Any]:
    """Turn an error into JSON; attributes that are no plain values stay behind."""
    attributes = {name: value for name, value in vars(error).items() if _is_plain(value)}
    return {"code": error.code, "message": str(error), "attributes": attributes}


def decode_error(data: dict[str, Any]) -> StateCheckError:
    """Turn JSON into the error it came from; an unknown code gives a ``CoordinatorError``."""
    kind = _CLASSES.get(str(data["code"]), CoordinatorError)
    message, attributes = str(data["message"]), _attributes(data)
    try:
        return kind(message, **attributes)
    except TypeError:  # a class that wants to know more than was sent
        return CoordinatorError(message, **attributes)


def _attributes(data: dict[str, Any]) -> dict[str, Any]:
    sent = data.get("attributes")
    return {name: value for name, value in sent.items() if name not in _TAKEN} if isinstance(sent, Mapping) else {}


def _is_plain(value: object) -> bool:
    # JSON has no word for infinity and the like; a server that tried would lose the whole reply.
    return isinstance(value, _PLAIN) and (not isinstance(value, float) or math.isfinite(value))


def _tree(kind: type[StateCheckError]) -> Iterator[type[StateCheckError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _tree(child)


# A class without a code of its own, wherever it is, arrives as the one whose code it has.
_CLASSES = {kind.code: kind for kind in _tree(StateCheckError) if "code" in vars(kind)}
