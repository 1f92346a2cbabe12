"""
Paths of the files of a job below the checkpoint directory; no I/O.

::

    <base>/<job id>/chk-<id>/_metadata                               metadata of one checkpoint
    <base>/<job id>/chk-<id>/<epoch>-<uuid>                          state of one checkpoint, if too large for _metadata
    <base>/<job id>/shared/<operator id>/state/<epoch>-<uuid>        state of functions, shared by checkpoints
    <base>/<job id>/shared/<operator id>/<slug>/<epoch>-<uuid>/      DataFrame snapshot, shared by checkpoints
    <base>/savepoint-<6 of the job id>-<12 random>/                  self-contained savepoint
    <base>/<job id>/taskowned/<operator id>/<epoch>-<uuid>           task-owned state
    <base>/<job id>/_orphans                                         quarantined orphan files of garbage collection

The layout follows Flink's file-based checkpoint storage. Names contain the epoch of the attempt that wrote the file, which
distinguishes the files of fenced attempts.
"""

from __future__ import annotations

import hashlib
import re
import uuid

from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId

METADATA_FILE = "_metadata"
MANIFEST_FILE = "_manifest"
DATA_DIRECTORY = "data"
STATE_DIRECTORY = "state"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_SAVEPOINT = re.compile(r"savepoint-[0-9a-f]{6}-[0-9a-f]{12}")
_IN_A_SAVEPOINT = re.compile(rf"(.*?/{_SAVEPOINT.pattern})(?:/|$)")
_EPOCH_NAME = re.compile(r"(\d+)-[0-9a-f]{32}")
_KINDS = r"(?:chk-\d+|shared|taskowned|_orphans)"
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


def orphans_uri(base_uri: str, job_id: JobId) -> str:
    """Return the file that lists the quarantined orphan files of a job."""
    return f"{job_uri(base_uri, job_id)}/_orphans"


def slug(name: str, scope: tuple[tuple[str, str], ...] = ()) -> str:
    """
    Return a directory name that is valid on all file systems and unique for a name within its scope.

    The digest distinguishes names with the same readable part, such as ``a b`` and ``a_b``, and equal names in different
    scopes.
    """
    digest = hashlib.sha256(repr((name, scope)).encode()).hexdigest()[:12]
    readable = _UNSAFE.sub("_", name).strip("._")[:40]
    return f"{readable}-{digest}" if readable else digest


def epoch_name(epoch: int) -> str:
    """Return a new unique name that contains the epoch of its writer."""
    return f"{epoch}-{uuid.uuid4().hex}"


def epoch_of(name: str) -> int | None:
    """Return the epoch in a name from :func:`epoch_name`, or ``None`` for any other name."""
    match = _EPOCH_NAME.fullmatch(name)
    return int(match.group(1)) if match else None


def checkpoint_id_of(directory_name: str) -> int | None:
    """Return the id in a directory name ``chk-<id>``, or ``None`` for any other name."""
    prefix, _, number = directory_name.partition("chk-")
    return int(number) if not prefix and number.isdecimal() else None
