"""
Attempts of drivers outside of tasks: of scripts, and of submitted applications.

A script has a metadata database of its own. A submitted driver gets its attempt from the Airflow operator by a
handover: in a mailbox, or in one environment variable with a token. In the modes that use the variable, Spark passes
variables with the prefix ``SPARK_`` to the driver. It does not log them, show them on its pages or pass them to
executors.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from airflow_provider_statecheck.checkpoint.codec import decode, encode
from airflow_provider_statecheck.checkpoint.config_options import parse_text
from airflow_provider_statecheck.checkpoint.ids import (
    TEST_NAMESPACE,
    is_test_job,
    job_id_of,
    new_key,
    operator_id_of,
    uids_before,
)
from airflow_provider_statecheck.checkpoint.masking import remember_secrets, show_logs_of_script
from airflow_provider_statecheck.checkpoint.messages import RegisterAttempt, RestoreSource
from airflow_provider_statecheck.checkpoint.records import SCRIPT_PREFIX, AttemptOwner, OnOverlap, Transport
from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError, InvalidConfigurationError
from airflow_provider_statecheck.gateway.in_process import open_gateway
from airflow_provider_statecheck.gateway.time_travel import find_fork_source, fork_name
from airflow_provider_statecheck.gateway.verbs import StageGateway
from airflow_provider_statecheck.settings import SCRIPTS, settings_in
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.driver.packages import OF_HTTP, OF_METADATA, check_driver_packages
from airflow_provider_statecheck.spark.driver.readiness import make_ready, require_reachable
from airflow_provider_statecheck.spark.driver.session import give_workers_this_python, mask_settings
from airflow_provider_statecheck.spark.driver.settings import (
    OPTIONS,
    DriverSettings,
    StageSettings,
    require_savepoint_dir,
    values_of_script,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.pointers import find_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


HANDOVER_VARIABLE = "SPARK_STATECHECK_HANDOVER"
_DEFAULTS = {
    name: OPTIONS[name].default if name in OPTIONS else setting.default
    for place in SCRIPTS
    for name, setting in settings_in(place).items()
}


class Connection(NamedTuple):
    """Connection of a submitted driver to the coordinator."""

    gateway: StageGateway
    require_open: Callable[[], None] | None = None
    """
    Raises ``StaleAttemptError`` if the attempt is known to be replaced, without a call of the coordinator; ``None`` if
    each call is answered at once.
    """


class DriverHandover(Protocol):
    """What an Airflow operator hands to the driver that it submits."""

    @property
    def registration(self) -> RegisterAttempt:
        """Registration that the Airflow operator sent; the driver repeats it."""

    @property
    def driver(self) -> DriverSettings:
        """Settings for the driver."""

    def connect(self) -> Connection:
        """Return the connection to the coordinator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """Access of a driver to its attempt over HTTP."""

    url: str
    """Root URL of the coordinator's server."""
    token: str = field(repr=False)
    """Token for this attempt only."""
    registration: RegisterAttempt
    """Registration that the Airflow operator sent; the driver repeats it and gets the same grant."""
    driver: DriverSettings

    def connect(self) -> Connection:
        """Return a connection over HTTP with the token of the attempt."""
        from airflow_provider_statecheck.gateway.http import GivenToken, HttpClient, HttpGateway
        from airflow_provider_statecheck.gateway.verbs import OUTAGE_PAUSES_SECONDS, retrying

        remember_secrets([self.token])
        http = HttpGateway(HttpClient(self.url), GivenToken(self.token))
        return Connection(retrying(http, OUTAGE_PAUSES_SECONDS))

    def environment(self) -> dict[str, str]:
        """
        Return the environment variable of the handover. It contains a token; pass it to the child process only.

        :raises InvalidConfigurationError: if the options of the storage are not plain values.
        """
        try:
            return {HANDOVER_VARIABLE: json.dumps(encode(self))}
        except (TypeError, ValueError):
            # The options may be credentials, and the suppressed error may quote them.
            names = ", ".join(sorted(self.driver.storage_options))
            raise InvalidConfigurationError(
                f"Expected plain values as options of the checkpoint storage ({names}), which are passed to a driver "
                "in another process, found objects; set storage_options in the connection's extra."
            ) from None


def take_handover(environment: MutableMapping[str, str] | None = None) -> Handover:
    """
    Read the handover and remove it from the environment, which child processes inherit.

    :param environment: Environment variables, by default those of this process.
    :raises EnvironmentNotReadyError: if there is no handover, or it has another version, or the driver lacks a package
        to reach the coordinator.
    """
    variables = os.environ if environment is None else environment
    text = variables.get(HANDOVER_VARIABLE)
    if not text:
        raise EnvironmentNotReadyError(
            "Expected a driver that CheckpointedSparkSubmitOperator submitted, found a process without a handover; "
            "submit the application with that Airflow operator, or use StageContext.open outside of Airflow."
        )
    check_driver_packages(*OF_HTTP)
    del variables[HANDOVER_VARIABLE]
    try:
        return decode(Handover, json.loads(text))
    except ValueError:
        # The text contains the token, and the suppressed error may quote it.
        raise EnvironmentNotReadyError(
            f"Expected a handover of this version in {HANDOVER_VARIABLE}, found another; run the driver with the "
            "package that the Airflow operator ships."
        ) from None


