"""What Airflow is told about this provider; imports nothing, for every Airflow process reads it."""

from __future__ import annotations

from typing import Any

_INTEGRATION = "Statecheck"
_ADDED = "0.1.0"


def _option(description: str, kind: str, default: str | None, example: str | None = None) -> dict[str, Any]:
    return {
        "description": description,
        "version_added": _ADDED,
        "type": kind,
        "example": example,
        "default": default,
    }


def get_provider_info() -> dict[str, Any]:
    """Return the provider's declaration."""
    return {
        "package-name": "airflow-provider-statecheck",
        "name": _INTEGRATION,
        "description": "Checkpointed batch pipelines: a failed Spark task goes on from its last completed checkpoint.",
        "integrations": [
            {
                "integration-name": _INTEGRATION,
                "tags": ["service"],
            }
        ],
        "operators": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": [
                    "airflow_provider_statecheck.operators.pyspark",
                    "airflow_provider_statecheck.operators.spark_submit",
                    "airflow_provider_statecheck.operators.stage",
                    "airflow_provider_statecheck.operators.stage_submit",
                ],
            }
        ],
        "sensors": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": ["airflow_provider_statecheck.sensors.checkpoint"],
            }
        ],
        "triggers": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": ["airflow_provider_statecheck.triggers.checkpoint"],
            }
        ],
        "hooks": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": ["airflow_provider_statecheck.hooks.statecheck"],
            }
        ],
        "connection-types": [
            {
                "connection-type": "statecheck",
                "hook-class-name": "airflow_provider_statecheck.hooks.statecheck.StatecheckHook",
                "hook-name": "Statecheck coordinator",
                "ui-field-behaviour": {
                    "hidden-fields": ["schema", "port", "extra"],
                    "relabeling": {"host": "API URL"},
                    "placeholders": {
                        "host": "https://airflow.example.com",
                        "login": "a user of Airflow, only where tasks cannot prove themselves",
                    },
                },
                "conn-fields": {
                    "timeout": {
                        "label": "Timeout (s)",
                        "description": "How long to wait for an answer.",
                        "schema": {"type": ["integer", "null"], "default": 30, "minimum": 1},
                    }
                },
            }
        ],
        "task-decorators": [
            {
                "name": "checkpointed_spark",
                "class-name": "airflow_provider_statecheck.decorators.checkpointed_spark.checkpointed_spark_task",
            }
        ],
        "plugins": [
            {
                "name": "statecheck",
                "plugin-class": "airflow_provider_statecheck.plugins.statecheck.StatecheckPlugin",
            }
        ],
        "db-managers": ["airflow_provider_statecheck.metadata.db_manager.StatecheckDBManager"],
        "cli": ["airflow_provider_statecheck.cli.definition.get_statecheck_commands"],
        "config": {
            "statecheck": {
                "description": "Checkpoints of Spark tasks; an operator's argument of the same name comes first.",
                "options": _OPTIONS,
            }
        },
    }


_OPTIONS = {
    "checkpoint_dir": _option(
        "Where checkpoints are kept: any fsspec URI. Required unless each operator gives its own.",
        "string",
        None,
        "s3://lake/checkpoints",
    ),
    "storage_conn_id": _option(
        "Airflow connection with the credentials for checkpoint_dir; without it every process uses what its own "
        "environment has.",
        "string",
        None,
        "aws_default",
    ),
    "num_retained": _option("How many completed checkpoints of an operator to keep, at least 1.", "integer", "2"),
    "retained_runs": _option(
        "Of how many earlier runs of a job that lives over them the last checkpoint is kept beside those, so that as many "
        "runs can be begun again.",
        "integer",
        "1",
    ),
    "checkpoint_timeout_seconds": _option(
        "How long a checkpoint may take from its id to its acknowledgement.", "float", "600.0"
    ),
    "tolerable_failed_checkpoints": _option(
        "How many checkpoints may fail in a row before the task fails, -1 for any number.", "integer", "-1"
    ),
    "overhead_budget": _option(
        "Which part of a stage's time checkpointing may take, above 0 and up to 1; what is optional is put off beyond "
        "it. Without a value nothing is put off.",
        "float",
        None,
        "0.05",
    ),
    "checkpoint_interval": _option(
        "How much time lies between two checkpoints that are taken by themselves: milliseconds, a number with a unit, or "
        "auto, which finds it by what checkpoints cost and how often the job failed. Without a value a loop takes them "
        "after as many items as it says, and a stage with state after each increment.",
        "string",
        None,
        "5 min",
    ),
    "min_pause": _option(
        "How much time lies after a completed checkpoint before a loop takes the next one by itself: milliseconds, or a "
        "number with a unit.",
        "string",
        "0",
        "30 s",
    ),
    "externalized_checkpoint_retention": _option(
        "After which ends of a run its checkpoints stay: RETAIN_ON_CANCELLATION after a failure and when somebody marks "
        "the run as failed, DELETE_ON_CANCELLATION after a failure only, NO_EXTERNALIZED_CHECKPOINTS never. A job with a "
        "name of its own keeps them.",
        "string",
        "RETAIN_ON_CANCELLATION",
    ),
    "savepoint_dir": _option(
        "Where savepoints go whose request names no place: any fsspec URI.", "string", None, "s3://lake/savepoints"
    ),
    "data_inline_threshold": _option(
        "Up to how many bytes a stage's small values are written into the metadata of a checkpoint instead of a file "
        "of their own: bytes, or a number with a unit (KiB, MiB; KB, MB), up to 1 MiB.",
        "string",
        "20 KiB",
    ),
    "allowed_locations": _option(
        "URIs, separated by commas, in which checkpoints and savepoints may name files, beside the bucket or host (of file: the "
        "directory) of checkpoint_dir, of savepoint_dir and of a pointer that is given. A URI anywhere else in their metadata "
        "is refused and not opened.",
        "string",
        None,
        "s3://archive, file:///mnt/old-checkpoints",
    ),
    "api_url": _option(
        "Root of the api-server as tasks and Spark drivers reach it; by default what [core] execution_api_server_url "
        "says.",
        "string",
        None,
        "https://airflow.example.com",
    ),
    "maintenance_dags": _option(
        "Ids of the Dags, separated by commas, whose tasks may remove rows of what has ended.",
        "string",
        "statecheck_maintenance",
    ),
    "on_clear": _option(
        "What a cleared task does: resume_unchanged keeps the steps whose code did not change (after a success its run "
        "begins again), resume keeps every step, restart lets its run begin again.",
        "string",
        "resume_unchanged",
    ),
    "on_overlap": _option(
        "What a task does while the same operator of its job still runs for another run: fail at once, or wait for its end.",
        "string",
        "fail",
    ),
}
