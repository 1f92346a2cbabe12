"""Airflow operators for Google Dataproc: jobs on clusters, and serverless batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.google.cloud.operators.dataproc import DataprocCreateBatchOperator, DataprocSubmitJobOperator

from airflow_provider_statecheck.checkpoint.declared_uids import OTHER_JOB_ARGUMENT
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.operators.links import CheckpointsLink
from airflow_provider_statecheck.operators.remote import RemoteDriverMixin
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.payloads.dataproc import batch_with, job_with

if TYPE_CHECKING:
    from airflow_provider_statecheck.payloads.additions import Additions


class _DataprocMixin(RemoteDriverMixin):
    """What both operators have in common."""

    asynchronous: bool
    job: Any
    batch: Any
    request_id: str | None
    num_retries_if_resource_is_not_ready: int

    @override
    def require_waiting(self) -> None:
        if self.asynchronous:
            raise InvalidConfigurationError(
                "Expected asynchronous=False, because the task relays the calls of the driver until its end, found "
                "True; leave it out, and use deferrable=True to free the worker.",
                key="asynchronous",
            )
        if getattr(self, "start_from_trigger", False):
            raise InvalidConfigurationError(
                "Expected start_from_trigger=False, because the task registers an attempt before it submits the job, "
                "found True; leave it out.",
                key="start_from_trigger",
            )


class _SubmitJob(DataprocSubmitJobOperator):
    """The provider's operator with another name for its job, as ``job`` is the unit of recovery here."""

    def __init__(self, *, dataproc_job: Mapping[str, Any], **kwargs: Any) -> None:
        super().__init__(job=dataproc_job, **kwargs)


class CheckpointedDataprocSubmitJobOperator(_DataprocMixin, _SubmitJob):
    """
    Submit a job to a Dataproc cluster whose retry resumes from its last completed checkpoint.

    Arguments are those of ``DataprocSubmitJobOperator`` and of
    :class:`~airflow_provider_statecheck.operators.remote.RemoteDriverMixin`.

    :param job: The job, with ``pyspark_job``. (templated)
    :param checkpoint_job: Name of the job of the checkpoints, ``job`` of the other operators. (templated)
    """

    template_fields: Sequence[str] = (
        *DataprocSubmitJobOperator.template_fields,
        OTHER_JOB_ARGUMENT,
        *(name for name in RemoteDriverMixin.checkpoint_template_fields if name != "job"),
        "stage",
    )
    operator_extra_links: Any = (
        *DataprocSubmitJobOperator.operator_extra_links,
        CheckpointsLink(),
    )

    def __init__(self, *, job: Mapping[str, Any], checkpoint_job: str | None = None, **kwargs: Any) -> None:
        super().__init__(dataproc_job=job, job=checkpoint_job, **kwargs)

    @override
    def add_to_job(self, additions: Additions, submission: str) -> None:
        self.job = job_with(self.job, additions)
        self.request_id = self.request_id or submission


class CheckpointedDataprocCreateBatchOperator(_DataprocMixin, DataprocCreateBatchOperator):
    """
    Create a serverless batch of Dataproc whose retry resumes from its last completed checkpoint.

    Arguments are those of ``DataprocCreateBatchOperator`` and of
    :class:`~airflow_provider_statecheck.operators.remote.RemoteDriverMixin`.
    """

    template_fields: Sequence[str] = (
        *DataprocCreateBatchOperator.template_fields,
        *RemoteDriverMixin.checkpoint_template_fields,
        "stage",
    )
    operator_extra_links: Any = (
        *DataprocCreateBatchOperator.operator_extra_links,
        CheckpointsLink(),
    )

    @override
    def add_to_job(self, additions: Additions, submission: str) -> None:
        self.batch = batch_with(self.batch, additions)
        # A batch that the operator creates again has to be another one.
        if not getattr(self, "batch_id_prefix", None) and not self.num_retries_if_resource_is_not_ready:
            self.request_id = self.request_id or submission

    @override
    def require_waiting(self) -> None:
        super().require_waiting()
        if self.batch_id:
            raise InvalidConfigurationError(
                f"Expected no batch_id, because a retry submits a batch of its own, found {self.batch_id!r}, to which "
                "it would attach instead; use batch_id_prefix, or leave it out.",
                key="batch_id",
            )
