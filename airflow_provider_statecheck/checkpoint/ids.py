"""Identifiers of jobs and operators, which are derived from their names only."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from typing import NewType

from airflow_provider_statecheck.exceptions import InvalidConfigurationError

JobId = NewType("JobId", str)
OperatorId = NewType("OperatorId", str)

TEST_NAMESPACE = "test/"
_MAX_NAME = 500


def job_id_of(name: str) -> JobId:
    """
    Return the id of a job: 32 hexadecimal digits.

    :param name: Name of the job, at most 500 characters.
    :raises InvalidConfigurationError: if the name is empty or too long.
    """
    return JobId(_digest("job", name))


def operator_id_of(uid: str) -> OperatorId:
    """
    Return the id of an operator within its job: 32 hexadecimal digits.

    :param uid: Uid of the operator, at most 500 characters.
    :raises InvalidConfigurationError: if the uid is empty or too long.
    """
    return OperatorId(_digest("uid", uid))


def job_name(name: str, *, is_test: bool) -> str:
    """
    Return the name under which a job is stored.

    :param is_test: Whether it is the job of a test run, which is separate from the real job.
    """
    return f"{TEST_NAMESPACE}{name}" if is_test else name


def uid_with_key(uid: str, map_key: str | None) -> str:
    """Return the uid of an instance of a mapped task, or of an unmapped task for ``None``."""
    return f"{uid}[{map_key}]" if map_key else uid


def map_key_of(uid: str) -> str | None:
    """Return the map key in the uid of an instance of a mapped task; ``None`` for an unmapped task."""
    _, bracket, rest = uid.partition("[")
    return rest[:-1] if bracket and rest.endswith("]") else None


def task_uids_of(uid: str) -> tuple[str, ...]:
    """Return the possible task uids of an operator uid: the uid itself, and its prefixes before a map key."""
    return (uid, *(uid[:index] for index, character in enumerate(uid) if character == "["))


def uids_before(uid: str, renamed_uids: Mapping[str, str]) -> tuple[str, ...]:
    """
    Return all former uids of an operator, newest first.

    :param renamed_uids: New uids by old ones.
    """
    uids = [uid]
    for name in uids:
        uids += [old for old, new in renamed_uids.items() if new == name and old not in uids]
    return tuple(uids[1:])


def restorable_uids(uid: str, renamed_uids: Mapping[str, str]) -> tuple[str, ...]:
    """
    Return the uids under which a savepoint or another job may have the state of an operator, its current uid first.

    The current uid is missing if the renames give it to another operator.

    :param uid: Uid of the operator, with the key of an instance of a mapped task.
    :param renamed_uids: New uids by old ones.
    """
    tasks = task_uids_of(uid)
    former = (f"{old}{uid.removeprefix(task)}" for task in tasks for old in uids_before(task, renamed_uids))
    own = () if renamed_uids.keys() & set(tasks) else (uid,)
    return tuple(dict.fromkeys((*own, *former)))


def is_test_job(name: str) -> bool:
    """Return whether a job belongs to a test run."""
    return name.startswith(TEST_NAMESPACE)


def new_key() -> str:
    """Return a new idempotency key."""
    return uuid.uuid4().hex


def _digest(kind: str, name: str) -> str:
    if not name.strip() or len(name) > _MAX_NAME:
        raise InvalidConfigurationError(
            f"Expected a {kind} of 1 to {_MAX_NAME} characters, found {len(name)} in {name[:40]!r}; choose another name."
        )
    return hashlib.sha256(name.encode()).hexdigest()[:32]


ALIGNED_UID = "(aligned)"
"""Uid of the coordinator of several operators, which registers as an operator of its job."""
ALIGNED_OPERATOR_ID = operator_id_of(ALIGNED_UID)
