"""A job as one HTML page, without scripts and without anything from elsewhere."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from airflow_provider_statecheck.checkpoint.job_view import JobView
from airflow_provider_statecheck.checkpoint.records import AttemptRecord, CheckpointRecord, OperatorRecord

_BINARY_STEP = 1024


def render_job(view: JobView) -> str:
    """
    Return the page.

    Names, reasons and messages are the users' own; all of them are escaped.
    """
    return _template().render(job=view.job, operators=[_newest_first(view, each) for each in view.operators])


def _newest_first(
    view: JobView, operator: OperatorRecord
) -> tuple[OperatorRecord, list[AttemptRecord], list[CheckpointRecord]]:
    attempts = [a for a in view.attempts if a.operator_id == operator.operator_id]
    return operator, attempts[::-1], list(view.of_operator(operator.operator_id))[::-1]


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
    return environment.get_template("job.html")


def readable_size(count: int) -> str:
    """Return a number of bytes with a binary unit, such as ``1.5 MiB``."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < _BINARY_STEP:
            break
        size, unit = size / _BINARY_STEP, larger
    return f"{int(size)} B" if unit == "B" else f"{size:.1f} {unit}"
