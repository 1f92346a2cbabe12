"""
Names of what a submitted driver is given: its mailbox, and the application that runs a stage.

The application is a file, because services and ``spark-submit`` run a file.
"""

from __future__ import annotations

MAILBOX_PROPERTY = "spark.statecheck.mailbox"
"""Property of Spark with the URI of the mailbox of a driver."""
MAILBOX_ARGUMENT = "--statecheck-mailbox"
"""Argument of an application with that URI, where there are no properties."""
STAGE_APPLICATION = "statecheck_stage.py"
"""Name of the application that runs a stage, which is part of this package."""
STAGE_ARGUMENT = "--statecheck-stage"
"""Location of the stage, for services whose arguments have names."""
STAGE_PROGRAM = b"""from airflow_provider_statecheck.spark.stages.stage_run import main

if __name__ == "__main__":
    main()
"""
