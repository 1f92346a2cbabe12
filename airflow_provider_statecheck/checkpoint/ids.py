"""
Identifiers of jobs and operators, and the paths of their files; both follow from names only.

::

    <base>/<job id>/chk-<id>/_metadata                               metadata of one checkpoint
    <base>/<job id>/chk-<id>/<epoch>-<uuid>                          state of one checkpoint, if too large for _metadata
    <base>/<job id>/shared/<operator id>/state/<epoch>-<uuid>        state of functions, shared by checkpoints
    <base>/<job id>/shared/<operator id>/<slug>/<epoch>-<uuid>/      DataFrame snapshot, shared by checkpoints
    <base>/savepoint-<6 of the job id>-<12 random>/                  self-contained savepoint
    <base>/<job id>/taskowned/<operator id>/<epoch>-<uuid>           task-owned state
    <base>/<job id>/mail/<operator id>/<epoch>/                      mailbox of a driver without a network path
    <base>/<job id>/_orphans                                         quarantined orphan files of garbage collection

The layout follows Flink's file-based checkpoint storage. Names contain the epoch of the attempt that wrote the file,
which distinguishes the files of fenced attempts.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, NewType, TypeGuard, TypeVar

from airflow_provider_statecheck.checkpoint.codec import require
from airflow_provider_statecheck.exceptions import InvalidConfigurationError

JobId = NewType("JobId", str)
OperatorId = NewType("OperatorId", str)
Argument = TypeVar("Argument")

TEST_NAMESPACE = "test/"
_MAX_NAME = 500
_JOB_ID = re.compile(r"[0-9a-f]{32}")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.+")
_CANONICAL_SCHEMES = {"local": "file", "s3a": "s3", "gcs": "gs", "abfss": "abfs"}
"""Canonical names of scheme aliases."""


def job_id_of(name: str) -> JobId:
    """
    Return the id of a job: 32 hexadecimal digits.

    :param name: Name of the job, at most 500 characters; not a URI, which commands take for that of a checkpoint.
    :raises InvalidConfigurationError: if the name is no text, is empty or is too long, or is a URI.
    """
    job_id = JobId(_digest("job", name))
    if is_uri(name):
        # The URI may contain credentials.
        raise InvalidConfigurationError(
            f"Expected the name of a job, found a URI that begins with {name.partition('://')[0]!r:.60}; give the name "
            "of a job."
        )
    return job_id


def is_uri(text: str) -> bool:
    """Return whether a text is a URI, such as that of a checkpoint; no job has such a name."""
    return _URI.fullmatch(text) is not None


def given_job_id(job: str) -> JobId:
    """
    Return the id of a job that a user names.

    :param job: Name of the job, or its id; a text of 32 hexadecimal digits is always an id.
    :raises InvalidConfigurationError: as :func:`job_id_of`.
    """
    of_name = job_id_of(job)
    return JobId(job) if _JOB_ID.fullmatch(job) else of_name


def operator_id_of(uid: str) -> OperatorId:
    """
    Return the id of an operator within its job: 32 hexadecimal digits.

    :param uid: Uid of the operator, at most 500 characters.
    :raises InvalidConfigurationError: if the uid is no text, is empty or is too long.
    """
    return OperatorId(_digest("uid", uid))


def job_name(name: str, *, is_test: bool) -> str:
    """
    Return the name under which a job is stored.

    :param is_test: Whether it is the job of a test run, which is separate from the real job.
    """
    return f"{TEST_NAMESPACE}{name}" if is_test else name


def run_key(logical_date: datetime | None, partition_key: str | None, run_id: str) -> str:
    """Return the key of a Dag run: its logical date, else the key of its partition, else its run id."""
    return logical_date.isoformat() if logical_date is not None else partition_key or run_id


def key_text(map_key: object) -> str | None:
    """Return a map key as text; an expanded list and a native template may give any value, such as the number 0."""
    return None if map_key is None else str(map_key)


def is_given(value: Argument | None) -> TypeGuard[Argument]:
    """Return whether a templated argument has a value; an empty text has none, and the number 0 is one."""
    return value is not None and value != ""


def require_not_missing(name: str, value: object) -> None:
    """
    Raise an error for the text that a template writes for a missing value.

    :param name: Name of the argument.
    :raises InvalidConfigurationError: if the value is such a text.
    """
    if isinstance(value, str) and value.strip().lower() in ("none", "null"):
        raise InvalidConfigurationError(
            f"Expected a value for {name}, found {value!r}, which a template writes for a missing value; give one, or "
            "None."
        )


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
    :raises InvalidConfigurationError: if it is no mapping.
    """
    require("renamed_uids", renamed_uids, lambda each: isinstance(each, Mapping), "a mapping of old uids to new ones")
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


