"""What a stage gives, and that a retry of it gives the same."""

from __future__ import annotations

import random
import shutil
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.properties import RestoreMode
from airflow_provider_statecheck.exceptions import StateMigrationError
from airflow_provider_statecheck.spark.connectors.custom.data_frame_source import DataFrameSource
from airflow_provider_statecheck.spark.connectors.files.sink import ParquetSink
from airflow_provider_statecheck.spark.connectors.files.source import ParquetSource
from airflow_provider_statecheck.spark.driver.settings import DriverSettings
from airflow_provider_statecheck.spark.stages.stage import Count, Max, Min, Stage, Sum
from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates
from airflow_provider_statecheck.storage.metadata_file import load_document, state_uris
from tests.messages import ManualClock, make_owner, source_at
from tests.soak import rest_in_soak
from tests.spark.stages.functions import (
    BalanceInText,
    FailingOnce,
    FailingOnceOfClients,
    FinalBalance,
    Numbering,
    RecentPayments,
    RunningBalance,
    RunningBalanceOfTables,
    StatefulMapFunction,
    TimeOfElement,
    Visits,
)
from tests.spark.stages.stage_tries import StageTries

FILES, PAYMENTS = 4, 50
RUNNING = "account string, number bigint, balance bigint"


def payments(seed: int = 1) -> list[dict[str, list[Any]]]:
    """Return the columns of some files of payments, numbered in their order."""
    dice = random.Random(seed)
    return [
        {
            "account": [f"a{dice.randrange(12)}" for _ in range(PAYMENTS)],
            "number": list(range(file * PAYMENTS, (file + 1) * PAYMENTS)),
            "amount": [dice.randrange(-50, 50) for _ in range(PAYMENTS)],
            "purpose": [dice.choice(["rent", "food"]) for _ in range(PAYMENTS)],
        }
        for file in range(FILES)
    ]


def by_row(parts: list[dict[str, list[Any]]]) -> list[dict[str, Any]]:
    return [dict(zip(part, row, strict=True)) for part in parts for row in zip(*part.values(), strict=True)]


def running(parts: list[dict[str, list[Any]]]) -> list[dict[str, Any]]:
    """Return what RunningBalance gives for payments in their order."""
    balances: defaultdict[str, int] = defaultdict(int)
    rows = []
    for row in by_row(parts):
        balances[row["account"]] += row["amount"]
        rows.append({"account": row["account"], "number": row["number"], "balance": balances[row["account"]]})
    return sorted(rows, key=repr)


