"""
Meaning of an error with which a stage ends: the status of its attempt is that of its task.

Some errors are no failures. Airflow skips a task that raises ``AirflowSkipException``, and a process that calls
``sys.exit(0)`` has succeeded. Who judges the error depends on the process: Airflow in a task, where also
``sys.exit(0)`` is a failure, else the process that started this one, which sees the exit status only.
"""

from __future__ import annotations

import sys
from typing import Any

_AIRFLOW = "airflow.sdk"
_AIRFLOW_ERRORS = "airflow.sdk.exceptions"
# The trigger of another run is raised when the work of the task is done.
_SUCCESSFUL = ("AirflowSkipException", "DownstreamTasksSkipped", "DagRunTriggerException")
_LEAVING = ("TaskDeferred", "AirflowRescheduleException", "TaskAwaitingInput")
_EXIT_STATUSES = 256


def is_success(error: BaseException) -> bool:
    """Return whether an error ends the task or process without a failure, as a skip does."""
    if _runs_in_a_task():
        return isinstance(error, _airflow_errors(_SUCCESSFUL))
    return isinstance(error, SystemExit) and _is_exit_of_success(error.code)


def message_of(error: BaseException) -> str:
    """Return the message of an attempt that ends with an error."""
    text = f"{type(error).__name__}: {_text_of(error)}"
    if _runs_in_a_task() and isinstance(error, _airflow_errors(_LEAVING)):
        return f"{text} (the task left without an end, and resumes from its last checkpoint when it returns)"
    return text


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as unreachable:
        # The text of a Java error is fetched from the JVM, which may have died.
        return str(unreachable)


def _is_exit_of_success(code: object) -> bool:
    # Python prints any other value and exits with 1; the system keeps the last byte of a number.
    return code is None or (isinstance(code, int) and code % _EXIT_STATUSES == 0)


def _runs_in_a_task() -> bool:
    # This package runs without Airflow too; a task has loaded it.
    airflow: Any = sys.modules.get(_AIRFLOW)
    if airflow is None:
        return False
    try:
        airflow.get_current_context()
    except RuntimeError:
        return False
    return True


def _airflow_errors(names: tuple[str, ...]) -> tuple[type[BaseException], ...]:
    # Versions of Airflow differ in the errors that they have.
    errors = sys.modules.get(_AIRFLOW_ERRORS)
    return tuple(kind for name in names if (kind := getattr(errors, name, None)) is not None)
