"""A job as one HTML page, without scripts and without anything from elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from airflow_provider_statecheck.checkpoint.job_view import RECENT, JobView
from airflow_provider_statecheck.checkpoint.records import AttemptRecord, CheckpointRecord, OperatorRecord
from airflow_provider_statecheck.checkpoint.statistics.custody import Custody, custody_of
from airflow_provider_statecheck.checkpoint.statistics.snapshot import CheckpointStatsSnapshot, snapshot_of
from airflow_provider_statecheck.checkpoint.units import readable_size


def render_job(view: JobView) -> str:
    """
    Return the page.

    Names, reasons and messages are the users' own; all of them are escaped.
    """
    return _template().render(job=view.job, operators=[_shown(view, each) for each in view.operators])


@dataclass(frozen=True, slots=True, kw_only=True)
class _ShownOperator:
    """An operator as the page shows it, everything newest first."""

    uid: str
    statistics: CheckpointStatsSnapshot
    attempts: tuple[AttemptRecord, ...]
    checkpoints: tuple[tuple[CheckpointRecord, Custody], ...]


def _shown(view: JobView, operator: OperatorRecord) -> _ShownOperator:
    attempts = [a for a in view.attempts if a.operator_id == operator.operator_id]
    checkpoints = view.of_operator(operator.operator_id)
    return _ShownOperator(
        uid=operator.uid,
        statistics=snapshot_of(view, operator),
        attempts=tuple(reversed(attempts[-RECENT:])),
        checkpoints=tuple((c, custody_of(view, c)) for c in reversed(checkpoints)),
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("airflow_provider_statecheck.api"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["size"] = readable_size
    environment.filters["seconds"] = _readable_seconds
    return environment.get_template("job.html")


def _readable_seconds(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.1f} s"