def _digest(kind: str, name: object) -> str:
    # A template or an XCom may give any value.
    if not isinstance(name, str) or name.encode(errors="ignore").decode() != name:
        raise InvalidConfigurationError(f"Expected a {kind} that is text in UTF-8, found {name!r:.60}; correct it.")
    if not name.strip() or len(name) > _MAX_NAME:
        raise InvalidConfigurationError(
            f"Expected a {kind} of 1 to {_MAX_NAME} characters, found {len(name)} in {name[:40]!r}; choose another "
            "name."
        )
    return hashlib.sha256(name.encode()).hexdigest()[:32]


ALIGNED_UID = "(aligned)"
"""
Uid of the operator that stands for the whole job: leaders of its aligned checkpoints and savepoints register as it.
"""
ALIGNED_OPERATOR_ID = operator_id_of(ALIGNED_UID)
"""Operator id of the rows of the whole job; see :attr:`OfOperator.is_of_job`, and ``…_of_job`` in ``store.py``."""


class OfOperator:
    """A row or a message of one operator, which is a stage of the job, or stands for the whole job."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def operator_id(self) -> OperatorId:
            """The id of the operator."""

    @property
    def is_of_job(self) -> bool:
        """Whether it is of the whole job: of its savepoints, or of a program that leads aligned checkpoints."""
        return self.operator_id == ALIGNED_OPERATOR_ID


METADATA_FILE = "_metadata"
MANIFEST_FILE = "_manifest"
DATA_DIRECTORY = "data"
STATE_DIRECTORY = "state"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_SAVEPOINT = re.compile(r"savepoint-[0-9a-f]{6}-[0-9a-f]{12}")
_IN_A_SAVEPOINT = re.compile(rf"(.*?/{_SAVEPOINT.pattern})(?:/|$)")
_EPOCH_NAME = re.compile(r"(\d+)-[0-9a-f]{32}")
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{32}\.tmp")
_KINDS = r"(?:chk-\d+|shared|taskowned|mail|_orphans)"
_IN_A_JOB = re.compile(rf"/[0-9a-f]{{32}}/{_KINDS}(?:/|$)")


def job_uri(base_uri: str, job_id: JobId) -> str:
    """Return the directory of a job."""
    return f"{base_uri.rstrip('/')}/{job_id}"


def checkpoint_uri(base_uri: str, job_id: JobId, checkpoint_id: int) -> str:
    """Return the exclusive directory of a checkpoint."""
    return f"{job_uri(base_uri, job_id)}/chk-{checkpoint_id}"


def new_savepoint_uri(base_uri: str, job_id: JobId) -> str:
    """Return a new unique directory for a savepoint of a job."""
    return f"{base_uri.rstrip('/')}/savepoint-{job_id[:6]}-{uuid.uuid4().hex[:12]}"


def canonical_uri(uri: str) -> str:
    """Return a URI with the canonical name of its scheme, because ``s3://`` and ``s3a://`` refer to the same files."""
    scheme, separator, rest = uri.partition("://")
    return f"{canonical_scheme(scheme)}{separator}{rest}"


