"""Airflow operators for Amazon EMR, EMR on EKS, EMR Serverless and Glue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.amazon.aws.operators.emr import (
    EmrAddStepsOperator,
    EmrContainerOperator,
    EmrServerlessStartJobOperator,
)
from airflow.providers.amazon.aws.operators.glue import GlueJobOperator

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.operators.links import CheckpointsLink
from airflow_provider_statecheck.operators.remote import RemoteDriverMixin
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.payloads.emr import container_job_with, serverless_job_with, steps_with
from airflow_provider_statecheck.payloads.glue import run_with

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_statecheck.payloads.additions import Additions


class _AmazonMixin(RemoteDriverMixin):
    """What the operators of the services have in common."""

    wait_for_completion: bool
    deferrable: bool

    @override
    def require_waiting(self) -> None:
        if not (self.wait_for_completion or self.deferrable):
            raise InvalidConfigurationError(
                "Expected wait_for_completion=True or deferrable=True, because the task relays the calls of the driver "
                "until its end, found neither; set one.",
                key="wait_for_completion",
            )


class _WithToken(_AmazonMixin):
    """A job run with a token, by which its service recognises a repeated submission."""

    client_request_token: Any

    def __init__(self, *, client_request_token: str = "", **kwargs: Any) -> None:
        super().__init__(client_request_token=client_request_token, **kwargs)
        # The provider's operators draw one for each instance, some of their versions when it is made.
        self._has_own_token = bool(client_request_token)

    def _set_token(self, submission: str) -> None:
        if not self._has_own_token:
            self.client_request_token = submission


class CheckpointedEmrAddStepsOperator(_AmazonMixin, EmrAddStepsOperator):
    """
    Add steps to an EMR cluster. The step with a Python application resumes from its last completed checkpoint.

    Arguments are those of ``EmrAddStepsOperator`` and of
    :class:`~airflow_provider_statecheck.operators.remote.RemoteDriverMixin`; ``wait_for_completion`` is on by default.
    """

    template_fields: Sequence[str] = (
        *EmrAddStepsOperator.template_fields,
        *RemoteDriverMixin.checkpoint_template_fields,
        "stage",
    )
    operator_extra_links: Any = (*EmrAddStepsOperator.operator_extra_links, CheckpointsLink())

    def __init__(self, *, wait_for_completion: bool = True, **kwargs: Any) -> None:
        super().__init__(wait_for_completion=wait_for_completion, **kwargs)

    @override
    def add_to_job(self, additions: Additions, submission: str) -> None:
        self.steps = steps_with(self.steps, additions)


class CheckpointedEmrContainerOperator(_WithToken, EmrContainerOperator):
    """
    Start a job run on EMR on EKS whose retry resumes from its last completed checkpoint.

    Arguments are those of ``EmrContainerOperator`` and of
    :class:`~airflow_provider_statecheck.operators.remote.RemoteDriverMixin`.
    """

    template_fields: Sequence[str] = (
        *EmrContainerOperator.template_fields,
        *RemoteDriverMixin.checkpoint_template_fields,
        "stage",
    )
    operator_extra_links: Any = (*EmrContainerOperator.operator_extra_links, CheckpointsLink())

    @override
    def add_to_job(self, additions: Additions, submission: str) -> None:
        self.job_driver = container_job_with(self.job_driver, additions, self.configuration_overrides)
        self._set_token(submission)


class CheckpointedEmrServerlessStartJobOperator(_WithToken, EmrServerlessStartJobOperator):
    """
    Start a job run on EMR Serverless whose retry resumes from its last completed checkpoint.

    Arguments are those of ``EmrServerlessStartJobOperator`` and of
    :class:`~airflow_provider_statecheck.operators.remote.RemoteDriverMixin`.
    """

    template_fields: Sequence[str] = (
        *EmrServerlessStartJobOperator.template_fields,
        *RemoteDriverMixin.checkpoint_template_fields,
        "stage",
    )
    operator_extra_links: Any = (
        *EmrServerlessStartJobOperator.operator_extra_links,
        CheckpointsLink(),
    )

    @override
    def require_waiting(self) -> None:
        # The provider's operator does not defer either, if it does not wait.
        if not self.wait_for_completion:
            raise InvalidConfigurationError(
                "Expected wait_for_completion=True, because the task relays the calls of the driver until its end, "
                "found False; leave it out.",
                key="wait_for_completion",
            )

    @override
    def add_to_job(self, additions: Additions, submission: str) -> None:
        self.job_driver = serverless_job_with(self.job_driver, additions, self.configuration_overrides)
        self._set_token(submission)


class CheckpointedGlueJobOperator(_AmazonMixin, GlueJobOperator):
    """
    Run a job of AWS Glue whose retry resumes from its last completed checkpoint.

    Arguments are those of ``GlueJobOperator`` and of
    :class:`~airflow_provider_statecheck.operators.remote.RemoteDriverMixin`.
    """

    template_fields: Sequence[str] = (
        *GlueJobOperator.template_fields,
        *RemoteDriverMixin.checkpoint_template_fields,
        "stage",
    )
    operator_extra_links: Any = (*GlueJobOperator.operator_extra_links, CheckpointsLink())

    @property
    @override
    def submits_later(self) -> bool:
        return True  # also if it defers

    @override
    def submit_job(self, context: Context) -> Any:
        """Reconnect to a run that this task has started, or open a mailbox for the driver and start one."""
        run_id = self._run_before(context)
        if run_id is None:
            return super().submit_job(context)
        self.adopt_running()
        self._set_job_run_id(context, run_id)
        return run_id

    def _run_before(self, context: Context) -> str | None:
        # Where the provider's operator looks for a run, it does so after the mailbox would have shut its driver out.
        is_first = context["ti"].try_number <= 1
        is_stored = not self.deferrable and context.get("task_state_store") is not None
        if is_first or is_stored or not self.durable or not hasattr(self, "_find_previous_job_run"):
            return None
        _, task_uuid = self._prepare_script_args_with_task_uuid(context)
        return self._find_previous_job_run(context, task_uuid)

    @override
    def add_to_job(self, additions: Additions, submission: str) -> None:
        self.script_args = run_with(self.script_args, additions, self.create_job_kwargs)
