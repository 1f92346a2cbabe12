"""Link from a task's page to the checkpoints of its job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from airflow.sdk import BaseOperatorLink

from airflow_provider_statecheck.overriding import override


class CheckpointsLink(BaseOperatorLink):
    """Link to the page of the task's checkpoints, available when the task starts."""

    name = "Checkpoints"

    @override
    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the URL of the page, empty for a task that has not started."""
        return getattr(operator, "checkpoints_url", None) or ""


def push_link(operator: Any, context: Mapping[str, Any]) -> None:
    """Set the link when the task starts; Airflow itself sets it after the task ends."""
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import SetXCom

    ti = context["ti"]
    operator.checkpoints_url = page_of(ti)
    message = SetXCom(
        key=CheckpointsLink().xcom_key,
        value=operator.checkpoints_url,
        dag_id=ti.dag_id,
        run_id=ti.run_id,
        task_id=ti.task_id,
        map_index=ti.map_index,
    )
    # Sent as a raw message because a custom XCom backend could replace the value by a reference, which the button would
    # open.
    task_runner.SUPERVISOR_COMMS.send(message)


def page_of(ti: Any) -> str:
    """Return the external URL of the page of a task instance's checkpoints."""
    dag_id, run_id, task_id = (quote(str(part), safe="") for part in (ti.dag_id, ti.run_id, ti.task_id))
    map_index = getattr(ti, "map_index", -1)
    query = f"?map_index={map_index}" if map_index >= 0 else ""
    return f"{pages_root()}/dags/{dag_id}/runs/{run_id}/tasks/{task_id}{query}"


def pages_root() -> str:
    """Return the external URL below which the pages are, or its path if the base URL has no host."""
    from airflow.sdk.configuration import conf

    from airflow_provider_statecheck.gateway.verbs import MOUNT_PATH

    base = conf.get("api", "base_url", fallback="/") or "/"
    parts = urlsplit(base)
    # The link is stored and shown; a browser asks for a user and a password itself.
    public = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    root = public if parts.scheme else f"/{base.strip('/')}"
    return f"{root.rstrip('/')}{MOUNT_PATH}"
