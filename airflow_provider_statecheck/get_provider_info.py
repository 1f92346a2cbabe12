"""
Declaration of the provider for Airflow.

Every Airflow process loads this module, so it imports nothing.
"""

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
        "description": "Checkpointed batch pipelines: a failed Spark task resumes from its last completed checkpoint.",
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
                        "login": "an Airflow user, only if tasks cannot authenticate themselves",
                    },
                },
                "conn-fields": {
                    "timeout": {
                        "label": "Timeout (s)",
                        "description": "Maximum time to wait for a reply.",
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
                "description": "Checkpoints of Spark tasks. An argument of an operator takes precedence over the option of the same name.",
                "options": _OPTIONS,
            }
        },
    }


_OPTIONS = {
    "checkpoint_dir": _option(
        "Directory for checkpoints: any fsspec URI. Required unless each operator has its own.",
        "string",
        None,
        "s3://lake/checkpoints",
    ),
    "storage_conn_id": _option(
        "Airflow connection with the credentials for checkpoint_dir. Without it, every process uses the credentials of its "
        "environment.",
        "string",
        None,
        "aws_default",
    ),
    "num_retained": _option(
        "Maximum number of completed checkpoints to retain per operator, at least 1.", "integer", "2"
    ),
    "retained_runs": _option(
        "Number of earlier runs whose last checkpoint is retained in addition to num_retained, for a job that continues "
        "from run to run. As many runs can be run again.",
        "integer",
        "1",
    ),
    "checkpoint_timeout_seconds": _option(
        "Maximum time from the start of a checkpoint to its acknowledgement, in seconds.", "float", "600.0"
    ),
    "tolerable_failed_checkpoints": _option(
        "Number of consecutive checkpoint failures that a task tolerates before it fails; -1 for no limit.",
        "integer",
        "-1",
    ),
    "overhead_budget": _option(
        "Maximum share of a stage's time that checkpointing may take, above 0 and up to 1. Beyond it, optional checkpoints "
        "and snapshots are delayed. Without a value nothing is delayed.",
        "float",
        None,
        "0.05",
    ),
    "checkpoint_interval": _option(
        "Interval of periodic checkpoints: milliseconds, a number with a unit, or auto, which derives it from the cost of "
        "checkpoints and the failures of the job. Without a value, a loop takes a checkpoint after its configured number of "
        "items, and a stage with state after each increment.",
        "string",
        None,
        "5 min",
    ),
    "min_pause": _option(
        "Minimum pause between a completed checkpoint and the next periodic checkpoint of a loop: milliseconds, or a number "
        "with a unit.",
        "string",
        "0",
        "30 s",
    ),
    "externalized_checkpoint_retention": _option(
        "Retention of checkpoints after the end of a run. RETAIN_ON_CANCELLATION retains them after a failure and if a user "
        "marks the run as failed, DELETE_ON_CANCELLATION after a failure only, NO_EXTERNALIZED_CHECKPOINTS never. A job with "
        "a fixed name always retains them.",
        "string",
        "RETAIN_ON_CANCELLATION",
    ),
    "savepoint_dir": _option(
        "Default directory for savepoints: any fsspec URI. A request can name another one.",
        "string",
        None,
        "s3://lake/savepoints",
    ),
    "data_inline_threshold": _option(
        "Maximum size of a small value of a stage that is stored in the metadata of a checkpoint instead of a separate "
        "file: bytes, or a number with a unit (KiB, MiB; KB, MB), up to 1 MiB.",
        "string",
        "20 KiB",
    ),
    "allowed_locations": _option(
        "Comma-separated URIs where checkpoints and savepoints may reference files, in addition to the bucket or host (for "
        "local paths the directory) of checkpoint_dir, savepoint_dir and a given pointer. A reference to any other location "
        "is rejected before it is opened.",
        "string",
        None,
        "s3://archive, file:///mnt/old-checkpoints",
    ),
    "api_url": _option(
        "Root URL of the api-server as seen from tasks and Spark drivers. The default is derived from [core] "
        "execution_api_server_url.",
        "string",
        None,
        "https://airflow.example.com",
    ),
    "maintenance_dags": _option(
        "Comma-separated ids of the Dags whose tasks may take savepoints of whole jobs, restore jobs in place, and remove rows "
        "of ended attempts, checkpoints and jobs.",
        "string",
        "statecheck_maintenance",
    ),
    "read_other_jobs": _option(
        "Whether tasks may read jobs on which their Dag does not work: rows, pointers and, where state is served, queryable state "
        "and snapshots. With [core] multi_team, they read jobs of their own team only. Sensors and hooks that wait for the job of "
        "another Dag need it. Only the api-server reads this option.",
        "boolean",
        "True",
    ),
    "serve_state": _option(
        "Whether the api-server serves queryable state. It needs read access to checkpoint_dir with storage_conn_id. "
        "Otherwise, run airflow statecheck serve-state on another machine.",
        "boolean",
        "True",
    ),
    "state_requests_per_second": _option(
        "Maximum number of requests for queryable state per second, for each process of a server: on the api-server for "
        "each task and user, on other servers for each token; 0 for any number.",
        "float",
        "0.0",
        "50.0",
    ),
    "on_clear": _option(
        "Behaviour of a cleared task: resume_unchanged keeps the steps whose code did not change (after a success, its run "
        "starts again), resume keeps every step, restart starts its run again.",
        "string",
        "resume_unchanged",
    ),
    "on_overlap": _option(
        "Behaviour of a task while the same operator of its job still runs for another run: fail at once, or wait for its "
        "end.",
        "string",
        "fail",
    ),
}
