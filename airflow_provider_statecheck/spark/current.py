"""The one context of a driver that ``spark-submit`` started."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from airflow_provider_statecheck.spark.driver.handover import HANDOVER_VARIABLE, Handover, take_handover
from airflow_provider_statecheck.spark.driver.requirements import check_driver_packages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_statecheck.spark.attempt import StageAttempt
    from airflow_provider_statecheck.spark.context import StageContext
    from airflow_provider_statecheck.spark.driver.settings import DriverSettings

# A driver outlives an api-server that is restarted.
_PAUSES_SECONDS = (0.1, 0.5, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0)


class CurrentContext:
    """Makes the context at the first call and remembers it: a handover is good for one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handover: Handover | None = None
        self._context: StageContext | None = None

    def get(self, kind: type[StageContext], spark: SparkSession | None) -> StageContext:
        """
        Return the context of this process.

        :param kind: What to make at the first call.
        :param spark: The session that computes; by default the running one, else a new one.
        :raises EnvironmentNotReadyError: if no operator submitted this driver, or a package is missing.
        """
        with self._lock:
            if self._context is None:
                check_driver_packages()
                # Kept, so that a call after one that failed finds it again.
                self._handover = self._handover or take_handover()
                session, attempt = _begin(self._handover, spark)
                self._context = kind(
                    session,
                    attempt,
                    overhead_budget=self._handover.driver.overhead_budget,
                    checkpoint_interval=self._handover.driver.checkpoint_interval,
                    min_pause=self._handover.driver.min_pause_ms,
                )
            return self._context


CURRENT = CurrentContext()


def begin_submitted() -> tuple[SparkSession, StageAttempt, DriverSettings]:
    """
    Return what a driver works with that an operator submitted: a session, its attempt, and how it is run.

    :raises EnvironmentNotReadyError: if no operator submitted this driver.
    """
    handover = take_handover()
    return *_begin(handover, None), handover.driver


def _begin(handover: Handover, spark: SparkSession | None) -> tuple[SparkSession, StageAttempt]:
    session = spark or _session()
    _hide_from_workers(session)
    return session, _repeat_registration(session, handover)


def _repeat_registration(spark: SparkSession, handover: Handover) -> StageAttempt:
    from airflow_provider_statecheck.gateway.credentials import GivenToken
    from airflow_provider_statecheck.gateway.http import HttpGateway
    from airflow_provider_statecheck.gateway.http_client import HttpClient
    from airflow_provider_statecheck.gateway.retrying import RetryingGateway
    from airflow_provider_statecheck.spark.attempt import StageAttempt
    from airflow_provider_statecheck.spark.driver.readiness import require_reachable
    from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

    storage = CheckpointStorage.open(handover.registration.storage_base, **handover.driver.storage_options)
    storage = storage.allowing(handover.driver.savepoint_dir, locations=handover.driver.allowed_locations)
    # The operator has shipped the package, or it is installed.
    require_reachable(spark, storage)
    http = HttpGateway(HttpClient(handover.url), GivenToken(handover.token))
    return StageAttempt(
        RetryingGateway(http, _PAUSES_SECONDS),
        storage,
        handover.registration,
        tolerable_failed_checkpoints=handover.driver.tolerable_failed_checkpoints,
        savepoint_dir=handover.driver.savepoint_dir,
        data_inline_threshold=handover.driver.data_inline_threshold,
    )


def _hide_from_workers(spark: SparkSession) -> None:
    # In local mode Python workers inherit the environment of the JVM, which cannot change its own.
    context = getattr(spark, "sparkContext", None)
    if context is not None:
        context.environment[HANDOVER_VARIABLE] = ""


def _session() -> SparkSession:
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()
