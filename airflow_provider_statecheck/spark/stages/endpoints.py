"""Source, broadcast inputs and sink of an attempt of a stage, opened with the restored state."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from airflow_provider_statecheck.exceptions import IncompatibleCheckpointError
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.connectors.item_source import ItemSource
from airflow_provider_statecheck.spark.driver.settings import DriverSettings
from airflow_provider_statecheck.spark.stages.broadcasts import Broadcasts, changes_named
from airflow_provider_statecheck.spark.stages.planning import Vertex
from airflow_provider_statecheck.spark.stages.stage import Stage
from airflow_provider_statecheck.spark.stages.stage_state import SINK, RestoredStageState
from airflow_provider_statecheck.spark.stages.starting import require_broadcast_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from airflow_provider_statecheck.spark.connectors.source import Source, SplitEnumerator


class Endpoints:
    """Opens what a stage reads and writes."""

    def __init__(self, spark: SparkSession, attempt: StageAttempt, stage: Stage, settings: DriverSettings) -> None:
        self._spark = spark
        self._attempt = attempt
        self._stage = stage
        self._settings = settings
        self._uid = attempt.registration.uid

    def open_source(self, restored: RestoredStageState, *, is_new_run: bool) -> SplitEnumerator:
        """
        Return the unfinished input.

        :raises SourceRestartRequiredError: if the source has changed, and wants the run to start again.
        """
        source = cast("Source", self._stage.input)  # vertices_of requires a source
        return self._opened(source, restored.source, restored, is_new_run=is_new_run)

    def open_broadcasts(
        self,
        restored: RestoredStageState,
        vertices: Sequence[Vertex],
        *,
        is_new_run: bool,
        given_up: Sequence[RestoredStageState] = (),
    ) -> Broadcasts:
        """
        Return the unfinished broadcast inputs, and the states of those that the stage does not have at present.

        :param given_up: States that a run that starts again leaves.
        :raises SourceChangedError: if one of them has changed.
        """
        sources = {v.functions[0].uid: v.key.broadcast.source for v in vertices if v.key and v.key.broadcast}
        renamed = self._settings.renamed_uids
        states = {node.uid: restored.broadcast_source(node.uid, renamed) for v in vertices for node in v.functions}
        opened = {
            f"{self._uid}/{uid}": self._opened_broadcast(uid, source, states[uid], restored, is_new_run=is_new_run)
            for uid, source in sources.items()
        }
        for uid, source in sources.items():
            left = [each.broadcast_source(uid, renamed) for each in given_up]
            require_broadcast_rows(uid, source, opened[f"{self._uid}/{uid}"], states[uid], left)
        others = {uid: state for uid, state in states.items() if uid not in sources and state is not None}
        return Broadcasts(opened, carried={f"{self._uid}/{uid}": state for uid, state in others.items()})

    def _opened_broadcast(
        self, uid: str, source: Source, state: Any, restored: RestoredStageState, *, is_new_run: bool
    ) -> SplitEnumerator:
        with changes_named(uid):
            return self._opened(source, state, restored, is_new_run=is_new_run and state is not None)

    def _opened(self, source: Source, state: Any, restored: RestoredStageState, *, is_new_run: bool) -> SplitEnumerator:
        open_source: Callable[..., SplitEnumerator] = source.open
        if isinstance(source, ItemSource):
            allowed = self._attempt.storage.allowed
            of_other_job = restored.is_of_other_job
            open_source = partial(source.open, of_other_job=of_other_job, allowed=allowed, cuts=restored.cuts)
        return open_source(self._spark, state, new_run=is_new_run, storage_options=self._settings.storage_options)

    def require_sink(self, restored: RestoredStageState) -> None:
        """
        Require a sink if the restored checkpoint has output that was not committed.

        :raises IncompatibleCheckpointError: if there is none, and the output may not be dropped.
        """
        # A checkpoint names its output also after the commit; only the rows of the job tell whether it is missing.
        is_open = restored.checkpoint_id in self._attempt.grant.effects.commits and restored.open_commits
        if is_open and self._stage.output is None and not self._settings.allow_non_restored_state:
            raise IncompatibleCheckpointError(
                f"Expected the sink of stage {self._uid!r}, which has not committed the output of checkpoint "
                f"{restored.checkpoint_id} yet, found a stage without a sink; add the sink until a try has succeeded, "
                "set allow_non_restored_state=True to drop the output, or start over.",
                checkpoint_id=restored.checkpoint_id,
            )

    def open_sink(self, restored: RestoredStageState, schema: Any) -> None:
        """
        Open the sink, if there is one.

        :param schema: Arrow schema of the output; ``None`` if no function was planned.
        """
        sink = self._stage.output
        if sink is None:
            return
        from airflow_provider_statecheck.spark.connectors.sink import SinkContext

        grant = self._attempt.grant
        sink.open(
            SinkContext(
                job_id=grant.attempt.job_id,
                job_name=self._attempt.registration.job_name,
                uid=f"{self._uid}/{SINK}",
                operator_id=grant.attempt.operator_id,
                epoch=grant.attempt.epoch,
                generation=grant.generation,
                restored_checkpoint_id=restored.own_checkpoint_id,
                restored_epoch=restored.own_epoch,
                restored_output=restored.output_of(self._attempt.registration.owner.run_key),
                is_fresh=restored.checkpoint_id is None,
                storage_options=self._settings.storage_options,
                schema=schema,
                gone_uids=tuple(f"{uid}/{SINK}" for uid in grant.gone_uids),
            )
        )

    def close_sink(self, kind: object, *_: object) -> None:
        """Close the sink at the end of a ``with`` block, in which an error may have been raised."""
        if self._stage.output is not None:
            self._stage.output.close(kind is None)