def begin_submitted(handover: DriverHandover, spark: SparkSession | None = None) -> tuple[SparkSession, StageAttempt]:
    """
    Return the session and the attempt of a submitted driver.

    :param spark: Session that computes the steps; by default the running one, else a new one.
    """
    session = spark or running_session()
    _hide_from_workers(session)
    mask_settings(session)
    return session, repeat_registration(session, handover)


def repeat_registration(spark: SparkSession, handover: DriverHandover) -> StageAttempt:
    """Register with the coordinator as the task did, and return the attempt, which is the task's."""
    storage = CheckpointStorage.open(handover.registration.storage_base, **handover.driver.storage_options)
    storage = storage.allowing(handover.driver.savepoint_dir, locations=handover.driver.allowed_locations)
    # No check for the package on executors: the Airflow operator has shipped it, or it is installed.
    require_reachable(spark, storage)
    gateway, require_open = handover.connect()
    return attempt_of(gateway, storage, handover.registration, handover.driver, require_open=require_open)


def attempt_of(
    gateway: StageGateway,
    storage: CheckpointStorage,
    registration: RegisterAttempt,
    driver: DriverSettings,
    on_overlap: OnOverlap = OnOverlap.FAIL,
    require_open: Callable[[], None] | None = None,
) -> StageAttempt:
    """Register an attempt with the settings of its driver."""
    return StageAttempt(
        gateway,
        storage,
        registration,
        tolerable_failed_checkpoints=driver.tolerable_failed_checkpoints,
        savepoint_dir=driver.savepoint_dir,
        storage_config=driver.storage_config,
        on_overlap=on_overlap,
        require_open=require_open,
    )


def _hide_from_workers(spark: SparkSession) -> None:
    # In local mode, Python workers inherit the environment of the JVM, which still has the handover.
    context = getattr(spark, "sparkContext", None)
    if context is not None:
        context.environment[HANDOVER_VARIABLE] = ""


def running_session() -> SparkSession:
    """Return the session of this process, a new one if it has none."""
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()


def open_attempt(
    spark: SparkSession, settings: StageSettings | None = None, **given: Any
) -> tuple[StageAttempt, DriverSettings]:
    """
    Register an attempt of a script.

    :param given: Arguments of :meth:`StageContext.open` or :func:`run_stage` by name.
    :raises EnvironmentNotReadyError: if a package is missing; nothing was written then.
    :raises InvalidConfigurationError: if an argument is invalid; nothing was written then.
    """
    check_driver_packages(*OF_METADATA)
    show_logs_of_script()
    values = {**_DEFAULTS, **values_of_script(given)}
    values |= {name: default for name, default in (("uid", "stage"), ("renamed_uids", {})) if values[name] is None}
    _require_valid(values)
    driver = DriverSettings.of(values, settings or StageSettings())
    storage = CheckpointStorage.open(values["checkpoint_dir"], **(values["storage_options"] or {}))
    storage = storage.allowing(driver.savepoint_dir, locations=driver.allowed_locations)
    give_workers_this_python(spark)
    mask_settings(spark)
    make_ready(spark, storage)
    gateway = open_gateway(values["metadata"])
    registration = _registration(values, storage, gateway)
    return attempt_of(gateway, storage, registration, driver), driver


def _require_valid(values: Mapping[str, Any]) -> None:
    job = values["job"]
    job_id_of(job)  # these two reject other values than texts
    operator_id_of(values["uid"])
    parse_text("run", values["run"])
    uids_before(values["uid"], values["renamed_uids"])  # rejects other values than mappings
    if is_test_job(job):
        raise InvalidConfigurationError(
            f"Expected a job name without the prefix {TEST_NAMESPACE!r}, which is reserved for test runs, found "
            f"{job!r}; choose another name."
        )
    _require_one_source(values["from_savepoint"], values["from_checkpoint"], values["fork"])
    require_savepoint_dir(values["savepoint_at_end"], values["savepoint_dir"])


def _registration(values: Mapping[str, Any], storage: CheckpointStorage, gateway: StageGateway) -> RegisterAttempt:
    job, run, fork_point = values["job"], values["run"], values["from_checkpoint"]
    names = {each.name for each in fields(RegisterAttempt)} & OPTIONS.keys()
    return RegisterAttempt(
        **{name: values[name] for name in names},
        job_name=job if fork_point is None else fork_name(job, values["fork"] or run),
        attempt_key=new_key(),
        owner=_owner(job, run),
        storage_base=storage.base_uri,
        restore_from=_source(values, storage, gateway),
        former_uids=uids_before(values["uid"], values["renamed_uids"]),
    )


def _source(values: Mapping[str, Any], storage: CheckpointStorage, gateway: StageGateway) -> RestoreSource | None:
    declared = {name: values[name] for name in ("uid", "renamed_uids", "allow_non_restored_state")}
    if values["from_savepoint"] is not None:
        return find_source(storage, values["from_savepoint"], mode=values["claim_mode"], **declared)
    if values["from_checkpoint"] is not None:
        return find_fork_source(gateway, storage, values["job"], values["from_checkpoint"], **declared)
    return None


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
        transport=Transport.IN_PROCESS,
    )
