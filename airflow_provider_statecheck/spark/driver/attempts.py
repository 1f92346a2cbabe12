"""
Attempts of drivers outside of tasks: of scripts, and of submitted applications.

A script has a metadata database of its own. A submitted driver gets its attempt from the operator by a handover in one
environment variable. In all supported modes, Spark passes variables with the prefix ``SPARK_`` to the driver. It does not
log them, show them on its pages or pass them to executors.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.codec import decode, encode
from airflow_provider_statecheck.checkpoint.config_options import one_of, parse_text
from airflow_provider_statecheck.checkpoint.ids import TEST_NAMESPACE, is_test_job, job_id_of, new_key, uids_before
from airflow_provider_statecheck.checkpoint.messages import RegisterAttempt
from airflow_provider_statecheck.checkpoint.properties import RestoreMode
from airflow_provider_statecheck.checkpoint.records import SCRIPT_PREFIX, AttemptOwner, OnClear
from airflow_provider_statecheck.checkpoint.secrets import remember_secrets, require_no_credentials
from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError, InvalidConfigurationError
from airflow_provider_statecheck.gateway.in_process import open_gateway
from airflow_provider_statecheck.gateway.time_travel import find_fork_source, fork_name
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.checkpoint_files import INLINE_STATE_BYTES
from airflow_provider_statecheck.spark.driver.readiness import make_ready, require_reachable
from airflow_provider_statecheck.spark.driver.session import give_workers_this_python, mask_settings
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.locations import parse_locations
from airflow_provider_statecheck.storage.pointers import find_source
from airflow_provider_statecheck.storage.uris import normalise_savepoint_dir, require_known_filesystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


HANDOVER_VARIABLE = "SPARK_STATECHECK_HANDOVER"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSettings:
    """Settings of a driver for its storage, checkpoints and state."""

    tolerable_failed_checkpoints: int = -1
    """Number of consecutive checkpoint failures that the stage tolerates; ``-1`` for no limit."""
    overhead_budget: float | None = None
    """Maximum share of the stage's time for checkpointing; ``None`` for no limit."""
    checkpoint_interval: str | None = None
    """Minimum interval between automatic checkpoints in milliseconds, or ``auto``; ``None`` for no minimum."""
    min_pause_ms: int = 0
    """Minimum pause in milliseconds between a completed checkpoint and the next automatic checkpoint."""
    data_inline_threshold: int = 20 * 1024
    """Maximum size in bytes of a value that is stored in the metadata."""
    savepoint_dir: str | None = None
    """Directory for savepoints without a target."""
    allowed_locations: tuple[str, ...] = ()
    """Further URIs where checkpoints may reference files."""
    storage_options: dict[str, Any] = field(default_factory=dict, repr=False)
    """Options of the fsspec filesystem, which may contain credentials."""
    logical_date: datetime | None = None
    """Logical date of the Dag run, which is the time for the expiry of state."""
    state_config: dict[str, str] = field(default_factory=dict)
    """Settings of the state backend and the checkpoint storage, by Flink's configuration keys."""
    parallelism: int | None = None
    """Number of subtasks; ``None`` for the parallelism of the stage."""
    renamed_uids: dict[str, str] = field(default_factory=dict)
    """New uids by old uids."""
    allow_non_restored_state: bool = False
    """Whether a restore may skip state that does not belong to any operator of the stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """Access of a driver to its attempt."""

    url: str
    """Root URL of the coordinator's server."""
    token: str = field(repr=False)
    """Token for this attempt only."""
    registration: RegisterAttempt
    """Registration that the operator sent; the driver repeats it and gets the same grant."""
    driver: DriverSettings

    def environment(self) -> dict[str, str]:
        """
        Return the environment variable of the handover. It contains a token; pass it to the child process only.

        :raises InvalidConfigurationError: The options of the storage are not plain values.
        """
        try:
            return {HANDOVER_VARIABLE: json.dumps(encode(self))}
        except (TypeError, ValueError):
            # The options may be credentials, and the suppressed error may quote them.
            names = ", ".join(sorted(self.driver.storage_options))
            raise InvalidConfigurationError(
                f"Expected plain values as options of the checkpoint storage ({names}), which are passed to a driver in "
                f"another process, found objects; set storage_options in the connection's extra."
            ) from None


def take_handover(environment: MutableMapping[str, str] | None = None) -> Handover:
    """
    Read the handover and remove it from the environment, which child processes inherit.

    :param environment: Environment variables, by default those of this process.
    :raises EnvironmentNotReadyError: There is no handover, or it has another version.
    """
    text = (os.environ if environment is None else environment).pop(HANDOVER_VARIABLE, None)
    if not text:
        raise EnvironmentNotReadyError(
            "Expected a driver that CheckpointedSparkSubmitOperator submitted, found a process without a handover; submit "
            "the application with that operator, or use StageContext.open outside of Airflow."
        )
    try:
        return decode(Handover, json.loads(text))
    except ValueError:
        # The text contains the token, and the suppressed error may quote it.
        raise EnvironmentNotReadyError(
            f"Expected a handover of this version in {HANDOVER_VARIABLE}, found another; run the driver with the package "
            f"that the operator ships."
        ) from None


def begin_submitted(handover: Handover, spark: SparkSession | None = None) -> tuple[SparkSession, StageAttempt]:
    """
    Return the session and the attempt of a submitted driver.

    :param spark: Session that computes the steps; by default the running one, else a new one.
    """
    session = spark or _session()
    _hide_from_workers(session)
    mask_settings(session)
    return session, _repeat_registration(session, handover)


