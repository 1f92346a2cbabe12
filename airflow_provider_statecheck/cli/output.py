"""Exit statuses, messages, prompts and tables of the commands."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable
from datetime import datetime
from enum import IntEnum
from pathlib import Path
from typing import Any

from airflow_provider_statecheck.checkpoint.config_options import readable_size
from airflow_provider_statecheck.checkpoint.job_list import JobOverview
from airflow_provider_statecheck.checkpoint.masking import is_printable, masked, printable
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, OperatorRecord
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CommitStateUnknownError,
    CoordinatorUnavailableError,
    CorruptStateError,
    EnvironmentNotReadyError,
    InvalidConfigurationError,
    InvalidPointerError,
    StateCheckError,
    StorageError,
    UnknownKeyOrNamespaceError,
    UnknownKvStateLocationError,
    UnknownStateError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.storage.uris import redact

Row = dict[str, Any]

_SURROGATE = re.compile("[\ud800-\udfff]")


class Exit(IntEnum):
    """Exit status of a command."""

    DONE = 0
    FOUND = 1
    """The command found a problem or a difference."""
    USAGE = 2
    """Wrong arguments, or an unknown job, checkpoint or state."""
    UNAVAILABLE = 3
    """Storage or database is unavailable, or its tables are missing."""
    INTERRUPTED = 130
    """The user interrupted the command."""
    UNREAD = 141
    """The reader of the output, such as ``head``, has ended before the command."""


class _UnreadError(Exception):
    """The reader of the output has ended."""


# The first class that matches decides.
_EXITS: tuple[tuple[type[StateCheckError], Exit], ...] = (
    (CorruptStateError, Exit.FOUND),
    (InvalidPointerError, Exit.USAGE),
    (StorageError, Exit.UNAVAILABLE),
    (CoordinatorUnavailableError, Exit.UNAVAILABLE),
    (CommitStateUnknownError, Exit.UNAVAILABLE),
    (EnvironmentNotReadyError, Exit.UNAVAILABLE),
    (CheckpointNotFoundError, Exit.USAGE),
    (UnknownStateError, Exit.USAGE),
    (UnknownKvStateLocationError, Exit.USAGE),
    (UnknownKeyOrNamespaceError, Exit.USAGE),
    (UnsupportedStateError, Exit.USAGE),
    (InvalidConfigurationError, Exit.USAGE),
)


def command(run: Callable[[Namespace], Exit]) -> Callable[[Namespace], None]:
    """Wrap a function as a command of Airflow: its result becomes the exit status, an error one line on stderr."""

    @functools.wraps(run)
    def wrapped(args: Namespace) -> None:
        try:
            _require_text(args)
            status = run(args)
        except StateCheckError as error:
            print_message(f"error: {error}")
            status = exit_of(error)
        except KeyboardInterrupt:
            print_message("error: interrupted")
            status = Exit.INTERRUPTED
        except _UnreadError:
            status = Exit.UNREAD
        if status is not Exit.DONE:
            raise SystemExit(int(status))

    return wrapped


def _require_text(args: Namespace) -> None:
    # Python reads other bytes as surrogates, which neither a database nor a storage accepts.
    values = (each for value in vars(args).values() for each in (value if isinstance(value, list) else [value]))
    for text in values:
        if isinstance(text, str) and not text.isascii() and _SURROGATE.search(text):
            raise InvalidConfigurationError(f"Expected arguments in UTF-8, found {text!r}; correct it.")


def audited(run: Callable[[Namespace], Exit]) -> Callable[[Namespace], Exit]:
    """Record the user and the arguments of a command that makes changes in Airflow's audit log."""
    from airflow.utils.cli import action_cli

    # The commands report a missing table of this package themselves, in one line.
    wrapped: Callable[[Namespace], Exit] = action_cli(check_db=False)(run)
    return wrapped


def exit_of(error: StateCheckError) -> Exit:
    """Return the exit status for an error."""
    return next((status for kind, status in _EXITS if isinstance(error, kind)), Exit.FOUND)


def print_message(message: str) -> None:
    """Write a message as one line to stderr, which keeps stdout parseable."""
    sys.stderr.write(printable(" ".join(masked(message).split())) + "\n")


def is_confirmed(args: Namespace, show: Callable[[], object], question: str) -> bool:
    """
    Show the planned changes on stderr and ask for confirmation, unless ``--yes`` or ``--dry-run`` is given.

    :param show: Prints the planned changes and makes none.
    :param question: Question such as ``Remove these rows?``
    :raises InvalidConfigurationError: if stdin is not a terminal, or ends or is interrupted before an answer.
    """
    if args.dry_run or args.yes:
        return True
    if not sys.stdin.isatty():
        raise InvalidConfigurationError(
            "Expected a terminal for the confirmation, found none; give --yes or --dry-run."
        )
    try:
        # The rows on stdout are those of the changes, which a program can parse.
        with contextlib.redirect_stdout(sys.stderr):
            show()
        answer = _answer_to(question)
    except KeyboardInterrupt:
        answer = ""
    if not answer:
        sys.stderr.write("\n")
        raise InvalidConfigurationError(
            "Expected an answer, found none; nothing was changed. Repeat the command, or give --yes."
        )
    if answer.strip().lower() in ("y", "yes"):
        return True
    print_message("Nothing was changed.")
    return False


