"""
Which values a message may have, so that no database refuses them in the middle of a route.

The limits are those of the columns that keep the values. A message's field has the limit of the column of its name, or of
the one that ``_KEPT_AS`` names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from fastapi import Request
from sqlalchemy import BigInteger, Integer, String
from sqlalchemy.types import TypeEngine

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.gateway.wire import place_of
from airflow_provider_statecheck.metadata.models import Base, Checkpoint, Job, Operator

_Path = tuple[str | int, ...]
_Kind = TypeEngine[Any] | None

# PostgreSQL keeps no U+0000 and nothing keeps half a surrogate pair; JSON can say both.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_COORDINATE = String(250)
"""What Airflow keeps of the id of a Dag, a run or a task."""
_KEPT_AS: dict[str, _Kind] = {
    "job_name": Job.name.type,
    "former_uids": Operator.uid.type,
    "serves": Checkpoint.request_key.type,
    "trigger_key": Checkpoint.request_key.type,
    "newest_on_storage": Checkpoint.checkpoint_id.type,
    "checkpoint_ids": Checkpoint.checkpoint_id.type,
    "before": Checkpoint.checkpoint_id.type,
    "limit": Integer(),
    "dag_id": _COORDINATE,
    "run_id": _COORDINATE,
    "task_id": _COORDINATE,
    "map_index": Integer(),
}


async def refuse_unstorable(request: Request) -> None:
    """
    Look through the path and the query of a request.

    :raises InvalidConfigurationError: for a value that not every database can keep; it names the value.
    """
    for name, value in (*request.path_params.items(), *request.query_params.items()):
        kind = _columns().get(name)
        _require(_number(value) if isinstance(kind, Integer) else value, (name,), kind)


def _number(text: Any) -> Any:
    try:
        return int(text)
    except ValueError:
        return text  # which FastAPI refuses


def require_storable(message: Any) -> None:
    """
    Look through a message.

    :raises InvalidConfigurationError: for the first value that not every database can keep; it names the field.
    """
    _require(message, (), None)


def _require(value: Any, path: _Path, kind: _Kind) -> None:
    for place, inner, its_kind in _inner(value, kind):
        _require(inner, (*path, place), its_kind)
    expected = _expected(value, kind)
    if expected:
        raise InvalidConfigurationError(f"Expected {_shown(path)} to be {expected}, found another value.")


def _inner(value: Any, kind: _Kind) -> Iterator[tuple[str | int, Any, _Kind]]:
    if is_dataclass(value):
        for field in fields(value):
            yield field.name, getattr(value, field.name), _columns().get(field.name)
    elif isinstance(value, tuple):
        yield from ((place, each, kind) for place, each in enumerate(value))
    elif isinstance(value, Mapping):
        # What is in a mapping is kept as JSON, whatever the caller's keys are.
        for key, each in value.items():
            yield from (("a key", key, None), (key, each, None))


@cache
def _columns() -> Mapping[str, _Kind]:
    columns = (column for table in Base.metadata.sorted_tables for column in table.columns)
    return {**{column.name: column.type for column in columns}, **_KEPT_AS}


def _expected(value: Any, kind: _Kind) -> str | None:
    if isinstance(value, str):
        return _expected_text(value, kind.length if isinstance(kind, String) else None)
    if isinstance(value, float) and not math.isfinite(value):
        return "a finite number"
    if isinstance(value, int):
        bits = 32 if isinstance(kind, Integer) and not isinstance(kind, BigInteger) else 64
        return None if -(2 ** (bits - 1)) <= value < 2 ** (bits - 1) else f"a whole number of {bits} bits"
    return None


def _expected_text(value: str, longest: int | None) -> str | None:
    if _UNSTORABLE.search(value):
        return "a text without U+0000 and half surrogate pairs"
    return f"a text of at most {longest} characters" if longest is not None and len(value) > longest else None


def _shown(path: _Path) -> str:
    return place_of(path).encode("ascii", "backslashreplace").decode()[:200]
