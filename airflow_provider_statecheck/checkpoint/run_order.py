"""Order of the runs that share a job, and the state before a run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import dropwhile, groupby

from airflow_provider_statecheck.checkpoint.records import CheckpointRecord

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def is_earlier(run_key: str, other: str) -> bool:
    """Return whether a run has an earlier logical date than another run."""
    date, other_date = logical_date_of(run_key), logical_date_of(other)
    return date is not None and other_date is not None and date < other_date


def is_same(run_key: str, other: str) -> bool:
    """Return whether two run keys are equal, or are the same logical date in different notations."""
    return run_key == other or (
        logical_date_of(run_key) is not None and logical_date_of(run_key) == logical_date_of(other)
    )


def remaining_after_rollback(checkpoints: Sequence[CheckpointRecord], run_key: str) -> tuple[CheckpointRecord, ...]:
    """
    Return the checkpoints that remain after a rollback of the run that took the newest ones.

    :param checkpoints: Checkpoints of one generation, newest first.
    :param run_key: Run to roll back.
    """
    others = (index for index, checkpoint in enumerate(checkpoints) if checkpoint.run_key != run_key)
    return tuple(checkpoints[next(others, len(checkpoints)) :])


def checkpoints_before_run(checkpoints: Sequence[CheckpointRecord], run_key: str) -> tuple[CheckpointRecord, ...]:
    """
    Return the checkpoints that were taken before a run started.

    For a run without checkpoints, these are the checkpoints from the newest run with an earlier logical date on. Newer runs
    without a logical date are skipped.

    :param checkpoints: Checkpoints of one generation, newest first.
    :param run_key: Run, with or without checkpoints.
    """
    keys = [checkpoint.run_key for checkpoint in checkpoints]
    own = [index for index, key in enumerate(keys) if is_same(run_key, key)]
    # A run starts from the checkpoint before its own first one, even if that run has no logical date.
    if own:
        return tuple(checkpoints[own[-1] + 1 :])
    later = [index for index, key in enumerate(keys) if is_earlier(run_key, key)]
    rest = checkpoints[later[-1] + 1 if later else 0 :]
    return tuple(dropwhile(lambda checkpoint: not is_earlier(checkpoint.run_key, run_key), rest))


def ends_of_runs(checkpoints: Sequence[CheckpointRecord]) -> Iterator[CheckpointRecord]:
    """
    Yield the newest checkpoint of each run.

    :param checkpoints: Checkpoints of one generation, newest first.
    """
    return (next(group) for _, group in groupby(checkpoints, lambda checkpoint: checkpoint.run_key))


def logical_date_of(run_key: str) -> datetime | None:
    """Return the logical date in a run key, or ``None`` if the key is a run id."""
    # fromisoformat() also accepts plain digits, which may be a run id.
    if _DATE.match(run_key) is None:
        return None
    try:
        date = datetime.fromisoformat(run_key)
    except ValueError:
        return None
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)
