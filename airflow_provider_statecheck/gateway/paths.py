"""Where the API lies on Airflow's api-server."""

from __future__ import annotations

from urllib.parse import urlencode

from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.job_view import CheckpointPage

MOUNT_PATH = "/statecheck"
VERSION_PATH = "/v1"
JOB_PAGES = "/jobs"


def page_path(job_id: JobId, page: CheckpointPage) -> str:
    """Return the path of a page of the checkpoints of a job."""
    asked = {"before": page.before, "limit": page.limit, "operator_id": page.operator_id, "status": page.status}
    return f"jobs/{job_id}/checkpoints?{urlencode({key: value for key, value in asked.items() if value is not None})}"
