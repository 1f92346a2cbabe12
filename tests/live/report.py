"""Lines of the table at the end: what was lost in each case, and what was not."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from airflow_provider_statecheck.checkpoint.ids import operator_id_of
from airflow_provider_statecheck.checkpoint.records import AttemptRecord, CheckpointRecord
from airflow_provider_statecheck.checkpoint.store import JobView
from tests.live.cases import Case
from tests.live.runs import StageRun


@dataclass(frozen=True, slots=True)
class Row:
    case: str
    lost: str
    restored: str
    tries: str
    seconds: str


HEAD = Row("case", "computed again", "restored", "tries", "seconds")


def row_of(case: Case, run: StageRun, seconds: float) -> Row:
    """Say of a run that has ended what it computed more than once and what its last tries started from."""
    view = run.job()
    again = [what for e in case.expected for what, times in Counter(run.computed(e.part)).items() if times > 1]
    last = [attempts_of(view, e.uid)[-1] for e in case.expected]
    restored = " | ".join(restored_of(view, attempt) for attempt in last)
    return Row(case.name, ", ".join(again) or "nothing", restored, str(run.tries()), f"{seconds:.0f}")


def attempts_of(view: JobView, uid: str) -> list[AttemptRecord]:
    """Return the attempts of one stage, in the order they came."""
    return [a for a in view.attempts if a.operator_id == operator_id_of(uid)]


def restored_of(view: JobView, attempt: AttemptRecord) -> str:
    """Say in words what an attempt started from."""
    if attempt.restored_from is None:
        return "nothing"
    checkpoint = next(c for c in view.checkpoints if c.checkpoint_id == attempt.restored_from)
    return f"{_count(checkpoint, 'snapshots', 'step')}, {_count(checkpoint, 'items', 'item')}"


def _count(checkpoint: CheckpointRecord, kind: str, word: str) -> str:
    number = checkpoint.counts[kind]
    return f"{number} {word}{'' if number == 1 else 's'}"
