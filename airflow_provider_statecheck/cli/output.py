"""Output of the commands: tables, exit statuses and prompts."""

from __future__ import annotations

import functools
import json
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable
from datetime import datetime
from enum import IntEnum
from typing import Any

from airflow_provider_statecheck.checkpoint.config_options import readable_size
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, OperatorRecord
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CommitStateUnknownError,
    CoordinatorUnavailableError,
    CorruptStateError,
    EnvironmentNotReadyError,
    InvalidConfigurationError,
    StateCheckError,
    StorageError,
    UnknownStateError,
)
from airflow_provider_statecheck.storage.uris import redact

Row = dict[str, Any]

_PASSWORD = re.compile(r"://[^/\s@]*:[^\s@]*@")


def print_rows(rows: list[Row], output: str) -> None:
    """
    Print rows.

    :param rows: Each with the same keys; a key that ends in ``bytes`` has a number of bytes.
    :param output: ``table``, ``plain``, ``json`` or ``yaml``.
    """
    if output == "json":
        sys.stdout.write(json.dumps([_data(row) for row in rows], indent=2) + "\n")
    elif output == "yaml":
        _print_yaml([_data(row) for row in rows])
    else:
        _print_table([{key: _text(key, value) for key, value in row.items()} for row in rows], output)


def shown(uri: str) -> str:
    """Return a URI to be shown and used again: a password in it is left out, the name of a container stays."""
    return redact(uri) if _PASSWORD.search(uri) else uri


def _print_yaml(rows: list[Row]) -> None:
    from airflow.utils import yaml

    yaml.safe_dump(rows, sys.stdout, sort_keys=False, allow_unicode=True)


def _print_table(rows: list[dict[str, str]], output: str) -> None:
    from airflow.cli.simple_table import AirflowConsole

    # Names are the users' own: features[eu] is no markup, and :x: no picture.
    AirflowConsole(markup=False, emoji=False, highlight=False).print_as(data=rows, output=output)


def _data(row: Row) -> Row:
    return {key: value.isoformat() if isinstance(value, datetime) else value for key, value in row.items()}


def _text(key: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    if isinstance(value, list):
        return "\n".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.1f}"
    return readable_size(value) if key.endswith("bytes") else str(value)


def job_row(view: JobView) -> Row:
    """Return a job with its newest completed checkpoint and its newest attempt."""
    newest = max((c for c in view.checkpoints if c.is_restorable), key=_completed, default=None)
    attempt = max(view.attempts, key=lambda a: a.registered_at, default=None)
    return {
        "name": view.job.name,
        "job_id": view.job.job_id,
        "operators": [operator.uid for operator in view.operators],
        "checkpoint": None if newest is None else newest.checkpoint_id,
        "completed_at": None if newest is None else newest.completed_at,
        "bytes": None if newest is None else newest.full_size_bytes,
        "attempt": None if attempt is None else attempt.status.value,
    }


def checkpoint_rows(view: JobView, checkpoints: Iterable[CheckpointRecord]) -> list[Row]:
    """Return checkpoints of a job."""
    uids = {operator.operator_id: operator.uid for operator in view.operators}
    return [_checkpoint_row(c, uids.get(c.operator_id, c.operator_id)) for c in checkpoints]


def _checkpoint_row(checkpoint: CheckpointRecord, uid: str) -> Row:
    end = checkpoint.completed_at
    return {
        "checkpoint": checkpoint.checkpoint_id,
        "operator": uid,
        "run": checkpoint.run_key or None,
        "kind": checkpoint.properties.snapshot_type.value,
        "status": checkpoint.status.value,
        "triggered_at": checkpoint.triggered_at,
        "seconds": None if end is None else (end - checkpoint.triggered_at).total_seconds(),
        "bytes": checkpoint.full_size_bytes,
        "pointer": shown(checkpoint.location),
        "failure": _failure(checkpoint),
    }


def _failure(checkpoint: CheckpointRecord) -> str | None:
    if checkpoint.unusable_reason is not None:
        return f"unusable: {checkpoint.unusable_reason}"
    if checkpoint.failure_reason is None:
        return None
    return f"{checkpoint.failure_reason}: {checkpoint.failure_message}"


def _completed(checkpoint: CheckpointRecord) -> tuple[float, int]:
    end = checkpoint.completed_at
    return (0.0 if end is None else end.timestamp(), checkpoint.checkpoint_id)


class Exit(IntEnum):
    """The exit status of a command."""

    DONE = 0
    FOUND = 1
    """Something is not as it should be."""
    USAGE = 2
    """Wrong arguments, or there is no such job, checkpoint or state."""
    UNAVAILABLE = 3
    """Storage or database did not answer."""


# The first class that fits decides.
_EXITS: tuple[tuple[type[StateCheckError], Exit], ...] = (
    (CorruptStateError, Exit.FOUND),
    (StorageError, Exit.UNAVAILABLE),
    (CoordinatorUnavailableError, Exit.UNAVAILABLE),
    (CommitStateUnknownError, Exit.UNAVAILABLE),
    (EnvironmentNotReadyError, Exit.UNAVAILABLE),
    (CheckpointNotFoundError, Exit.USAGE),
    (UnknownStateError, Exit.USAGE),
    (InvalidConfigurationError, Exit.USAGE),
)


def command(run: Callable[[Namespace], Exit]) -> Callable[[Namespace], None]:
    """Make a function one that Airflow can call: its result becomes the exit status, an error one line on stderr."""

    @functools.wraps(run)
    def wrapped(args: Namespace) -> None:
        try:
            status = run(args)
        except StateCheckError as error:
            tell(f"error: {error}")
            status = exit_of(error)
        if status is not Exit.DONE:
            raise SystemExit(int(status))

    return wrapped


def audited(run: Callable[[Namespace], Exit]) -> Callable[[Namespace], Exit]:
    """Let Airflow's audit log say who ran a command that removes something, and how."""
    from airflow.utils.cli import action_cli

    # Our own tables are what counts; a missing one is told in one line.
    wrapped: Callable[[Namespace], Exit] = action_cli(check_db=False)(run)
    return wrapped


def exit_of(error: StateCheckError) -> Exit:
    """Return the exit status for an error."""
    return next((status for kind, status in _EXITS if isinstance(error, kind)), Exit.FOUND)


def tell(message: str) -> None:
    """Write one line for people."""
    sys.stderr.write(" ".join(message.split()) + "\n")


def is_confirmed(show: Callable[[], object], question: str) -> bool:
    """
    Show what would be done and ask.

    :param show: Prints what would be done and changes nothing.
    :param question: Such as ``Remove that?``
    :raises InvalidConfigurationError: where nobody can be asked.
    """
    if not sys.stdin.isatty():
        raise InvalidConfigurationError("Expected --yes or --dry-run where nobody can be asked, found neither.")
    show()
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def operators_of(view: JobView, uid: str | None) -> list[OperatorRecord]:
    """
    Return all operators of a job, or the one of a uid.

    :raises CheckpointNotFoundError: if there is none of that uid, naming those that there are.
    """
    found = [operator for operator in view.operators if uid in (None, operator.uid)]
    if not found:
        uids = ", ".join(operator.uid for operator in view.operators)
        raise CheckpointNotFoundError(f"Job {view.job.name!r} has no operator {uid!r}, only {uids}.")
    return found
