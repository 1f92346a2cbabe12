"""What not every database can keep is refused before a route sees it, and not by the database in the middle of one."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from fastapi import Request

from airflow_provider_statecheck.exceptions import InvalidConfigurationError

# PostgreSQL keeps no U+0000 and nothing keeps half a surrogate pair; JSON can say both.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_BIGINT = 2**63


async def refuse_unstorable(request: Request) -> None:
    """
    Look through the path and the message.

    :raises InvalidConfigurationError: for a value that not every database can keep.
    """
    if not _is_storable([*request.path_params.values(), _json(await request.body())]):
        raise InvalidConfigurationError(
            "Expected texts without U+0000 and half surrogate pairs, whole numbers of 64 bits and finite other ones, found "
            "something else."
        )


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None  # no message at all, or one that is refused with more to say


def _is_storable(value: Any) -> bool:
    if isinstance(value, str):
        return _UNSTORABLE.search(value) is None
    if isinstance(value, int):
        return -_BIGINT <= value < _BIGINT
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(_is_storable(each) for each in (*value, *value.values()))
    return not isinstance(value, list) or all(_is_storable(each) for each in value)
