"""The runs of a job that lives over them: which came before which, and where the state stood before one began."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import dropwhile, groupby

from airflow_provider_statecheck.checkpoint.records import CheckpointRecord

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def is_earlier(run_key: str, other: str) -> bool:
    """Tell whether a run is known to come before another: both have a logical date, and its own is the earlier one."""
    mine, theirs = logical_date_of(run_key), logical_date_of(other)
    return mine is not None and theirs is not None and mine < theirs


def is_same(run_key: str, other: str) -> bool:
    """Tell whether two names are of one run: the same text, or the same moment in another form."""
    return run_key == other or (
        logical_date_of(run_key) is not None and logical_date_of(run_key) == logical_date_of(other)
    )


def taken_before(checkpoints: Sequence[CheckpointRecord], run_key: str) -> tuple[CheckpointRecord, ...]:
    """
    Return what is left where a run is taken back that took the newest checkpoints.

    :param checkpoints: Of one generation, newest first.
    :param run_key: The run.
    """
    others = (number for number, checkpoint in enumerate(checkpoints) if checkpoint.run_key != run_key)
    return tuple(checkpoints[next(others, len(checkpoints)) :])


def stood_before(checkpoints: Sequence[CheckpointRecord], run_key: str) -> tuple[CheckpointRecord, ...]:
    """
    Return what had been taken when a run began, whether it took anything itself or not.

    Where it took nothing, those count that are known to come before it: a run without a logical date between them and the
    run's place in time is passed over.

    :param checkpoints: Of one generation, newest first.
    :param run_key: The run.
    """
    keys = [checkpoint.run_key for checkpoint in checkpoints]
    own = [number for number, key in enumerate(keys) if is_same(run_key, key)]
    # What a run began at is right behind its own, also where that is of a run without a logical date.
    if own:
        return tuple(checkpoints[own[-1] + 1 :])
    later = [number for number, key in enumerate(keys) if is_earlier(run_key, key)]
    rest = checkpoints[later[-1] + 1 if later else 0 :]
    return tuple(dropwhile(lambda checkpoint: not is_earlier(checkpoint.run_key, run_key), rest))


def ends_of_runs(checkpoints: Sequence[CheckpointRecord]) -> Iterator[CheckpointRecord]:
    """
    Yield the newest checkpoint of each run.

    :param checkpoints: Of one generation, newest first.
    """
    return (next(taken) for _, taken in groupby(checkpoints, lambda checkpoint: checkpoint.run_key))


def logical_date_of(run_key: str) -> datetime | None:
    """Return the logical date that is the name of a run; ``None`` for a run with another name."""
    # A run id may be anything; only what begins like a date is one, not a number that could be read as such.
    if _DATE.match(run_key) is None:
        return None
    try:
        date = datetime.fromisoformat(run_key)
    except ValueError:
        return None
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)