def balances(parts: list[dict[str, list[Any]]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for row in by_row(parts):
        total[row["account"]] += row["amount"]
    return dict(total)


def load_part(folder: str, schema: str, spark: Any, part: int) -> Any:
    return spark.read.schema(schema).parquet(f"{folder}/part-{part:03d}.parquet")


def from_files(tries: StageTries, **options: Any) -> Stage:
    return Stage("stage", **options).source(ParquetSource(str(tries.input), files_per_increment=1))


def running_stage(tries: StageTries, function: Any, **options: Any) -> Stage:
    keyed = from_files(tries, **options).key_by("account", order_by="number")
    return keyed.process(function, uid="balance", output=RUNNING).sink(ParquetSink(str(tries.output)))


@pytest.mark.parametrize("backend", rest_in_soak(["arrow", "hashmap", "filesystem"], "arrow"))
def test_keyed_function_sees_each_element_once_in_order_over_increments(tries: StageTries, backend: str) -> None:
    parts = payments()
    tries.write_input(*parts)
    result = tries.run(running_stage(tries, RunningBalance(), state_backend=backend))
    assert (result.increments, result.rows) == (FILES, FILES * PAYMENTS)
    assert tries.rows() == running(parts)


def test_retry_goes_on_with_the_increment_that_failed(tries: StageTries) -> None:
    parts = payments()
    tries.write_input(*parts)
    stage = running_stage(tries, FailingOnce(tries.folder / "failed", number=2 * PAYMENTS + 7))
    with pytest.raises(Exception, match="planned"):
        tries.run(stage)
    assert tries.run(stage).increments == FILES - 2
    assert tries.rows() == running(parts)


def test_output_of_increments_without_a_completed_checkpoint_is_not_seen(tries: StageTries) -> None:
    tries.write_input(*payments())
    stage = running_stage(tries, FailingOnce(tries.folder / "failed", number=2 * PAYMENTS + 7))
    with pytest.raises(Exception, match="planned"):
        tries.run(stage, DriverSettings(checkpoint_interval="1 h"))
    assert tries.rows() == []
    assert tries.completed() == []


class TickingClock(ManualClock):
    """A clock that goes on by a second whenever it is read."""

    def now(self) -> datetime:
        self.advance(1)
        return super().now()


@pytest.mark.soak
@pytest.mark.parametrize("failing_file", [0, 2], ids=["before a checkpoint", "after checkpoints"])
def test_state_expires_by_one_time_in_all_tries_of_a_run_without_a_date(
    spark: Any, tmp_path: Any, failing_file: int
) -> None:
    tries = StageTries(spark, tmp_path, TickingClock())
    parts = payments()
    tries.write_input(*parts)
    stage = running_stage(tries, RecentPayments(tries.folder / "failed", number=failing_file * PAYMENTS + 7))
    run = {"run_key": "manual__1", "run_id": "manual__1", "airflow": (("dag_id", "nightly"), ("run_id", "manual__1"))}
    with pytest.raises(Exception, match="planned"):
        tries.run(stage, owner=make_owner(**run))
    tries.run(stage, owner=make_owner(**run))
    seen: Counter[str] = Counter()
    expected = []
    for row in by_row(parts):
        seen[row["account"]] += 1
        expected.append({"account": row["account"], "number": row["number"], "balance": seen[row["account"]]})
    assert tries.rows() == sorted(expected, key=repr)
    (registered, *_) = tries.view().attempts
    states = CheckpointStates.load(tries.completed()[-1].location)
    assert states.taken_at_ms == int(registered.registered_at.timestamp() * 1000)
    tries.run(stage, owner=make_owner(**run, clear_marker="cleared"))
    assert tries.rows() == sorted(expected, key=repr)
    assert CheckpointStates.load(tries.completed()[-1].location).taken_at_ms == states.taken_at_ms


@pytest.mark.soak
def test_script_that_starts_again_after_its_end_lets_state_expire_by_a_new_time(spark: Any, tmp_path: Any) -> None:
    tries = StageTries(spark, tmp_path, TickingClock())
    tries.write_input(*payments())
    stage = running_stage(tries, RecentPayments(tries.folder / "failed", number=-1))
    for start in ("first", "second"):
        tries.run(stage, owner=make_owner(run_key="script", run_id="script", clear_marker=start))
    newest = tries.view().attempts[-1].registered_at
    taken_at = CheckpointStates.load(tries.completed()[-1].location).taken_at_ms
    assert (len(tries.view().attempts), taken_at) == (2, int(newest.timestamp() * 1000))


@pytest.mark.parametrize("updates", [True, False])
@pytest.mark.parametrize("backend", ["arrow", "filesystem"])
def test_value_that_is_changed_in_place_is_kept_by_an_update_alone(
    tries: StageTries, backend: str, updates: bool
) -> None:
    tries.write_input(*[{"person": ["ann"] * 2, "place": places} for places in (["x1", "x2"], ["x3", "x4"])])
    stage = from_files(tries, state_backend=backend).key_by("person", order_by="place")
    stage = stage.process(Visits(updates=updates), output="person string, places string")
    assert tries.run(stage.sink(ParquetSink(str(tries.output)))).increments == 2
    expected = ["x1", "x1 x2", "x1 x2 x3", "x1 x2 x3 x4"] if updates else ["x1"] * 4
    assert sorted(row["places"] for row in tries.rows()) == expected


def test_value_that_does_not_fit_its_state_fails_the_stage_naming_state_key_and_operator(tries: StageTries) -> None:
    tries.write_input({"person": ["ann"], "place": [None]})
    stage = (
        from_files(tries).key_by("person").process(Visits(updates=True), uid="trips", output="person string, p string")
    )
    with pytest.raises(Exception, match="'places' of the operator 'stage/trips' for the key 'ann'"):
        tries.run(stage.sink(ParquetSink(str(tries.output))))


@pytest.mark.soak
def test_key_whose_column_was_renamed_goes_on_under_its_new_name(tries: StageTries) -> None:
    parts = payments()
    tries.write_input(*parts)
    failing = FailingOnce(tries.folder / "failed", number=2 * PAYMENTS + 7)
    with pytest.raises(Exception, match="planned"):
        tries.run(running_stage(tries, failing))

    def stage(key: str, columns: str, **aliases: str) -> Stage:
        mapped = from_files(tries).map(lambda row: tuple(row), output=columns)
        renamed = mapped.key_by(key, order_by="number", aliases=aliases)
        function = FailingOnceOfClients(failing.marker, failing.number)
        return renamed.process(function, uid="balance", output=RUNNING).sink(ParquetSink(str(tries.output)))

    columns = "client string, number bigint, amount bigint, purpose string"
    with pytest.raises(StateMigrationError, match=r"name the old ones, as in key_by\(..., aliases="):
        tries.run(stage("client", columns))
    tries.run(stage("client", columns, client="account"))
    assert tries.rows() == running(parts)


@pytest.mark.parametrize("parallelism", rest_in_soak([1, 3, 7], 3))
def test_state_is_restored_at_another_parallelism(tries: StageTries, parallelism: int) -> None:
    parts = payments()
    tries.write_input(*parts)
    marker = tries.folder / "failed"
    with pytest.raises(Exception, match="planned"):
        tries.run(running_stage(tries, FailingOnce(marker, number=2 * PAYMENTS + 7), parallelism=2))
    tries.run(running_stage(tries, FailingOnce(marker, number=-1), parallelism=parallelism))
    assert tries.rows() == running(parts)
    assert {s.parallelism for s in tries.document().operator_states if s.uid == "stage/balance"} == {parallelism}


@pytest.mark.soak
def test_session_with_more_slots_than_key_groups_is_used_as_far_as_it_goes(
    tries: StageTries, caplog: pytest.LogCaptureFixture
) -> None:
    parts = payments()
    tries.write_input(*parts[:2])
    tries.run(running_stage(tries, RunningBalance(), max_parallelism=1))
    tries.write_input(*parts[2:])
    tries.run(running_stage(tries, RunningBalance()), owner=make_owner(run_key="2026-01-02"))
    assert tries.rows() == running(parts)
    assert {s.parallelism for s in tries.document().operator_states if s.uid == "stage/balance"} == {1}
    assert sum("runs with parallelism=1," in text for text in caplog.messages) == 2


@pytest.mark.soak
def test_function_is_asked_for_each_key_with_state_at_the_end_of_the_input(tries: StageTries) -> None:
    parts = payments()
    tries.write_input(*parts)
    stage = from_files(tries).key_by("account").process(FinalBalance(), output="account string, n int, balance bigint")
    tries.run(stage.sink(ParquetSink(str(tries.output))))
    expected = Counter(row["account"] for row in by_row(parts))
    assert {row["account"]: (row["n"], row["balance"]) for row in tries.rows()} == {
        account: (expected[account], balance) for account, balance in balances(parts).items()
    }


@pytest.mark.soak
def test_function_of_tables_reads_and_writes_state_of_many_keys(tries: StageTries) -> None:
    parts = payments()
    tries.write_input(*parts)
    stage = (
        from_files(tries).key_by("account").process(RunningBalanceOfTables(), output="account string, balance bigint")
    )
    tries.run(stage.sink(ParquetSink(str(tries.output))))
    final = balances(parts)
    given = {(row["account"], row["balance"]) for row in tries.rows()}
    assert set(final.items()) <= given
    assert len(tries.rows()) == sum(len(set(part["account"])) for part in parts)


@pytest.mark.soak
def test_stateful_map_function_has_keyed_and_operator_state(tries: StageTries) -> None:
    parts = payments()
    tries.write_input(*parts)
    stage = from_files(tries).key_by("account").map(StatefulMapFunction(), output="text string")
    tries.run(stage.sink(ParquetSink(str(tries.output))))
    expected = Counter(row["account"] for row in by_row(parts))
    texts = [row["text"] for row in tries.rows()]
    # In each increment behind the first a function goes on from the one before.
    assert any(text.endswith(", restored)") for text in texts)
    counted = {text.replace(", restored", "") for text in texts}
    assert counted == {f"{a} (processed {i} times)" for a, n in expected.items() for i in range(1, n + 1)}
    state = next(s for s in tries.document().operator_states if s.uid == "stage/map")
    assert all(subtask.managed_operator and subtask.managed_keyed for subtask in state.subtask_states.values())


@pytest.mark.soak
def test_functions_behind_two_keys_each_have_their_state(tries: StageTries) -> None:
    parts = payments()
    tries.write_input(*parts)
    stage = (
        from_files(tries, parallelism=3)
        .map(Numbering(), uid="numbering")
        .key_by("account", order_by="number")
        .process(RunningBalance(), uid="balance", output=RUNNING)
        .key_by("account")
        .aggregate(uid="payments", n=Count(), last=Max("number"), least=Min("balance"))
        .sink(ParquetSink(str(tries.output)))
    )
    tries.run(stage)
    rows = running(parts)
    assert {row["account"]: (row["n"], row["last"], row["least"]) for row in tries.rows()} == {
        account: (
            sum(row["account"] == account for row in rows),
            max(row["number"] for row in rows if row["account"] == account),
            min(row["balance"] for row in rows if row["account"] == account),
        )
        for account in balances(parts)
    }


@pytest.mark.soak
@pytest.mark.parametrize("combines", rest_in_soak([True, False], True))
@pytest.mark.parametrize("backend", rest_in_soak(["arrow", "hashmap"], "arrow"))
def test_aggregates_are_equal_whether_combined_before_the_shuffle_or_not(
    tries: StageTries, combines: bool, backend: str
) -> None:
    parts = payments()
    tries.write_input(*parts)
    stage = from_files(tries, state_backend=backend).key_by("account")
    stage = stage.aggregate(
        total=Sum("amount"), twice=Sum("2 * amount"), n=Count(), foods=Count("nullif(purpose, 'rent')")
    )
    result = tries.run(stage.sink(ParquetSink(str(tries.output))), DriverSettings(combines=combines))
    assert result.rows == FILES * PAYMENTS
    foods = Counter(row["account"] for row in by_row(parts) if row["purpose"] == "food")
    numbers = Counter(row["account"] for row in by_row(parts))
    assert {row["account"]: (row["total"], row["twice"], row["n"], row["foods"]) for row in tries.rows()} == {
        a: (total, 2 * total, numbers[a], foods[a]) for a, total in balances(parts).items()
    }


@pytest.mark.soak
def test_changed_keys_are_given_after_each_increment_if_asked_for(tries: StageTries) -> None:
    parts = payments()
    tries.write_input(*parts)
    stage = from_files(tries).key_by("account").aggregate(emit="changes", total=Sum("amount"))
    tries.run(stage.sink(ParquetSink(str(tries.output))))
    assert len(tries.rows()) == sum(len(set(part["account"])) for part in parts)


def test_row_without_a_key_is_refused_naming_the_column(tries: StageTries) -> None:
    parts = payments()
    parts[0]["account"][3] = None
    tries.write_input(*parts)
    with pytest.raises(Exception, match="Expected a key in the column 'account'"):
        tries.run(running_stage(tries, RunningBalance()))


def load_in_turn(spark: Any, split: int) -> Any:
    columns = [f"'a{split}' AS account", f"'p{split}' AS purpose"]
    return spark.range(1).selectExpr(*(columns if split % 2 else columns[::-1]))


def test_columns_of_another_order_keep_their_names_in_a_function_that_returns_its_input(tries: StageTries) -> None:
    stage = Stage("stage").source(DataFrameSource([1, 2], load_in_turn)).map(lambda row: row)
    tries.run(stage.sink(ParquetSink(str(tries.output))))
    assert tries.rows() == [{"account": f"a{split}", "purpose": f"p{split}"} for split in (1, 2)]


def test_stage_of_functions_without_state_only_passes_rows_on(tries: StageTries) -> None:
    parts = payments()
    tries.write_input(*parts)
    stage = from_files(tries).map(lambda row: (row.account, row.amount + 1), output="account string, amount bigint")
    tries.run(stage.sink(ParquetSink(str(tries.output))))
    assert Counter(row["amount"] for row in tries.rows()) == Counter(row["amount"] + 1 for row in by_row(parts))


@pytest.mark.soak
def test_all_checkpoints_but_the_retained_ones_are_deleted_with_their_state(tries: StageTries) -> None:
    tries.write_input(*payments())
    tries.run(running_stage(tries, RunningBalance(), state_backend="filesystem"))
    directories = [path for path in tries.folder.rglob("chk-*") if path.is_dir()]
    assert len(directories) == len(tries.completed()) == 2


@pytest.mark.soak
def test_end_of_the_input_reaches_every_key_although_the_last_increment_has_no_rows(tries: StageTries) -> None:
    parts = payments()
    tries.write_input(*parts, {name: [] for name in parts[0]})
    schema = "account string, number bigint, amount bigint, purpose string"
    source = DataFrameSource([0, 1, 2, 3, 4], partial(load_part, str(tries.input), schema))
    stage = Stage("stage", parallelism=3).source(source).key_by("account")
    stage = stage.process(FinalBalance(), output="account string, n int, balance bigint")
    stage = stage.key_by("n").aggregate(accounts=Count(), total=Sum("balance"))
    tries.run(stage.sink(ParquetSink(str(tries.output))))
    assert sum(row["accounts"] for row in tries.rows()) == len(balances(parts))
    assert sum(row["total"] for row in tries.rows()) == sum(balances(parts).values())


@pytest.mark.soak
def test_source_that_wants_it_begins_the_stage_again_when_a_file_changed(tries: StageTries) -> None:
    tries.write_input(*payments())
    source = ParquetSource(str(tries.input), files_per_increment=1, on_change="restart")

    def stage(function: Any) -> Stage:
        keyed = Stage("stage").source(source).key_by("account", order_by="number")
        return keyed.process(function, output=RUNNING).sink(ParquetSink(str(tries.output)))

    with pytest.raises(Exception, match="planned"):
        tries.run(stage(FailingOnce(tries.folder / "failed", number=2 * PAYMENTS + 7)))
    shutil.rmtree(tries.input)
    changed = payments(seed=2)
    tries.write_input(*changed)
    assert tries.run(stage(RunningBalance())).increments == FILES
    assert tries.rows() == running(changed)
    assert tries.view().attempts[-1].restored_from is None, "a savepoint of the job takes none of the replaced output"


def test_function_whose_state_changed_is_refused_before_any_spark_job(tries: StageTries) -> None:
    tries.write_input(*payments())
    with pytest.raises(Exception, match="planned"):
        tries.run(running_stage(tries, FailingOnce(tries.folder / "failed", number=2 * PAYMENTS + 7)))
    with pytest.raises(StateMigrationError, match="balance"):
        tries.run(running_stage(tries, BalanceInText()))


@pytest.mark.soak
def test_claimed_savepoint_whose_state_is_refused_is_left_to_its_owner(tries: StageTries) -> None:
    tries.write_input(*payments())
    with pytest.raises(Exception, match="planned"):
        tries.run(running_stage(tries, FailingOnce(tries.folder / "failed", number=2 * PAYMENTS + 7)))
    pointer = tries.savepoint()
    storage = tries.storage.allowing(pointer)
    source, files = source_at(storage, pointer, "stage", mode=RestoreMode.CLAIM), storage.list_files(pointer)
    with pytest.raises(StateMigrationError, match="balance"):
        tries.run(running_stage(tries, BalanceInText()), job_name="heir", restore_from=source)
    assert not tries.attempt(job_name="heir").grant.is_restore
    assert storage.list_files(pointer) == files
    fitting = from_files(tries).key_by("account", order_by="number")
    fitting = fitting.process(RunningBalance(), uid="balance", output=RUNNING)
    sink = ParquetSink(str(tries.folder / "elsewhere"))
    assert tries.run(fitting.sink(sink), job_name="another", restore_from=source).increments == 2
    assert tries.store.claim(pointer).job_id == job_id_of("another")


def test_element_has_the_time_by_which_it_is_ordered(tries: StageTries) -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    times = [begin + timedelta(seconds=i) for i in (2, 0, 1)]
    tries.write_input({"account": ["a", "a", "a"], "at": times})
    stage = from_files(tries).key_by("account", order_by="at").process(TimeOfElement(), output="ms bigint")
    tries.run(stage.sink(ParquetSink(str(tries.output))))
    assert [row["ms"] for row in tries.rows()] == [int(begin.timestamp() * 1000) + 1000 * i for i in range(3)]


def test_checkpoint_whose_state_is_gone_is_passed_over_and_its_output_retracted(tries: StageTries) -> None:
    parts = payments()
    tries.write_input(*parts)
    marker = tries.folder / "failed"
    with pytest.raises(Exception, match="planned"):
        tries.run(
            running_stage(tries, FailingOnce(marker, number=3 * PAYMENTS + 7)), DriverSettings(data_inline_threshold=0)
        )
    before, newest = (set(state_uris(load_document(tries.storage, c).operator_states)) for c in tries.completed())
    tries.storage.delete_file(min(newest - before))
    assert tries.run(running_stage(tries, FailingOnce(marker, number=-1))).increments == 2
    assert tries.rows() == running(parts)


def test_interval_lets_several_increments_share_a_checkpoint(tries: StageTries) -> None:
    tries.write_input(*payments())
    tries.run(running_stage(tries, RunningBalance()), DriverSettings(checkpoint_interval="1 h"))
    assert len(tries.view().checkpoints) == 1
