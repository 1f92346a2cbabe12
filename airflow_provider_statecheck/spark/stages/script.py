"""A stage in a notebook or a plain script, without Airflow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.claims import RestoreMode
from airflow_provider_statecheck.checkpoint.records import OnClear
from airflow_provider_statecheck.spark.script import open_attempt
from airflow_provider_statecheck.spark.stages.stage import Stage
from airflow_provider_statecheck.spark.stages.stage_run import StageResult, StageRun
from airflow_provider_statecheck.spark.stages.stage_settings import StageSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_stage(
    spark: SparkSession,
    stage: Stage,
    *,
    job: str,
    checkpoint_dir: str,
    metadata: str,
    run: str = "script",
    on_clear: OnClear | str = OnClear.RESUME_UNCHANGED,
    num_retained: int = 2,
    retained_runs: int = 1,
    settings: StageSettings | None = None,
    storage_options: dict[str, Any] | None = None,
    from_savepoint: str | None = None,
    claim_mode: RestoreMode | str = RestoreMode.NO_CLAIM,
    from_checkpoint: str | None = None,
    fork: str | None = None,
    allowed_locations: Sequence[str] = (),
) -> StageResult:
    """
    Run a stage to its end, or from where its last try failed.

    :param job: Name of the unit of recovery.
    :param checkpoint_dir: Where the bytes go: a path or any fsspec URI.
    :param metadata: SQLAlchemy URL of the database for the rows, such as ``sqlite:///state.db``; its tables are made.
    :param run: Name of the run; a new one goes on from the state of the last. Names that are dates, such as ``2026-01-05``,
        are in their order, and an earlier one is refused.
    :param on_clear: ``resume_unchanged`` (default), ``resume`` or ``restart``.
    :param num_retained: How many completed checkpoints to keep, at least 1.
    :param retained_runs: Of how many earlier runs to keep the last checkpoint, so that as many can be begun again.
    :param settings: How the stage is run.
    :param storage_options: Options of the filesystem of the checkpoints.
    :param from_savepoint: Pointer to what a try begins from that would start with nothing.
    :param claim_mode: Whose that is then: ``no_claim`` (default, its owner's) or ``claim`` (the job's).
    :param from_checkpoint: For a run that works on a copy: the checkpoint of the job that it begins at, as an id,
        ``run:<run>``, ``before:<run>`` or a pointer.
    :param fork: Name of the copy, which is the job ``<job>@<fork>``; by default that of the run.
    :param allowed_locations: Where else checkpoints and savepoints may name files, as URIs such as ``s3://archive``.
    :raises InvalidConfigurationError: for an argument out of range, or a stage whose parts do not fit.
    :raises RunSupersededError: if the state stands at a later run.
    """
    settings = settings or StageSettings()
    attempt = open_attempt(
        spark,
        job=job,
        checkpoint_dir=checkpoint_dir,
        metadata=metadata,
        uid=stage.uid or "stage",
        run=run,
        on_clear=OnClear(on_clear),
        num_retained=num_retained,
        retained_runs=retained_runs,
        checkpoint_timeout_seconds=600.0,
        tolerable_failed_checkpoints=-1,
        storage_options=storage_options or {},
        savepoint_dir=None,
        from_savepoint=from_savepoint,
        claim_mode=RestoreMode(claim_mode),
        renamed_uids=settings.renamed_uids,
        allow_non_restored_state=settings.allow_non_restored_state,
        from_checkpoint=from_checkpoint,
        fork=fork,
        allowed_locations=allowed_locations,
        data_inline_threshold=settings.data_inline_threshold,
    )
    return StageRun(spark, attempt, stage, settings).run()
