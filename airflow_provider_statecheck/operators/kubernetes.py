"""Airflow operator for the Spark operator of Kubernetes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.providers.cncf.kubernetes.operators.spark_kubernetes import SparkKubernetesOperator

from airflow_provider_statecheck.checkpoint.masking import masked
from airflow_provider_statecheck.operators.links import CheckpointsLink
from airflow_provider_statecheck.operators.remote import RemoteDriverMixin
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.payloads.kubernetes import spark_application_with

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_statecheck.payloads.additions import Additions


class CheckpointedSparkKubernetesOperator(RemoteDriverMixin, SparkKubernetesOperator):
    """
    Create a ``SparkApplication`` whose retry resumes from its last completed checkpoint.

    Arguments are those of ``SparkKubernetesOperator`` and of
    :class:`~airflow_provider_statecheck.operators.remote.RemoteDriverMixin`. A driver that lives is followed with
    ``reattach_on_restart``, and one that Kubernetes starts again restores without a retry of the task.
    """

    template_fields = [  # noqa: RUF012 - the provider's type
        *SparkKubernetesOperator.template_fields,
        *RemoteDriverMixin.checkpoint_template_fields,
        "stage",
    ]
    operator_extra_links: Any = (*SparkKubernetesOperator.operator_extra_links, CheckpointsLink())

    # The provider's own have no dots, and would take texts such as "daily_json" for files.
    template_ext = (".yaml", ".yml", ".json")

    _launcher: Any = None

    @property
    @override
    def submits_later(self) -> bool:
        return True  # unless there is a driver to reattach to

    @override
    def find_spark_job(self, context: Any, exclude_checked: bool = True) -> Any:
        """Return the pod of the driver, if there is one, and adopt its attempt."""
        pod = super().find_spark_job(context, exclude_checked)
        if pod is None or self._launcher is not None or self._stage is None:
            return pod
        if self._stage.was_cleared():
            self.log.info("The task was cleared, or its job was removed; its application is submitted again.")
            self.launcher.delete_spark_job(spark_job_name=pod.metadata.name.removesuffix("-driver"))
            return None
        self.adopt_running()
        return pod

    @override
    def may_reconnect(self, context: Context) -> bool:
        """Return whether a retry would reattach to the driver."""
        try:
            return bool(self.reattach_on_restart and self.find_spark_job(context) is not None)
        except Exception as error:
            self.log.warning("The state of the driver is unknown: %s", masked(str(error)))
            return True

    @override
    def get_or_create_spark_crd(self, launcher: Any, context: Any) -> Any:
        """Open a mailbox for the driver, and create the application."""
        self._launcher = launcher
        self.hand_over()
        return super().get_or_create_spark_crd(launcher, context)

    @override
    def add_to_job(self, additions: Additions, submission: str) -> None:
        body = self._launcher.body
        if self.code_path is not None:
            body["spec"]["mainApplicationFile"] = self.code_path
        body["spec"] = spark_application_with({"kind": body["kind"], "spec": body["spec"]}, additions)["spec"]
