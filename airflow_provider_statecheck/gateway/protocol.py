"""What clients and the API agree on: paths, the challenge, and error codes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.store import CheckpointPage
from airflow_provider_statecheck.exceptions import CoordinatorError, StateCheckError

MOUNT_PATH = "/statecheck"
VERSION_PATH = "/v1"
JOB_PAGES = "/jobs"


def page_path(job_id: JobId, page: CheckpointPage) -> str:
    """Return the path of a page of the checkpoints of a job."""
    asked = {"before": page.before, "limit": page.limit, "operator_id": page.operator_id, "status": page.status}
    return f"jobs/{job_id}/checkpoints?{urlencode({key: value for key, value in asked.items() if value is not None})}"


CHALLENGE_KEY = "statecheck.challenge"


def challenge_of(secret: str) -> str:
    """Return what a task writes into its own task state store before it shows the secret itself."""
    return hashlib.sha256(secret.encode()).hexdigest()


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
