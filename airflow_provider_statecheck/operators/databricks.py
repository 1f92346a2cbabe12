"""Airflow operators for runs of Databricks."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from airflow.providers.databricks.operators import databricks
from airflow.providers.databricks.operators.databricks import DatabricksRunNowOperator, DatabricksSubmitRunOperator

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.operators.links import CheckpointsLink
from airflow_provider_statecheck.operators.remote import RemoteDriverMixin
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.payloads.additions import Additions
from airflow_provider_statecheck.payloads.databricks import job_run_with, submitted_run_with

_TOKEN = "idempotency_token"  # noqa: S105 - the field of a request


class _DatabricksMixin(RemoteDriverMixin):
    """What runs of both kinds have in common."""

    ships_wheel = True

    json: Any
    wait_for_termination: bool
    _changed: dict[str, Any] | None = None
    """The request with the mailbox."""

    @override
    def require_waiting(self) -> None:
        if not self.wait_for_termination:
            raise InvalidConfigurationError(
                "Expected wait_for_termination=True, because the task relays the calls of the driver until its end, "
                "found False; leave it out.",
                key="wait_for_termination",
            )

    def _get_merged_json(self) -> dict[str, Any]:
        return self._merged() if self._changed is None else self._changed

    def _merged(self) -> dict[str, Any]:
        # Before 7.17, the provider's operators merge their arguments when they are made.
        merge = getattr(super(), "_get_merged_json", None)
        return copy.deepcopy(dict(self.json) if merge is None else merge())

    def _forwarded_params(self) -> dict[str, Any]:
        # The provider's operators forward them to fields that are empty, which is not so with a mailbox.
        forwardable = getattr(databricks, "_get_forwardable_dag_params", None)
        return {} if forwardable is None else dict(forwardable(self.params))

    def _change(self, request: dict[str, Any], submission: str) -> None:
        # A submission that is repeated after a lost reply starts no second run.
        self._changed = self.json = {_TOKEN: submission, **request}


class CheckpointedDatabricksSubmitRunOperator(_DatabricksMixin, DatabricksSubmitRunOperator):
    """
    Submit a one-time run to Databricks whose retry resumes from its last completed checkpoint.

    Arguments are those of ``DatabricksSubmitRunOperator`` and of
    :class:`~airflow_provider_statecheck.operators.remote.RemoteDriverMixin`. One task of the run has checkpoints.
    """

    template_fields: Sequence[str] = (
        *DatabricksSubmitRunOperator.template_fields,
        *RemoteDriverMixin.checkpoint_template_fields,
        "stage",
    )
    operator_extra_links: Any = (
        *DatabricksSubmitRunOperator.operator_extra_links,
        CheckpointsLink(),
    )

    @override
    def add_to_job(self, additions: Additions, submission: str) -> None:
        run, params = self._merged(), self._forwarded_params()
        if params:
            for task in run["tasks"] if isinstance(run.get("tasks"), list) else [run]:
                databricks._inject_airflow_params_into_task(task, params)
        self._change(submitted_run_with(run, additions), submission)


class CheckpointedDatabricksRunNowOperator(_DatabricksMixin, DatabricksRunNowOperator):
    """
    Run a job of Databricks whose retry resumes from its last completed checkpoint.

    Arguments are those of ``DatabricksRunNowOperator`` and of
    :class:`~airflow_provider_statecheck.operators.remote.RemoteDriverMixin`. The definition of the job installs this
    package, as a run cannot add one, so ``ship_package`` is off by default.
    """

    template_fields: Sequence[str] = (
        *DatabricksRunNowOperator.template_fields,
        *RemoteDriverMixin.checkpoint_template_fields,
        "stage",
    )
    operator_extra_links: Any = (
        *DatabricksRunNowOperator.operator_extra_links,
        CheckpointsLink(),
    )

    def __init__(self, *, ship_package: bool = False, **kwargs: Any) -> None:
        super().__init__(ship_package=ship_package, **kwargs)

    @override
    def add_to_job(self, additions: Additions, submission: str) -> None:
        self._change(job_run_with(self._with_params(self._merged()), additions), submission)

    @override
    def _get_merged_json(self) -> dict[str, Any]:
        mailbox = None if self._stage is None else self._stage.mailbox_uri
        if self._changed is None and mailbox is not None:
            # A repair of a run whose request an earlier process has made.
            return job_run_with(self._with_params(self._merged()), Additions(mailbox=mailbox))
        return super()._get_merged_json()

    def _with_params(self, run: dict[str, Any]) -> dict[str, Any]:
        params = self._forwarded_params() if getattr(self, "forward_dag_params", False) else {}
        used = getattr(databricks, "_RUN_NOW_PARAM_SLOTS_CONFLICTING_WITH_JOB_PARAMETERS", ())
        if params and not run.get("job_parameters") and not any(name in run for name in used):
            return {**run, "job_parameters": params}
        return run
