"""
How a Python application is submitted to a standalone cluster in cluster mode, which spark-submit refuses.

The refusal is for applications whose name ends in ``.py``. So a jar without a class is submitted instead, with Spark's own
``PythonRunner`` as the main class: it is what spark-submit starts for a Python application in client mode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError

PYTHON_RUNNER = "org.apache.spark.deploy.PythonRunner"
_LOCAL_PREFIXES = ("file://", "local:", "file:")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPython:
    """What takes the place of a Python application's own arguments."""

    application_args: list[str]
    files: str | None
    conf: dict[str, Any]


def as_cluster_python(
    application: str,
    application_args: Sequence[Any] | None,
    *,
    py_files: str | None,
    files: str | None,
    conf: Mapping[str, Any],
) -> ClusterPython:
    """
    Return how ``PythonRunner`` takes an application.

    :param application: The script, at a path that every worker sees.
    :param py_files: Comma-separated Python files, at such paths too.
    :raises InvalidConfigurationError: for a path on another filesystem, from which a worker does not fetch it.
    """
    python_files = [path for path in (py_files or "").split(",") if path]
    for path in (application, *python_files):
        _require_path(path)
    return ClusterPython(
        application_args=[application, ",".join(python_files), *map(str, application_args or ())],
        # PythonRunner gives the files to the driver alone; these two give them to the executors.
        files=",".join(filter(None, (files, *python_files))) or None,
        conf={**conf, **({"spark.submit.pyFiles": ",".join(python_files)} if python_files else {})},
    )


def _require_path(path: str) -> None:
    bare = path
    for prefix in _LOCAL_PREFIXES:
        bare = bare.removeprefix(prefix)
    if not Path(bare).is_absolute() or "://" in bare:
        raise InvalidConfigurationError(
            f"Expected the Python files of an application in cluster mode at absolute paths that every worker sees, found "
            f"{path!r}; put it on a filesystem that they share, or use client mode."
        )
