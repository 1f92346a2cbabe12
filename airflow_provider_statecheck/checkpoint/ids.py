"""Identities: a job and an operator are known by their names, never by a position or a process."""

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
    Derive the 32 hex characters that identify a job.

    :param name: The job's name, at most 500 characters.
    :raises InvalidConfigurationError: for an empty or too long name.
    """
    return JobId(_digest("job", name))


def operator_id_of(uid: str) -> OperatorId:
    """
    Derive the 32 hex characters that identify an operator within its job.

    :param uid: The operator's uid, at most 500 characters.
    :raises InvalidConfigurationError: for an empty or too long uid.
    """
    return OperatorId(_digest("uid", uid))


def job_name(name: str, *, is_test: bool) -> str:
    """
    Return the name under which a job is kept.

    :param is_test: Whether it is a test run's, which never touches the job of that name.
    """
    return f"{TEST_NAMESPACE}{name}" if is_test else name


def uid_with_key(uid: str, map_key: str | None) -> str:
    """Return the uid of one instance of a mapped task, or of a task that is not mapped."""
    return f"{uid}[{map_key}]" if map_key else uid


def task_uids_of(uid: str) -> tuple[str, ...]:
    """Return the uids of which a task may have one whose operator has this uid: itself, and what stands before a map key."""
    return (uid, *(uid[:place] for place, sign in enumerate(uid) if sign == "["))


def uids_before(uid: str, renamed_uids: Mapping[str, str]) -> tuple[str, ...]:
    """
    Return the uids that an operator had before, the newest first, however often it was renamed.

    :param renamed_uids: New uids by old ones.
    """
    found = [uid]
    for name in found:
        found += [old for old, new in renamed_uids.items() if new == name and old not in found]
    return tuple(found[1:])


def is_test_job(name: str) -> bool:
    """Tell whether the job lives in the namespace of test runs, apart from every real job."""
    return name.startswith(TEST_NAMESPACE)


def new_key() -> str:
    """Make a key by which the coordinator recognises a repeated request."""
    return uuid.uuid4().hex


def _digest(what: str, name: str) -> str:
    if not name.strip() or len(name) > _MAX_NAME:
        raise InvalidConfigurationError(
            f"Expected a {what} of 1 to {_MAX_NAME} characters, found {len(name)} in {name[:40]!r}; choose another name."
        )
    return hashlib.sha256(name.encode()).hexdigest()[:32]
