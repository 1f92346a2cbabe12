"""The button on a task's page that leads to its checkpoints, there from the beginning of the task on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from airflow.sdk import BaseOperatorLink
from typing_extensions import override

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.gateway.protocol import JOB_PAGES, MOUNT_PATH


class CheckpointsLink(BaseOperatorLink):
    """Leads to the page of the task's job."""

    name = "Checkpoints"

    @override
    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address of the page, nothing for a task that has not begun."""
        return getattr(operator, "checkpoints_url", None) or ""


def push_link(operator: Any, context: Mapping[str, Any], job_name: str) -> None:
    """Make the button work while the task runs; Airflow itself sets it when the task has ended."""
    operator.checkpoints_url = page_of(job_name)
    context["ti"].xcom_push(key=CheckpointsLink().xcom_key, value=operator.checkpoints_url)


def page_of(job_name: str) -> str:
    """Return the address of a job's page as a browser reaches it."""
    from airflow.sdk.configuration import conf

    base = conf.get("api", "base_url", fallback="/") or "/"
    root = base if urlsplit(base).scheme else f"/{base.strip('/')}"
    return f"{root.rstrip('/')}{MOUNT_PATH}{JOB_PAGES}/{job_id_of(job_name)}"
