"""Link from a task's page to the checkpoints of its job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from airflow.sdk import BaseOperatorLink
from typing_extensions import override

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.gateway.protocol import JOB_PAGES, MOUNT_PATH


class CheckpointsLink(BaseOperatorLink):
    """Link to the page of the task's job, available when the task starts."""

    name = "Checkpoints"

    @override
    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the URL of the page, empty for a task that has not started."""
        return getattr(operator, "checkpoints_url", None) or ""


def push_link(operator: Any, context: Mapping[str, Any], job_name: str) -> None:
    """Set the link when the task starts; Airflow itself sets it after the task ends."""
    operator.checkpoints_url = page_of(job_name)
    context["ti"].xcom_push(key=CheckpointsLink().xcom_key, value=operator.checkpoints_url)


def page_of(job_name: str) -> str:
    """Return the external URL of a job's page."""
    from airflow.sdk.configuration import conf

    base = conf.get("api", "base_url", fallback="/") or "/"
    root = base if urlsplit(base).scheme else f"/{base.strip('/')}"
    return f"{root.rstrip('/')}{MOUNT_PATH}{JOB_PAGES}/{job_id_of(job_name)}"