def _answer_to(question: str) -> str:
    """Return the line that the user enters, or an empty text at the end of the input."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline()


def print_rows(rows: list[Row], output: str) -> None:
    """
    Print rows in an output format.

    :param rows: Rows with equal keys; the values of keys that end in ``bytes`` are sizes in bytes.
    :param output: ``table``, ``plain``, ``json`` or ``yaml``.
    """
    _print(rows, output, _text)


def print_values(rows: list[Row], output: str) -> None:
    """
    Print rows of a user's data as :func:`print_rows`, without rounding numbers or reading sizes into column names.

    :param rows: Rows with equal keys.
    :param output: ``table``, ``plain``, ``json`` or ``yaml``.
    """
    _print(rows, output, lambda _, value: _value_text(value))


def _print(rows: list[Row], output: str, text: Callable[[str, Any], str]) -> None:
    try:
        _write(rows, output, text)
        sys.stdout.flush()
    except BrokenPipeError as error:
        _discard_output()
        raise _UnreadError from error


def _discard_output() -> None:
    # Python writes what is left of the output when it ends, and would report the same error again.
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _write(rows: list[Row], output: str, text: Callable[[str, Any], str]) -> None:
    if output == "json":
        # The other control characters are escaped by JSON itself.
        sys.stdout.write(json.dumps([_data(row) for row in rows], indent=2).replace("\x7f", "\\u007f") + "\n")
    elif output == "yaml":
        _print_yaml([_data(row) for row in rows])
    else:
        _print_table([{printable(key): text(key, value) for key, value in row.items()} for row in rows], output)


def _print_yaml(rows: list[Row]) -> None:
    from airflow.utils import yaml

    text = yaml.safe_dump(rows, sort_keys=False, allow_unicode=True)
    if not is_printable(text.replace("\n", "")):
        # YAML escapes fewer characters if it may write others than those of ASCII.
        text = yaml.safe_dump(rows, sort_keys=False, allow_unicode=False)
    sys.stdout.write(text)


def _print_table(rows: list[dict[str, str]], output: str) -> None:
    from airflow.cli.simple_table import AirflowConsole

    # Names of users may contain [eu] or :x:, which rich would read as markup and emoji.
    AirflowConsole(markup=False, emoji=False, highlight=False).print_as(data=rows, output=output)


def _data(row: Row) -> Row:
    return {key: value.isoformat() if isinstance(value, datetime) else value for key, value in row.items()}


def _text(key: str, value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    return readable_size(value) if key.endswith("bytes") and value is not None else _value_text(value)


def _value_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    return "\n".join(printable(str(each)) for each in value) if isinstance(value, list) else printable(str(value))


def job_row(overview: JobOverview, computing: list[str]) -> Row:
    """
    Return the row of a job.

    :param computing: What its tasks are working on.
    """
    return {
        "name": overview.name,
        "job_id": overview.job_id,
        "status": overview.status.value,
        "computing": computing,
        "operators": overview.operators,
        "dags": list(overview.dag_ids),
        "checkpoint": overview.checkpoint_id,
        "completed_at": overview.completed_at,
        "bytes": overview.full_size_bytes,
        "earlier_bytes": overview.earlier_size_bytes,
        "failed_at": overview.failed_at,
        "failure": overview.problem or overview.failure,
    }


def checkpoint_rows(view: JobView, checkpoints: Iterable[CheckpointRecord]) -> list[Row]:
    """Return the rows of checkpoints of a job."""
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
        "pointer": redact(checkpoint.location),
        "failure": _failure(checkpoint),
    }


def _failure(checkpoint: CheckpointRecord) -> str | None:
    if checkpoint.unusable_reason is not None:
        return f"unusable: {checkpoint.unusable_reason}"
    if checkpoint.failure_reason is None:
        return None
    return f"{checkpoint.failure_reason}: {checkpoint.failure_message}"


def operators_of(view: JobView, uid: str | None) -> list[OperatorRecord]:
    """
    Return the operator with a uid, or all operators of a job.

    :raises CheckpointNotFoundError: if no operator has this uid.
    """
    operators = [operator for operator in view.operators if uid in (None, operator.uid)]
    if not operators:
        uids = ", ".join(operator.uid for operator in view.operators)
        raise CheckpointNotFoundError(
            f"Expected an operator of job {view.job.name!r}, found {uid!r}; give one of {uids}."
        )
    return operators
