"""What all checkpointed operators have: the arguments, the link, and the line about what was kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import BaseOperator

from airflow_provider_statecheck.operators.links import CheckpointsLink
from airflow_provider_statecheck.operators.registration import PreparedStage, prepare_stage
from airflow_provider_statecheck.operators.siblings import refuse_shared_uid


class CheckpointedOperator(BaseOperator):
    """
    Base of the operators whose retry goes on from the last completed checkpoint.

    Arguments that are not given come from the section ``[statecheck]`` of Airflow's configuration.

    :param job: Name of the unit of recovery; by default state lives with the Dag run. (templated)
    :param uid: Name of this stage within the job; by default the task id. (templated)
    :param map_key: For a mapped task: what tells its instances apart whatever their order is. (templated)
    :param checkpoint_dir: Where the bytes go, any fsspec URI that Spark's driver reaches too. (templated)
    :param storage_conn_id: Airflow connection with the credentials for ``checkpoint_dir``; without it every process uses
        what its own environment has. (templated)
    :param num_retained: How many completed checkpoints to keep.
    :param checkpoint_timeout_seconds: How long a checkpoint may take from its id to its acknowledgement.
    :param tolerable_failed_checkpoints: How many may fail in a row before the task fails, ``-1`` for any number.
    :param overhead_budget: Which part of the stage's time checkpointing may take, above 0 and up to 1; what is optional
        is put off beyond it.
    :param on_clear: What a cleared task does: ``resume_unchanged``, ``resume`` or ``restart``.
    """

    checkpoint_template_fields: Sequence[str] = ("job", "uid", "map_key", "checkpoint_dir", "storage_conn_id")
    operator_extra_links = (CheckpointsLink(),)

    kept: str | None = None
    """What a failed try kept, for the last line of its log."""
    checkpoints_url: str | None = None
    """The page of the job, once the task has begun."""

    def __init__(
        self,
        *,
        job: str | None = None,
        uid: str | None = None,
        map_key: str | None = None,
        checkpoint_dir: str | None = None,
        storage_conn_id: str | None = None,
        num_retained: int | None = None,
        checkpoint_timeout_seconds: float | None = None,
        tolerable_failed_checkpoints: int | None = None,
        overhead_budget: float | None = None,
        on_clear: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.uid = uid
        self.map_key = map_key
        self.checkpoint_dir = checkpoint_dir
        self.storage_conn_id = storage_conn_id
        self.num_retained = num_retained
        self.checkpoint_timeout_seconds = checkpoint_timeout_seconds
        self.tolerable_failed_checkpoints = tolerable_failed_checkpoints
        self.overhead_budget = overhead_budget
        self.on_clear = on_clear

    def prepare(self, context: Mapping[str, Any]) -> PreparedStage:
        """
        Work out where the bytes go and who asks; nothing is started yet.

        :raises InvalidConfigurationError: for a setting out of range, a mapped task without a key, or a uid that another
            task of the Dag has too.
        """
        dag = self.get_dag()
        if dag is not None:
            refuse_shared_uid(self.task_id, list(dag.tasks))
        return prepare_stage(self, context)
