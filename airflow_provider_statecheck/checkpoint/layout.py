"""
Where the bytes of a job lie below the checkpoint directory: path arithmetic only.

::

    <base>/<job id>/chk-<id>/_metadata                               one checkpoint, private to it
    <base>/<job id>/chk-<id>/<epoch>-<uuid>                          its state, where too large for _metadata
    <base>/<job id>/shared/<operator id>/<slug>/<epoch>-<uuid>/      one DataFrame snapshot, named by many checkpoints
    <base>/<job id>/handles/<operator id>/<epoch>-<uuid>             state under a name in a store of state handles
    <base>/<job id>/taskowned/                                       state that belongs to a task

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
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_EPOCH_NAME = re.compile(r"(\d+)-[0-9a-f]{32}")


def job_uri(base_uri: str, job_id: JobId) -> str:
    """Return the directory of a job."""
    return f"{base_uri.rstrip('/')}/{job_id}"


def checkpoint_uri(base_uri: str, job_id: JobId, checkpoint_id: int) -> str:
    """Return the directory that belongs to one checkpoint alone."""
    return f"{job_uri(base_uri, job_id)}/chk-{checkpoint_id}"


def shared_uri(base_uri: str, job_id: JobId, operator_id: OperatorId) -> str:
    """Return the directory of an operator's snapshots, which several checkpoints may name."""
    return f"{job_uri(base_uri, job_id)}/shared/{operator_id}"


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
