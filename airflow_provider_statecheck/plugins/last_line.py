"""Makes what was kept the last thing that a failed try says, below Airflow's own account of the error."""

from __future__ import annotations

import logging
from typing import Any

from airflow.listeners import hookimpl

log = logging.getLogger(__name__)


@hookimpl
def on_task_instance_failed(task_instance: Any) -> None:
    """Repeat what the stage said when it was closed."""
    kept = getattr(getattr(task_instance, "task", None), "kept", None)
    if isinstance(kept, str):
        log.error("%s", kept)
