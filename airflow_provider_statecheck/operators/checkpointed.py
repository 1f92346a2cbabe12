"""What all checkpointed operators have: the arguments, the link, and the line about what was kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseOperator

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.operators.links import CheckpointsLink
from airflow_provider_statecheck.operators.registration import PreparedStage, prepare_stage
from airflow_provider_statecheck.operators.siblings import refuse_shared_uid


class CheckpointedOperator(BaseOperator):
    """
    Base of the operators whose retry goes on from the last completed checkpoint.

    Arguments that are not given come from the section ``[statecheck]`` of Airflow's configuration.

    :param job: Name of the unit of recovery. By default each Dag run has its own job. (templated)
    :param uid: Name of this stage within the job, which owns its state and output. The default is the task id. (templated)
    :param map_key: For a mapped task: a stable name of the instance, independent of the order of instances. (templated)
    :param checkpoint_dir: Directory for checkpoints: any fsspec URI that the Spark driver can reach. (templated)
    :param storage_conn_id: Airflow connection with the credentials for ``checkpoint_dir``. Without it, every process uses the
        credentials of its environment. (templated)
    :param num_retained: Maximum number of completed checkpoints to retain.
    :param retained_runs: Number of earlier runs whose last checkpoint is retained in addition to ``num_retained``. As many
        runs can be run again.
    :param checkpoint_timeout_seconds: Maximum time from the start of a checkpoint to its acknowledgement.
    :param tolerable_failed_checkpoints: Number of consecutive checkpoint failures that the task tolerates before it fails;
        ``-1`` for no limit.
    :param overhead_budget: Maximum share of the stage's time that checkpointing may take, above 0 and up to 1. Beyond it,
        optional checkpoints and snapshots are delayed.
    :param checkpoint_interval: Interval of periodic checkpoints, such as ``5 min``. A bare number is milliseconds; ``auto``
        derives the interval from the cost of checkpoints and the failures of the job.
    :param min_pause: Minimum pause between a completed checkpoint and the next periodic checkpoint of a loop.
    :param externalized_checkpoint_retention: Retention of checkpoints after the end of the run:
        ``RETAIN_ON_CANCELLATION``, ``DELETE_ON_CANCELLATION`` or ``NO_EXTERNALIZED_CHECKPOINTS``.
    :param savepoint_dir: Default directory for savepoints. (templated)
    :param from_savepoint: Pointer to a savepoint, or to a checkpoint of another job. The stage starts from it if it has no
        checkpoint of its own to restore. (templated)
    :param from_checkpoint: For a fork: the checkpoint of ``job`` to start from, as an id, ``run:<run>`` or ``before:<run>``
        with a logical date or run id, or a pointer. (templated)
    :param fork: Name of the fork, which is the job ``<job>@<fork>``. The default is the logical date or run id. (templated)
    :param claim_mode: Owner of the restored savepoint or checkpoint: with ``no_claim`` (default) its previous owner keeps it,
        with ``claim`` this job takes it over.
    :param renamed_uids: For a stage whose uid changed: the old uid and the new one. The stage takes over the operator of the
        old uid in its job, and a savepoint of it. Keep the argument as long as the job exists.
    :param allow_non_restored_state: Start with empty state if the savepoint belongs to another stage, or if the stage is new
        in a job from which another stage was removed.
    :param data_inline_threshold: Maximum size of a small value that is stored in the metadata, such as ``20 KiB``.
    :param allowed_locations: Further URIs, such as ``s3://archive``, where checkpoints and savepoints may reference files. The
        locations of ``checkpoint_dir``, ``savepoint_dir`` and the given pointers are always allowed.
    :param on_clear: Behaviour of a cleared task: ``resume_unchanged``, ``resume`` or ``restart``.
    :param on_overlap: Behaviour while the same operator of the job still runs for another run: ``fail`` or ``wait``.
    """

    checkpoint_template_fields: Sequence[str] = (
        "job",
        "uid",
        "map_key",
        "checkpoint_dir",
        "storage_conn_id",
        "savepoint_dir",
        "from_savepoint",
        "from_checkpoint",
        "fork",
    )
    operator_extra_links = (CheckpointsLink(),)

    unused_arguments: Sequence[str] = ()
    """Arguments that this operator does not act on and refuses."""
    kept: str | None = None
    """What a failed try kept, for the last line of its log."""
    checkpoints_url: str | None = None
    """The page of the job, once the task has begun."""
    declared_uid: str | None = None
    """The uid before its template was rendered."""

    def __init__(
        self,
        *,
        job: str | None = None,
        uid: str | None = None,
        map_key: str | None = None,
        checkpoint_dir: str | None = None,
        storage_conn_id: str | None = None,
        num_retained: int | None = None,
        retained_runs: int | None = None,
        checkpoint_timeout_seconds: float | None = None,
        tolerable_failed_checkpoints: int | None = None,
        overhead_budget: float | None = None,
        checkpoint_interval: timedelta | str | int | None = None,
        min_pause: timedelta | str | int | None = None,
        externalized_checkpoint_retention: str | None = None,
        savepoint_dir: str | None = None,
        from_savepoint: str | None = None,
        from_checkpoint: str | None = None,
        fork: str | None = None,
        claim_mode: str = "no_claim",
        renamed_uids: Mapping[str, str] | None = None,
        allow_non_restored_state: bool = False,
        data_inline_threshold: str | int | None = None,
        allowed_locations: Sequence[str] | str | None = None,
        on_clear: str | None = None,
        on_overlap: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.uid = uid
        self.declared_uid = uid
        self.map_key = map_key
        self.checkpoint_dir = checkpoint_dir
        self.storage_conn_id = storage_conn_id
        self.num_retained = num_retained
        self.retained_runs = retained_runs
        self.checkpoint_timeout_seconds = checkpoint_timeout_seconds
        self.tolerable_failed_checkpoints = tolerable_failed_checkpoints
        self.overhead_budget = overhead_budget
        self.checkpoint_interval = checkpoint_interval
        self.min_pause = min_pause
        self.externalized_checkpoint_retention = externalized_checkpoint_retention
        self.savepoint_dir = savepoint_dir
        self.from_savepoint = from_savepoint
        self.from_checkpoint = from_checkpoint
        self.fork = fork
        self.claim_mode = claim_mode
        self.renamed_uids = renamed_uids
        self.allow_non_restored_state = allow_non_restored_state
        self.data_inline_threshold = data_inline_threshold
        self.allowed_locations = allowed_locations
        self.on_clear = on_clear
        self.on_overlap = on_overlap

    def prepare(self, context: Mapping[str, Any]) -> PreparedStage:
        """
        Work out where the bytes go and who asks; nothing is started yet.

        :raises InvalidConfigurationError: for a setting out of range, one that this operator does not act on, a mapped task
            without a key, or a uid that another task of the Dag has too.
        """
        for name in self.unused_arguments:
            if getattr(self, name) is not None:
                raise InvalidConfigurationError(
                    f"Expected arguments that {type(self).__name__} acts on, found {name}; leave it out.", key=name
                )
        dag = self.get_dag()
        if dag is not None:
            refuse_shared_uid(self.task_id, list(dag.tasks))
        return prepare_stage(self, context)
