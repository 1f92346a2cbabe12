"""What the Python of a Spark driver must have beside the package itself."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable

from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError

NEEDED_ON_A_DRIVER = ("fsspec", "httpx", "pyarrow", "pyspark")


def check_driver_packages(is_installed: Callable[[str], bool] | None = None) -> None:
    """
    Refuse to start where the driver would fail later and less clearly.

    :param is_installed: Tells whether a package can be imported.
    :raises EnvironmentNotReadyError: naming what is missing.
    """
    present = is_installed or _is_importable
    missing = [name for name in NEEDED_ON_A_DRIVER if not present(name)]
    if missing:
        raise EnvironmentNotReadyError(
            f"Expected the packages {', '.join(NEEDED_ON_A_DRIVER)} in the driver's Python {sys.executable}, found no "
            f"{', no '.join(missing)}; install them there."
        )


def _is_importable(name: str) -> bool:
    return importlib.util.find_spec(name) is not None
