"""The same walk with stages on a real Spark, whose function fails at a row of its input."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import StateCheckError
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.connectors.files.sink import ParquetSink
from airflow_provider_statecheck.spark.stages.stage import Stage
from airflow_provider_statecheck.spark.stages.stage_run import StageRun
from airflow_provider_statecheck.state.descriptors import ValueStateDescriptor
from airflow_provider_statecheck.state.functions.user_functions import KeyedProcessFunction
from tests.walk.attempts import visible_rows
from tests.walk.model import Plan, Run
from tests.walk.world import Crash, Habits, World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class CountRows(KeyedProcessFunction[Any, Any, Any]):
    """
    Yields each row with how many rows of its key there are so far.

    :param bad: Start of the ids of rows at which it fails; empty for none.
    """

    def __init__(self, bad: str) -> None:
        self._bad = bad

    def open(self, runtime_context: Any) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", int, 0))

    def process_element(self, value: Any, context: Any) -> Iterator[tuple[str, str, int]]:
        if self._bad and value.id.startswith(self._bad):
            raise ValueError(f"planned at {value.id}")
        self._count.update(self._count.value() + 1)
        yield value.id, value.key, self._count.value()


class SparkAttempt:
    """A whole attempt on Spark."""

    def __init__(self, spark: SparkSession, attempt: StageAttempt, stage: Stage) -> None:
        self.attempt = attempt
        self._run = StageRun(spark, attempt, stage)
        self.restored_id: int | None = None
        self.failure: Exception | None = None

    def open_source(self) -> None:
        """Do everything; a failure of the function, other than a refusal, is kept for the model to follow."""
        try:
            self._run.run()
        except StateCheckError:
            raise
        except Exception as error:
            if "planned at" not in str(error):
                raise
            self.failure = error
        self.restored_id = self.attempt.job_view().attempts[-1].restored_from


class SparkWorld(World):
    """
    A walk on one session.

    :param habits: What happens; the input is a directory.
    """

    def __init__(self, spark: SparkSession, folder: Path, seed: int, habits: Habits) -> None:
        super().__init__(folder, seed, habits)
        self._spark = spark
        self.input.per_increment = 1

    def body(self, run: Run, attempt: StageAttempt) -> Any:
        """Return an attempt that may fail at a file that it has to read."""
        left = [name for plan in self.model.plans(run, self.input.files(run)).plans[:1] for name in plan.left]
        bad = self.chance.choice(left) if left and self.chance.random() < 0.4 else None
        start = "" if bad is None else self.input.files(run)[bad].rows[0][0].partition(".")[0]
        stage = Stage(self.task.task_id, parallelism=1, max_parallelism=8).source(self.input.source(run))
        counted = stage.key_by("key", order_by="id").process(
            CountRows(start), output="id string, key string, count long"
        )
        return SparkAttempt(self._spark, attempt, counted.sink(ParquetSink(str(self.target))))

    def follow(self, run: Run, body: Any, plan: Plan, end: str) -> None:
        """Follow a whole attempt, of which a reader sees what it has read before its failure."""
        model = self.model
        taken = model.take_over(run, plan)
        number = body.attempt.latest.checkpoint_id if body.attempt.latest else 0
        # Without a checkpoint of its own, it has replaced nothing of what it had committed before it began again.
        shown = () if number == (body.restored_id or 0) else visible_rows(self.target)
        visible = {name for name, _, _ in shown}
        done = [n for n in plan.left if body.failure is None or plan.listed[n].rows[0][0] in visible]
        assert done == plan.left[: len(done)], f"expected a part of {plan.left} up to the failure, found {done}"
        if done:
            model.complete(replace(model.read(taken, done), number=number))
            model.commit()
        if body.failure is not None:
            raise Crash(str(body.failure)[:80]) from body.failure
        model.finish(run)
        self.say(f"  finished with {len(model.shown)} rows")
