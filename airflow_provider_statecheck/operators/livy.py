"""Airflow operator for batches of Apache Livy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.livy.operators.livy import LivyOperator

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.operators.links import CheckpointsLink
from airflow_provider_statecheck.operators.remote import RemoteDriverMixin
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.payloads.livy import batch_with

if TYPE_CHECKING:
    from airflow_provider_statecheck.payloads.additions import Additions


class CheckpointedLivyOperator(RemoteDriverMixin, LivyOperator):
    """
    Submit a batch to Apache Livy whose retry resumes from its last completed checkpoint.

    Arguments are those of ``LivyOperator`` and of
    :class:`~airflow_provider_statecheck.operators.remote.RemoteDriverMixin`; ``polling_interval`` must be above 0, as
    the task waits for the batch.

    :param file: Python application, unless there is a ``stage``. (templated)
    """

    template_fields: Sequence[str] = (
        *LivyOperator.template_fields,
        *RemoteDriverMixin.checkpoint_template_fields,
        "stage",
    )
    operator_extra_links: Any = (*LivyOperator.operator_extra_links, CheckpointsLink())

    def __init__(self, *, file: str | None = None, **kwargs: Any) -> None:
        super().__init__(file=file, **kwargs)

    @override
    def add_to_job(self, additions: Additions, submission: str) -> None:
        self.spark_params = batch_with(self.spark_params, additions)

    @override
    def require_waiting(self) -> None:
        if self._polling_interval <= 0:
            raise InvalidConfigurationError(
                "Expected polling_interval above 0, because the task relays the calls of the driver until its end, "
                f"found {self._polling_interval}; set the seconds between two looks at the batch.",
                key="polling_interval",
            )
