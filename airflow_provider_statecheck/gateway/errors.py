"""Errors of the coordinator as they travel: by their code, their text and what a program may want to know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_provider_statecheck.exceptions import CoordinatorError, StateCheckError

_PLAIN = (str, int, float, bool, type(None))


def encode_error(error: StateCheckError) -> dict[str, Any]:
    """Turn an error into JSON; attributes that are no plain values stay behind."""
    attributes = {name: value for name, value in vars(error).items() if isinstance(value, _PLAIN)}
    return {"code": error.code, "message": str(error), "attributes": attributes}


def decode_error(data: dict[str, Any]) -> StateCheckError:
    """Turn JSON into the error it came from; an unknown code gives a ``CoordinatorError``."""
    kind = _CLASSES.get(str(data["code"]), CoordinatorError)
    return kind(str(data["message"]), **dict(data.get("attributes", {})))


def _tree(kind: type[StateCheckError]) -> Iterator[type[StateCheckError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _tree(child)


_CLASSES = {kind.code: kind for kind in _tree(StateCheckError)}
