"""What a function has seen of its broadcast input, from attempt to attempt, while its stage changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_statecheck.checkpoint.codec import encode
from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.exceptions import SourceChangedError
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.checkpoint_writer import CheckpointContent
from airflow_provider_statecheck.spark.connectors.files.source import JsonSource
from airflow_provider_statecheck.spark.driver.settings import DriverSettings
from airflow_provider_statecheck.spark.stages.broadcasts import Broadcasts
from airflow_provider_statecheck.spark.stages.endpoints import Endpoints
from airflow_provider_statecheck.spark.stages.executor.elements import PackedRows
from airflow_provider_statecheck.spark.stages.planning import vertices_of
from airflow_provider_statecheck.spark.stages.stage import Stage
from airflow_provider_statecheck.spark.stages.stage_state import driver_state
from airflow_provider_statecheck.spark.stages.starting import StageStart, start_of
from airflow_provider_statecheck.state.functions.user_functions import KeyedProcessFunction
from airflow_provider_statecheck.state.reading.checkpoint_contents import input_ledgers
from airflow_provider_statecheck.state.reading.checkpoint_states import STAGE, RunValues
from airflow_provider_statecheck.storage.metadata_file import load_document
from tests.messages import make_owner
from tests.spark.stages.functions import RATES, ConvertedBalance
from tests.unit.written_stage import JOB, WrittenStage

FIRST, SECOND, THIRD, FOURTH = (f"2026-01-0{day}" for day in range(1, 5))


class Plain(KeyedProcessFunction[Any, Any, Any]):
    """The function without its second input."""

    def process_element(self, value: Any, context: Any) -> Any:
        """Emit nothing."""


@dataclass
class TwoInputs:
    """A stage without Spark that reads two directories, in one attempt after another."""

    stage: WrittenStage
    folder: Path
    on_change: Mapping[str, str] = field(default_factory=dict)

    def write(self, name: str, text: str = "{}") -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run(
        self, run: str, *, uid: str = "balance", has_rates: bool = True, files: int = 100, renamed: Any = None
    ) -> list[str]:
        """Read some files of the main input, and return the files of the other one that the function sees first."""
        attempt = self.stage.attempt(owner=make_owner(run_key=run, run_id=run), num_retained=2, retained_runs=1)
        endpoints = Endpoints(
            None,  # type: ignore[arg-type]
            attempt,
            self._declared(uid, has_rates=has_rates),
            DriverSettings(renamed_uids=renamed or {}),
        )
        try:
            start = start_of(attempt, self._source("paid"), endpoints.open_source)
            is_new_run = start.state.values.run not in (None, run)
            vertices = vertices_of(self._declared(uid, has_rates=has_rates))
            broadcasts = endpoints.open_broadcasts(
                start.state, vertices, is_new_run=is_new_run, given_up=start.given_up
            )
        except Exception:
            attempt.finish(AttemptStatus.FAILED)
            raise
        return self._read(attempt, start, broadcasts, files)

    def _source(self, name: str) -> JsonSource:
        policy = self.on_change.get(name, "fail")
        return JsonSource(self.folder / name, schema="id bigint", files_per_increment=1, on_change=policy)

    def _declared(self, uid: str, *, has_rates: bool) -> Stage:
        keyed = Stage("stage").source(self._source("paid")).key_by("id")
        if has_rates:
            return keyed.broadcast(self._source("rates"), RATES).process(ConvertedBalance(self.folder, 0), uid=uid)
        return keyed.process(Plain(), uid=uid)

    def _read(self, attempt: StageAttempt, start: StageStart, broadcasts: Broadcasts, files: int) -> list[str]:
        attempt.confirm_restore(
            start.loaded, starts_over=start.state.checkpoint_id is None, restarted_run=start.restarted_run
        )
        seen = [Path(name).name for each in broadcasts.inputs.values() for name in finished(each)]
        for _, increment in zip(range(files), iter(start.enumerator.next_increment, None), strict=False):
            start.enumerator.finish(increment)
        source = driver_state(f"{attempt.registration.uid}/source", start.enumerator.snapshot())
        values = encode(RunValues(run=attempt.registration.owner.run_key))
        content = CheckpointContent(state={STAGE: values}, operator_states=(*broadcasts.states(), source))
        assert attempt.take_checkpoint(content) is not None
        is_half_way = start.enumerator.finished_splits < start.enumerator.total_splits
        attempt.finish(AttemptStatus.FAILED if is_half_way else AttemptStatus.FINISHED)
        return seen


def finished(enumerator: Any) -> list[str]:
    """Finish an input, and return the names of its splits."""
    increments = list(iter(enumerator.next_increment, None))
    for increment in increments:
        enumerator.finish(increment)
    return [split.split_id for increment in increments for split in increment.splits]


@pytest.fixture
def inputs(stage: WrittenStage, tmp_path: Path) -> TwoInputs:
    given = TwoInputs(stage, tmp_path / "in")
    given.write("paid/1")
    given.write("rates/a")
    return given


def test_rows_that_a_function_has_seen_are_not_new_after_runs_without_the_input(inputs: TwoInputs) -> None:
    assert inputs.run(FIRST) == ["a"]
    assert inputs.run(SECOND, has_rates=False) == []
    assert inputs.run(THIRD, has_rates=False, uid="saldo", renamed={"balance": "saldo"}) == []
    inputs.write("rates/b")
    assert inputs.run(FOURTH, uid="saldo", renamed={"balance": "saldo"}) == ["b"]


def test_function_with_the_former_uid_of_another_one_sees_all_rows(inputs: TwoInputs) -> None:
    inputs.run(FIRST)
    assert inputs.run(SECOND, uid="balance", renamed={"balance": "saldo"}) == ["a"]


def test_rows_of_an_input_whose_function_is_gone_are_new_to_another_one(inputs: TwoInputs) -> None:
    inputs.run(FIRST)
    inputs.run(SECOND, has_rates=False, uid="other")
    assert inputs.run(THIRD) == ["a"]


def test_ledgers_of_a_checkpoint_are_those_of_all_inputs(inputs: TwoInputs) -> None:
    inputs.run(FIRST)
    (row,) = inputs.stage.coordinator.describe(job_id_of(JOB)).checkpoints
    ledgers = input_ledgers(inputs.stage.storage, load_document(inputs.stage.storage, row))
    assert sorted(Path(item.name).name for ledger in ledgers for item in ledger.items) == ["1", "a"]


@pytest.mark.parametrize("is_moved", [False, True])
def test_run_that_starts_again_needs_the_broadcast_rows_of_its_try_before(inputs: TwoInputs, is_moved: bool) -> None:
    inputs.on_change = {"paid": "restart"}
    inputs.run(FIRST)
    inputs.write("rates/b")
    inputs.write("paid/2")
    inputs.write("paid/3")
    (inputs.folder / "rates" / "a").unlink()
    assert inputs.run(SECOND, files=1) == ["b"]
    inputs.write("paid/3", "{} {}")
    inputs.write("rates/c")
    if not is_moved:
        assert inputs.run(SECOND) == ["b", "c"]
        return
    (inputs.folder / "rates" / "b").unlink()
    with pytest.raises(
        SourceChangedError, match=r"rates/b, which it had read of the broadcast input of 'balance', van"
    ):
        inputs.run(SECOND)


def test_changed_broadcast_input_is_told_what_helps(inputs: TwoInputs) -> None:
    inputs.write("paid/2")
    inputs.run(FIRST, files=1)
    inputs.write("rates/b")
    with pytest.raises(SourceChangedError, match="'ignore' to continue") as changed:
        inputs.run(FIRST)
    assert "restart" not in str(changed.value)
    inputs.on_change = {"rates": "ignore"}
    assert inputs.run(FIRST) == []
    assert inputs.run(SECOND) == ["b"]


def test_task_packs_no_more_rows_than_the_limit() -> None:
    batch = pa.record_batch({"0": pa.array(range(1000), pa.int64())})
    pack = PackedRows(("number",), 20_000)
    given = [each.column("rows")[0].as_py() for each in pack([batch] * 5)]
    assert [value is None for value in given] == [False, False, True]
    assert PackedRows.rows_of(given[0])[7].number == 7
