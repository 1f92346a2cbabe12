"""
The application of a submitted stage, and the argument that names the stage.

It is a file of its own, because services and ``spark-submit`` run a file.
"""

from __future__ import annotations

STAGE_APPLICATION = "statecheck_stage.py"
"""Name of the application that runs a stage, which is part of this package."""
STAGE_ARGUMENT = "--statecheck-stage"
"""Location of the stage, for services whose arguments have names."""
STAGE_PROGRAM = b"""from airflow_provider_statecheck.spark.stages.stage_run import main

if __name__ == "__main__":
    main()
"""
