"""Application file for ``spark-submit`` that runs a stage."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_statecheck.spark.driver.readiness import write_file

_CODE = b"""from airflow_provider_statecheck.spark.stages.submitted import main

if __name__ == "__main__":
    main()
"""
# A separate folder, because Python puts the application's folder first on its module search path.
_FOLDER, _NAME = "stage-application", "statecheck_stage.py"


def write_stage_application(folder: Path) -> Path:
    """Write the application below a folder if it does not exist, and return its path."""
    return write_file(folder / _FOLDER / _NAME, _CODE)
