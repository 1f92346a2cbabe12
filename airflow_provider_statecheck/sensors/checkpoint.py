"""Sensor that waits for a checkpoint of a job."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_statecheck.checkpoint.config_options import parse_whole_number
from airflow_provider_statecheck.checkpoint.ids import job_id_of, job_name, key_text, require_not_missing, uid_with_key
from airflow_provider_statecheck.checkpoint.masking import masked
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    EnvironmentNotReadyError,
    InvalidConfigurationError,
)
from airflow_provider_statecheck.hooks.connection import DEFAULT_CONN_ID
from airflow_provider_statecheck.hooks.identity import run_job_of
from airflow_provider_statecheck.hooks.statecheck import StatecheckHook
from airflow_provider_statecheck.hooks.transport import ReadingAccess, is_orm_open, reading_access
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.triggers.checkpoint import CheckpointCondition, CheckpointTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context


class CheckpointSensor(BaseSensorOperator):
    """
    Wait until a job, or one operator of it, has a completed checkpoint.

    The job need not exist yet. The sensor returns the keys ``job``, ``uid``, ``checkpoint_id``, ``pointer`` (the
    directory of the checkpoint) and ``completed_at``. In a process with access to Airflow's database, as in
    ``dag.test``, it waits for the job of test runs, because the Airflow operators use that job there.

    :param job: Name of the job. The default is that of this Dag run, as for the Airflow operators, which have no
        ``job=``; the job of a Dag run is named ``dag_id/<logical date, else partition, else run id>``. (templated)
    :param uid: Name of the operator within the job. The default is any operator. (templated)
    :param map_key: For a mapped task: the key of the instance. (templated)
    :param at_least: Lowest checkpoint id to accept. (templated)
    :param max_age: Maximum time since the checkpoint was completed, by the coordinator's clock.
    :param statecheck_conn_id: Connection to the api-server. The default connection need not exist. (templated)
    :param deferrable: Wait in the triggerer.
    """

    template_fields: Sequence[str] = ("job", "uid", "map_key", "at_least", "statecheck_conn_id")
    ui_color = "#d9e8f5"

    _warning: str | None = None
    """The last warning, which is not logged again at each poke."""

    def __init__(
        self,
        *,
        job: str | None = None,
        uid: str | None = None,
        map_key: str | None = None,
        at_least: int | str | None = None,
        max_age: timedelta | None = None,
        statecheck_conn_id: str = DEFAULT_CONN_ID,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.uid = uid
        self.map_key = map_key
        self.at_least = at_least
        self.max_age = max_age
        self.statecheck_conn_id = statecheck_conn_id
        self.deferrable = deferrable

    @cached_property
    def hook(self) -> StatecheckHook:
        """The hook of the coordinator."""
        return StatecheckHook(self.statecheck_conn_id)

    @override
    def execute(self, context: Context) -> Any:
        """
        Check for the checkpoint, and then wait in the worker or in the triggerer.

        :raises AirflowFailException: if an argument or the environment is invalid.
        """
        if not self.deferrable:
            return super().execute(context)
        return self._find_or_defer(context, time.time() + self.timeout)

    @override
    def poke(self, context: Context) -> PokeReturnValue:
        """
        Check for the checkpoint once.

        :raises AirflowFailException: if an argument or the environment is invalid.
        """
        try:
            found = self._find(self._condition(context))
        except (InvalidConfigurationError, EnvironmentNotReadyError) as error:
            raise AirflowFailException(masked(str(error))) from error
        return PokeReturnValue(is_done=found is not None, xcom_value=found)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """
        Return the checkpoint that the trigger found, or defer again with a new token if the token expired.

        :raises AirflowException: if the trigger failed.
        """
        if event["status"] == "expired":
            return self._find_or_defer(context, event["deadline"])
        if event["status"] != "success":
            raise AirflowException(event["message"])
        found: dict[str, Any] = event["checkpoint"]
        self.log.info("Found checkpoint %s at %s.", found["checkpoint_id"], found["pointer"])
        return found

    def _find(self, condition: CheckpointCondition) -> dict[str, Any] | None:
        self.log.info("Checking for %s.", condition)
        try:
            view = self.hook.get_conn().describe(condition.job_id)
        except CheckpointNotFoundError:
            return None  # the job has no attempt yet
        self._warn_once(condition.unknown_operator(view))
        return condition.find(view)

    def _warn_once(self, warning: str | None) -> None:
        if warning is not None and warning != self._warning:
            self.log.warning("%s", warning)
        self._warning = warning

    def _find_or_defer(self, context: Context, deadline: float) -> Any:
        result = self.poke(context)
        return result.xcom_value if result else self._defer(self._condition(context), deadline)

    def _defer(self, condition: CheckpointCondition, deadline: float) -> NoReturn:
        access = reading_access(condition.job_id, self.statecheck_conn_id)
        self.defer(
            trigger=_trigger(condition, self.poke_interval, access, deadline),
            method_name="execute_complete",
            timeout=timedelta(seconds=max(deadline - time.time(), 0.0)),
        )

    def _condition(self, context: Mapping[str, Any]) -> CheckpointCondition:
        for name in ("job", "uid"):
            require_not_missing(name, getattr(self, name))
        job = run_job_of(context) if self.job is None else self.job
        job_id_of(job)  # rejects an empty name before the prefix of test runs is added
        return CheckpointCondition(
            job=job_name(job, is_test=is_orm_open()),
            uid=_full_uid(self.uid, key_text(self.map_key)),
            at_least=_checkpoint_id(self.at_least),
            max_age=self.max_age,
        )


def _trigger(
    condition: CheckpointCondition, poke_interval: float, access: ReadingAccess | None, deadline: float
) -> CheckpointTrigger:
    connection: dict[str, Any] = {}
    if access is not None:
        connection = {"url": access.url, "token": access.token, "request_timeout_seconds": access.timeout_seconds}
    return CheckpointTrigger(
        job=condition.job,
        uid=condition.uid,
        at_least=condition.at_least,
        max_age_seconds=None if condition.max_age is None else condition.max_age.total_seconds(),
        poke_interval=poke_interval,
        deadline=deadline,
        **connection,
    )


def _full_uid(uid: str | None, map_key: str | None) -> str | None:
    if map_key is None:
        return uid
    if not uid or not map_key:
        raise InvalidConfigurationError(
            f"Expected both uid and map_key for a mapped task, found uid={uid!r} and map_key={map_key!r}; give both."
        )
    return uid_with_key(uid, map_key)


def _checkpoint_id(given: int | str | None) -> int | None:
    return None if given is None else parse_whole_number("at_least", given)
