"""What is kept of an operator's checkpoints after their rows are gone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsRecord:
    """Counts, summaries and latest checkpoints of one operator, of bounded size."""

    job_id: JobId
    operator_id: OperatorId
    content: dict[str, Any] = field(default_factory=dict)
