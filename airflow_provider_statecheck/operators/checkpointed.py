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

    :param job: Name of the unit of recovery; by default state lives with the Dag run. (templated)
    :param uid: Name of this stage within the job; by default the task id. State and output belong to it. (templated)
    :param map_key: For a mapped task: what tells its instances apart whatever their order is. (templated)
    :param checkpoint_dir: Where the bytes go, any fsspec URI that Spark's driver reaches too. (templated)
    :param storage_conn_id: Airflow connection with the credentials for ``checkpoint_dir``; without it every process uses
        what its own environment has. (templated)
    :param num_retained: How many completed checkpoints to keep.
    :param retained_runs: Of how many earlier runs of the job the last checkpoint is kept beside them, so that as many runs can
        be begun again.
    :param checkpoint_timeout_seconds: How long a checkpoint may take from its id to its acknowledgement.
    :param tolerable_failed_checkpoints: How many may fail in a row before the task fails, ``-1`` for any number.
    :param overhead_budget: Which part of the stage's time checkpointing may take, above 0 and up to 1; what is optional
        is put off beyond it.
    :param checkpoint_interval: How much time lies between two checkpoints that are taken by themselves, such as ``5 min``; a
        bare number is milliseconds, and ``auto`` finds it by what checkpoints cost and how often the job failed.
    :param min_pause: How much time lies after a completed checkpoint before a loop takes the next one by itself.
    :param externalized_checkpoint_retention: After which ends of the run the checkpoints stay: ``RETAIN_ON_CANCELLATION``,
        ``DELETE_ON_CANCELLATION`` or ``NO_EXTERNALIZED_CHECKPOINTS``.
    :param savepoint_dir: Where savepoints go whose request names no place. (templated)
    :param from_savepoint: Pointer to the savepoint, or the checkpoint of another job, that the stage begins from where it
        would begin with nothing. (templated)
    :param from_checkpoint: For a run that works on a copy: the checkpoint of the ``job`` that it begins at, as an id,
        ``run:<run>`` or ``before:<run>`` with a logical date or run id, or a pointer. (templated)
    :param fork: Name of the copy, which is the job ``<job>@<fork>``; by default the logical date or run id. (templated)
    :param claim_mode: Whose that is then: ``no_claim`` (default), its owner's, or ``claim``, this job's.
    :param renamed_uids: For a stage that changed its uid: the old uid and the new one. It takes over the operator of the old
        uid in its job, and a savepoint of it. Keep it as long as the job lives.
    :param allow_non_restored_state: Whether to begin with nothing where the savepoint is another stage's, or where the stage
        is new in a job and another stage of the job is gone.
    :param data_inline_threshold: Up to how many bytes small values are written into the metadata, such as ``20 KiB``.
    :param allowed_locations: Where else checkpoints and savepoints may name files, as a list of URIs such as
        ``s3://archive``. The places of ``checkpoint_dir``, ``savepoint_dir`` and of the pointers given here are allowed anyway.
    :param on_clear: What a cleared task does: ``resume_unchanged``, ``resume`` or ``restart``.
    :param on_overlap: What a task does while the same operator of the job still runs for another run: ``fail`` or ``wait``.
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
