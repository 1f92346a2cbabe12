"""
Where the bytes of a job lie below the checkpoint directory: path arithmetic only.

::

    <base>/<job id>/chk-<id>/_metadata                               one checkpoint, private to it
    <base>/<job id>/chk-<id>/<epoch>-<uuid>                          its state, where too large for _metadata
    <base>/<job id>/shared/<operator id>/<slug>/<epoch>-<uuid>/      one DataFrame snapshot, named by many checkpoints
    <base>/<job id>/handles/<operator id>/<epoch>-<uuid>             state under a name in a store of state handles
    <base>/savepoint-<6 of the job id>-<12 random>/                  one savepoint with all that it needs
    <base>/<job id>/shared/<operator id>/merged-<i>-<n>/<epoch>-<uuid>   state of several checkpoints in one file
    <base>/<job id>/shared/<operator id>/keyed-<i>/<epoch>-<uuid>    keyed state of one subtask, named by many checkpoints
    <base>/<job id>/taskowned/<process>/<epoch>-<uuid>               state that belongs to a task
    <base>/<job id>/_orphans                                         what garbage collection found and does not delete yet

The layout is that of Flink's file based checkpoint storage.
Every name below a job carries the epoch of the attempt that wrote it, so that files of a fenced attempt can be told apart.
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
_MERGED = re.compile(r"merged-\d+-\d+")
# A snapshot's directory may be called keyed-<12 digits>; no subtask has a number that long.
_KEYED = re.compile(r"keyed-\d{1,5}")
_EPOCH_NAME = re.compile(r"(\d+)-[0-9a-f]{32}")
_KINDS = r"(?:chk-\d+|shared|handles|taskowned|_orphans)"
_IN_A_JOB = re.compile(rf"/[0-9a-f]{{32}}/{_KINDS}(?:/|$)")


def job_uri(base_uri: str, job_id: JobId) -> str:
    """Return the directory of a job."""
    return f"{base_uri.rstrip('/')}/{job_id}"


def checkpoint_uri(base_uri: str, job_id: JobId, checkpoint_id: int) -> str:
    """Return the directory that belongs to one checkpoint alone."""
    return f"{job_uri(base_uri, job_id)}/chk-{checkpoint_id}"


def new_savepoint_uri(base_uri: str, job_id: JobId) -> str:
    """Make a new unique directory for a savepoint of a job."""
    return f"{base_uri.rstrip('/')}/savepoint-{job_id[:6]}-{uuid.uuid4().hex[:12]}"


def is_savepoint_directory(uri: str) -> bool:
    """Tell whether a directory has the name that savepoints are given."""
    return _SAVEPOINT.fullmatch(uri.rstrip("/").rpartition("/")[2]) is not None


def is_savepoint_of(uri: str, job_id: JobId) -> bool:
    """Tell whether a directory may be that of a savepoint of a job, as far as its name says."""
    return uri.rstrip("/").rpartition("/")[2].startswith(f"savepoint-{job_id[:6]}-")


def lies_in_job(uri: str, job_id: JobId | None = None) -> bool:
    """
    Tell whether a URI lies in the directory of a job, wherever the checkpoint directory is.

    :param job_id: The job; ``None`` for any.
    """
    if job_id is None:
        return _IN_A_JOB.search(uri) is not None
    return re.search(rf"/{re.escape(job_id)}/{_KINDS}(?:/|$)", uri) is not None


def savepoint_directory_of(uri: str) -> str | None:
    """Return the directory of the savepoint that a URI lies in, as far as names tell; ``None`` if it lies in none."""
    match = _IN_A_SAVEPOINT.match(uri)
    return match.group(1) if match else None


def shared_uri(base_uri: str, job_id: JobId, operator_id: OperatorId) -> str:
    """Return the directory of an operator's snapshots, which several checkpoints may name."""
    return f"{job_uri(base_uri, job_id)}/shared/{operator_id}"


def taskowned_uri(base_uri: str, job_id: JobId) -> str:
    """Return the directory of a job's state that belongs to tasks."""
    return f"{job_uri(base_uri, job_id)}/taskowned"


def orphans_uri(base_uri: str, job_id: JobId) -> str:
    """Return the file that notes what garbage collection found of a job and does not delete yet."""
    return f"{job_uri(base_uri, job_id)}/_orphans"


def is_merged_directory(name: str) -> bool:
    """Tell whether a directory of an operator has the name that those with merged files are given."""
    return _MERGED.fullmatch(name) is not None


def keyed_state_uri(base_uri: str, job_id: JobId, operator_id: OperatorId, subtask: int) -> str:
    """Return the directory of the files with keyed state of one subtask of an operator, which checkpoints may share."""
    return f"{shared_uri(base_uri, job_id, operator_id)}/keyed-{subtask}"


def is_keyed_directory(name: str) -> bool:
    """Tell whether a directory of an operator has the name that those with keyed state of a subtask are given."""
    return _KEYED.fullmatch(name) is not None


def handles_uri(base_uri: str, job_id: JobId, operator_id: OperatorId) -> str:
    """Return the directory of the state that an operator keeps under names."""
    return f"{job_uri(base_uri, job_id)}/handles/{operator_id}"


def slug(name: str, scope: tuple[tuple[str, str], ...] = ()) -> str:
    """
    Return a directory name that is safe on every filesystem and unique for a name within its scope.

    The digest keeps apart what the readable part folds together: ``a b`` and ``a_b``, or one name under two items.
    """
    digest = hashlib.sha256(repr((name, scope)).encode()).hexdigest()[:12]
    readable = _UNSAFE.sub("_", name).strip("._")[:40]
    return f"{readable}-{digest}" if readable else digest


def epoch_name(epoch: int) -> str:
    """Make a new unique name that carries the epoch of its writer."""
    return f"{epoch}-{uuid.uuid4().hex}"


def epoch_of(name: str) -> int | None:
    """Return the epoch in a name made by :func:`epoch_name`, or ``None`` for any other name."""
    match = _EPOCH_NAME.fullmatch(name)
    return int(match.group(1)) if match else None


def checkpoint_id_of(directory_name: str) -> int | None:
    """Return the id in a directory name ``chk-<id>``, or ``None`` for any other name."""
    prefix, _, number = directory_name.partition("chk-")
    return int(number) if not prefix and number.isdecimal() else None