def _repeat_registration(spark: SparkSession, handover: Handover) -> StageAttempt:
    from airflow_provider_statecheck.gateway.http import GivenToken, HttpClient, HttpGateway
    from airflow_provider_statecheck.gateway.verbs import OUTAGE_PAUSES_SECONDS, retrying

    storage = CheckpointStorage.open(handover.registration.storage_base, **handover.driver.storage_options)
    storage = storage.allowing(handover.driver.savepoint_dir, locations=handover.driver.allowed_locations)
    # No check for the package on executors: the operator has shipped it, or it is installed.
    require_reachable(spark, storage)
    remember_secrets([handover.token])
    http = HttpGateway(HttpClient(handover.url), GivenToken(handover.token))
    return StageAttempt(
        retrying(http, OUTAGE_PAUSES_SECONDS),
        storage,
        handover.registration,
        tolerable_failed_checkpoints=handover.driver.tolerable_failed_checkpoints,
        savepoint_dir=handover.driver.savepoint_dir,
        data_inline_threshold=handover.driver.data_inline_threshold,
    )


def _hide_from_workers(spark: SparkSession) -> None:
    # In local mode, Python workers inherit the environment of the JVM, which still has the handover.
    context = getattr(spark, "sparkContext", None)
    if context is not None:
        context.environment[HANDOVER_VARIABLE] = ""


def _session() -> SparkSession:
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()


def open_attempt(
    spark: SparkSession,
    *,
    job: str,
    checkpoint_dir: str,
    metadata: str,
    uid: str,
    run: str,
    on_clear: OnClear | str,
    num_retained: int,
    storage_options: dict[str, Any],
    from_savepoint: str | None,
    claim_mode: RestoreMode | str,
    renamed_uids: Mapping[str, str],
    allow_non_restored_state: bool,
    checkpoint_timeout_seconds: float = 600.0,
    tolerable_failed_checkpoints: int = -1,
    savepoint_dir: str | None = None,
    retained_runs: int = 1,
    from_checkpoint: str | None = None,
    fork: str | None = None,
    allowed_locations: Sequence[str] | str = (),
    data_inline_threshold: int = INLINE_STATE_BYTES,
) -> StageAttempt:
    """Register an attempt of a script; for the arguments see :meth:`StageContext.open` and :func:`run_stage`."""
    job_id_of(job)  # rejects other values than texts
    parse_text("run", run)
    clearing, mode = one_of(OnClear, str)("on_clear", on_clear), one_of(RestoreMode, str)("claim_mode", claim_mode)
    former_uids = uids_before(uid, renamed_uids)
    if is_test_job(job):
        raise InvalidConfigurationError(
            f"Expected a job name without the prefix {TEST_NAMESPACE!r}, which is reserved for test runs, found {job!r}; "
            f"choose another name."
        )
    _require_one_source(from_savepoint, from_checkpoint, fork)
    if savepoint_dir is not None:
        savepoint_dir = normalise_savepoint_dir(savepoint_dir)
        require_known_filesystem(savepoint_dir)
    require_no_credentials("checkpoint_dir", str(checkpoint_dir))
    storage = CheckpointStorage.open(checkpoint_dir, **storage_options)
    storage = storage.allowing(savepoint_dir, locations=parse_locations(allowed_locations))
    give_workers_this_python(spark)
    mask_settings(spark)
    make_ready(spark, storage)
    gateway = open_gateway(metadata)
    declared: dict[str, Any] = {
        "uid": uid,
        "renamed_uids": renamed_uids,
        "allow_non_restored_state": allow_non_restored_state,
    }
    source = None
    if from_savepoint is not None:
        source = find_source(storage, from_savepoint, mode=mode, **declared)
    elif from_checkpoint is not None:
        source = find_fork_source(gateway, storage, job, from_checkpoint, **declared)
    registration = RegisterAttempt(
        job_name=job if from_checkpoint is None else fork_name(job, fork or run),
        uid=uid,
        attempt_key=new_key(),
        owner=_owner(job, run),
        storage_base=storage.base_uri,
        on_clear=clearing,
        num_retained=num_retained,
        retained_runs=retained_runs,
        checkpoint_timeout_seconds=checkpoint_timeout_seconds,
        restore_from=source,
        former_uids=former_uids,
        allow_non_restored_state=allow_non_restored_state,
    )
    return StageAttempt(
        gateway,
        storage,
        registration,
        tolerable_failed_checkpoints=tolerable_failed_checkpoints,
        savepoint_dir=savepoint_dir,
        data_inline_threshold=data_inline_threshold,
    )


def _require_one_source(from_savepoint: str | None, from_checkpoint: str | None, fork: str | None) -> None:
    if from_checkpoint is not None and from_savepoint is not None:
        raise InvalidConfigurationError("Expected from_checkpoint or from_savepoint, found both; leave one out.")
    if fork is not None and from_checkpoint is None:
        raise InvalidConfigurationError(
            f"Expected from_checkpoint with fork={fork!r}, found none; name the checkpoint that the fork starts from."
        )


def _owner(job: str, run: str) -> AttemptOwner:
    # Each start counts as a clear: starting a script again is what clearing a task is in Airflow.
    return AttemptOwner(
        logical_task=f"{SCRIPT_PREFIX}{job}",
        run_key=run,
        run_id=run,
        clear_marker=new_key(),
        label=f"process {os.getpid()} on {platform.node()}",
    )
