"""The application that runs a stage, as a file of its own for ``spark-submit``."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_statecheck.spark.driver.readiness import write_file

_CODE = b"""from airflow_provider_statecheck.spark.stages.submitted import main

if __name__ == "__main__":
    main()
"""
# A folder of its own: Python searches the application's folder first, and finds nothing else there.
_FOLDER, _NAME = "stage-application", "statecheck_stage.py"


def write_stage_application(folder: Path) -> Path:
    """Write the application below a folder, unless it is there, and return its path."""
    return write_file(folder / _FOLDER / _NAME, _CODE)