def canonical_scheme(scheme: str) -> str:
    """Return the canonical name of a scheme."""
    return _CANONICAL_SCHEMES.get(scheme.lower(), scheme.lower())


def is_savepoint_directory(uri: str) -> bool:
    """Return whether a directory has the name of a savepoint."""
    return _SAVEPOINT.fullmatch(uri.rstrip("/").rpartition("/")[2]) is not None


def is_savepoint_of(uri: str, job_id: JobId) -> bool:
    """Return whether a directory has the name of a savepoint of a job."""
    return uri.rstrip("/").rpartition("/")[2].startswith(f"savepoint-{job_id[:6]}-")


def is_in_job(uri: str, job_id: JobId | None = None) -> bool:
    """
    Return whether a URI is below the directory of a job in any checkpoint directory.

    :param job_id: Id of the job; ``None`` for any job.
    """
    if job_id is None:
        return _IN_A_JOB.search(uri) is not None
    return re.search(rf"/{re.escape(job_id)}/{_KINDS}(?:/|$)", uri) is not None


def savepoint_directory_of(uri: str) -> str | None:
    """Return the savepoint directory that contains a URI, judged by its name, or ``None``."""
    match = _IN_A_SAVEPOINT.match(uri)
    return match.group(1) if match else None


def shared_uri(base_uri: str, job_id: JobId, operator_id: OperatorId) -> str:
    """Return the directory of an operator's snapshots, which its checkpoints share."""
    return f"{job_uri(base_uri, job_id)}/shared/{operator_id}"


def taskowned_uri(base_uri: str, job_id: JobId) -> str:
    """Return the directory of a job's task-owned state."""
    return f"{job_uri(base_uri, job_id)}/taskowned"


def mailboxes_uri(base_uri: str, job_id: JobId, operator_id: OperatorId) -> str:
    """Return the directory of an operator's mailboxes, which are named by the epochs that opened them."""
    return f"{job_uri(base_uri, job_id)}/mail/{operator_id}"


def packages_uri(base_uri: str) -> str:
    """Return the directory of the packages that drivers on clusters import."""
    return f"{base_uri.rstrip('/')}/packages"


def orphans_uri(base_uri: str, job_id: JobId) -> str:
    """Return the file that lists the quarantined orphan files of a job."""
    return f"{job_uri(base_uri, job_id)}/_orphans"


def slug(name: str, scope: tuple[tuple[str, str], ...] = ()) -> str:
    """
    Return a directory name that is valid on all file systems and unique for a name within its scope.

    The digest distinguishes names with the same readable part, such as ``a b`` and ``a_b``, and equal names in
    different scopes.
    """
    digest = hashlib.sha256(repr((name, scope)).encode()).hexdigest()[:12]
    readable = _UNSAFE.sub("_", name).strip("._")[:40]
    return f"{readable}-{digest}" if readable else digest


def epoch_name(epoch: int) -> str:
    """Return a new unique name that contains the epoch of its writer."""
    return f"{epoch}-{uuid.uuid4().hex}"


def temporary_name(name: str) -> str:
    """Return a new hidden name for a file that gets its name when it is complete."""
    # A writer that is killed leaves the file, which has the epoch of the writer like the complete one.
    of_epoch = f"{name}." if epoch_of(name) is not None else ""
    return f".{of_epoch}{uuid.uuid4().hex}.tmp"


def epoch_of(name: str) -> int | None:
    """
    Return the epoch in a name from :func:`epoch_name`, also of its temporary file, or ``None`` for any other name.
    """
    temporary = _TEMPORARY.fullmatch(name)
    match = _EPOCH_NAME.fullmatch(temporary.group(1) if temporary else name)
    return int(match.group(1)) if match else None


def checkpoint_id_of(directory_name: str) -> int | None:
    """Return the id in a directory name ``chk-<id>``, or ``None`` for any other name."""
    prefix, _, number = directory_name.partition("chk-")
    return int(number) if not prefix and number.isdecimal() else None
