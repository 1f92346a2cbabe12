"""What a stage reads of another one's committed output, without Spark."""

from __future__ import annotations

import pickle
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_provider_statecheck.exceptions import (
    CorruptStateError,
    InvalidConfigurationError,
    LocationNotAllowedError,
    SourceChangedError,
    SourceRestartRequiredError,
)
from airflow_provider_statecheck.spark.connectors.enumerator import SMALLEST_TARGET_BYTES
from airflow_provider_statecheck.spark.connectors.source import OnChange
from airflow_provider_statecheck.spark.connectors.stage_output import source as stage_output_source
from airflow_provider_statecheck.spark.connectors.stage_output.source import (
    EarlierOutput,
    StageOutputReader,
    reconcile_commits,
)
from airflow_provider_statecheck.state.source_items import Item, Ledger
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.locations import AllowedLocations
from tests.unit.spark.connectors.attempts import Attempt
from tests.unit.spark.connectors.runs import state_of

StageOutputSource: Any = stage_output_source.StageOutputSource  # no session is needed here


@pytest.fixture
def path(tmp_path):
    return f"file://{tmp_path}/balances"


@pytest.fixture
def source(path):
    def source(**named):
        return StageOutputSource(path, **{"checkpoints_per_increment": 1, **named})

    return source


@pytest.fixture(autouse=True)
def _reads_without_spark(monkeypatch):
    def load_files(reader, uris):
        return sorted(k for uri in uris for k in pq.read_table(uri.removeprefix("file://")).column("key").to_pylist())

    monkeypatch.setattr(StageOutputReader, "load_files", load_files)


def read(enumerator, count=None):
    """The keys of some increments, which are finished."""
    found: list[Any] = []
    while count is None or len(found) < count:
        increment = enumerator.next_increment()
        if increment is None:
            break
        found.append(enumerator.load(increment))
        enumerator.require_unchanged(increment)
        enumerator.finish(increment)
    return found


def after(source, count):
    enumerator = source.open(None)
    read(enumerator, count)
    return state_of(enumerator)


def fallen_back(path, checkpoint_id=3):
    """A second attempt that goes on from checkpoint 1 and replaces what came after it."""
    attempt = Attempt(path, 2, restored=1).open()
    attempt.add(checkpoint_id, 30)
    return attempt


def begun_again(path):
    """An attempt of a new generation, whose first commit replaces everything."""
    attempt = Attempt(path, 2, generation=2).open()
    attempt.add(9, 90)
    return attempt


def test_each_checkpoint_upstream_is_an_increment_of_all_its_files(path, source):
    attempt = Attempt(path, 1).open()
    attempt.commit(1, [*attempt.write(1), *attempt.write(2, subtask=1)])
    attempt.add(2, 3)
    attempt.add(10, 4)
    assert read(source().open(None)) == [[1, 2], [3], [4]]


def test_checkpoints_are_joined_up_to_the_limits(path, source):
    attempt = Attempt(path, 1).open()
    for checkpoint_id in range(1, 6):
        attempt.add(checkpoint_id, checkpoint_id)
    assert read(source(checkpoints_per_increment=2).open(None)) == [[1, 2], [3, 4], [5]]
    assert read(source(checkpoints_per_increment=None).open(None)) == [[1, 2, 3, 4, 5]]
    assert read(source(checkpoints_per_increment=None, bytes_per_increment=1).open(None)) == [[1], [2], [3], [4], [5]]


def test_an_automatic_increment_keeps_its_size_within_a_run(path, source):
    Attempt(path, 1).open().add(1, 1)
    state = source(checkpoints_per_increment=None).open(None).snapshot()
    assert state["target_bytes"] == SMALLEST_TARGET_BYTES
    assert (
        source(checkpoints_per_increment=None).open(None, state | {"target_bytes": 7}).snapshot()["target_bytes"] == 7
    )


def test_output_that_waits_for_its_commit_is_not_read(path, source):
    attempt = Attempt(path, 1).open()
    attempt.add(1, 1)
    attempt.write(2)
    assert read(source().open(None)) == [[1]]


def test_checkpoints_without_output_are_no_increments(path, source):
    attempt = Attempt(path, 1).open()
    attempt.commit(1, attempt.write())
    assert read(source().open(None)) == []
    attempt.add(2, 2)
    assert read(source().open(None)) == [[2]]


def test_where_no_sink_ever_wrote_a_start_is_refused(path, source):
    with pytest.raises(InvalidConfigurationError, match="output of a ParquetSink"):
        source().open(None)


def test_several_sinks_of_one_directory_are_one_source(path, source):
    Attempt(path, 1, job="a").open().add(1, 1)
    Attempt(path, 1, job="b").open().add(1, 2)
    assert sorted(read(source().open(None))) == [[1], [2]]


def test_a_new_run_reads_first_what_the_one_before_left(path, source):
    attempt = Attempt(path, 1).open()
    attempt.add(1, 1)
    attempt.add(2, 2)
    state = after(source(), 1)
    attempt.add(3, 3)

    enumerator = source().open(None, state, new_run=True)

    assert read(enumerator) == [[2], [3]]
    assert enumerator.snapshot()["increments"] == 3


def upstream_of_three(path):
    attempt = Attempt(path, 1).open()
    attempt.add(1, 1)
    attempt.add(2, 2)
    return attempt


@pytest.mark.parametrize("new_run", [True, False])
@pytest.mark.parametrize(("retract", "read_before", "retracted"), [(fallen_back, 2, 2), (begun_again, 1, 1)])
def test_a_retraction_upstream_of_what_was_read_fails_and_names_the_checkpoint(
    path, source, retract, read_before, retracted, new_run
):
    upstream_of_three(path)
    state = after(source(), read_before)
    retract(path)
    with pytest.raises(SourceChangedError, match=rf"retracted checkpoint {retracted} of [0-9a-f]{{12}}, "):
        source().open(None, state, new_run=new_run)


def test_output_that_was_replaced_before_it_was_read_is_missed_within_a_run_and_read_by_a_new_one(path, source):
    upstream_of_three(path)
    state = after(source(), 1)
    fallen_back(path)
    with pytest.raises(SourceChangedError, match="retracted checkpoint 2"):
        source().open(None, state)
    assert read(source().open(None, state, new_run=True)) == [[30]]


@pytest.mark.parametrize(
    ("on_change", "kind"),
    [("fail", SourceChangedError), ("ignore", SourceChangedError), ("restart", SourceRestartRequiredError)],
)
@pytest.mark.parametrize("is_read", [False, True], ids=["right before", "while"])
def test_a_retraction_right_before_or_while_an_increment_is_read_is_noticed(path, source, is_read, on_change, kind):
    upstream_of_three(path)
    enumerator = source(on_change=on_change).open(None)
    increment = enumerator.next_increment()
    if is_read:
        enumerator.load(increment)
    begun_again(path)
    with pytest.raises(kind, match="retracted checkpoint 1"):
        (enumerator.require_unchanged if is_read else enumerator.load)(increment)


def test_a_commit_that_is_made_again_is_the_same(path, source):
    attempt = Attempt(path, 1).open()
    written = attempt.add(1, 1)
    state = after(source(), 1)
    Attempt(path, 2, restored=1).open().commit(1, written)
    assert read(source().open(None, state, new_run=True)) == []


@pytest.mark.parametrize("is_own", [True, False])
def test_output_on_an_object_store_is_read_with_the_options_of_the_source_or_the_stage(
    object_store, monkeypatch, is_own
):
    object_store.faults.clear()
    path, options = f"s3://{object_store.make_bucket()}/balances", object_store.storage_options
    monkeypatch.setattr(StageOutputReader, "load", lambda _, splits: [split.split_id for split in splits])
    attempt = Attempt(path, 1, storage_options=options).open()
    attempt.add(1, 1)
    attempt.add(2, 2)
    source = StageOutputSource(path, checkpoints_per_increment=1, storage_options=options if is_own else None)
    enumerator = source.open(None, storage_options={"endpoint_url": "http://127.0.0.1:1"} if is_own else options)
    assert len(read(enumerator, 1)) == 1
    second = enumerator.next_increment()
    Attempt(path, 2, restored=1, storage_options=options).open().add(3, 3)

    with pytest.raises(SourceChangedError, match="retracted checkpoint 2"):
        enumerator.load(second)


def test_paths_may_be_written_in_several_ways(tmp_path, path):
    Attempt(path, 1).open().add(1, 1)
    for written in (tmp_path / "balances", f"{path}/", f"{tmp_path}/x/../balances"):
        assert read(StageOutputSource(written).open(None)) == [[1]]


def test_options_of_a_storage_are_not_shown():
    source = StageOutputSource("s3://me:very-secret@lake/balances", storage_options={"secret": "very-secret"})
    assert repr(source) == "StageOutputSource('s3://***@lake/balances')"
    assert repr(pickle.loads(pickle.dumps(source))) == repr(source)


def test_a_relative_path_stays_that_of_the_directory_in_which_the_source_was_opened(path, tmp_path, monkeypatch):
    Attempt(path, 1).open().add(1, 1)
    monkeypatch.chdir(tmp_path)
    enumerator = StageOutputSource("balances").open(None)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert read(enumerator) == [[1]]
    assert "key" in enumerator.reader.schema.names


def fork_of(path, count):
    """The directory of a fork, whose upstream stage has committed some checkpoints of its own."""
    attempt = Attempt(f"{path}-fork", 1, job="fork").open()
    for checkpoint_id in range(1, count + 1):
        attempt.add(checkpoint_id, checkpoint_id * 100)
    return attempt


def trusting(source):
    """The source of a stage that may open any directory."""
    source.open = partial(source.open, allowed=AllowedLocations().below("file:///"))
    return source


@pytest.fixture
def fork(path):
    def fork(**named):
        return trusting(StageOutputSource(f"{path}-fork", **{"checkpoints_per_increment": 1, **named}))

    return fork


@pytest.mark.parametrize("on_change", ["fail", "ignore", "restart"])
@pytest.mark.parametrize("new_run", [True, False])
def test_a_fork_counts_what_the_other_job_has_read_as_read_and_reads_its_own_upstream(
    path, source, fork, new_run, on_change
):
    upstream_of_three(path)
    state = after(source(), 2)
    fork_of(path, 2)
    enumerator = fork(on_change=on_change).open(None, state, new_run=new_run, of_other_job=True)
    assert read(enumerator) == [[100], [200]]
    assert (enumerator.finished_splits, enumerator.snapshot()["increments"]) == (4, 4)


def test_later_attempts_and_runs_of_a_fork_remember_what_the_other_job_has_read(path, source, fork):
    upstream_of_three(path)
    attempt = fork_of(path, 2)
    enumerator = fork().open(None, after(source(), 2), of_other_job=True)
    read(enumerator, 1)
    state = state_of(enumerator)
    again = fork().open(None, state)
    assert read(again) == [[200]]
    for checkpoint_id in (3, 4):
        attempt.add(checkpoint_id, checkpoint_id * 100)
        again = fork().open(None, state_of(again), new_run=True)
        assert read(again) == [[checkpoint_id * 100]]
    assert again.finished_splits == 6


def test_a_fork_of_a_fork_remembers_both_jobs(path, source, fork):
    upstream_of_three(path)
    fork_of(path, 1)
    enumerator = fork().open(None, after(source(), 2), of_other_job=True)
    read(enumerator)
    Attempt(f"{path}-second", 1, job="second").open().add(1, 1000)
    second = StageOutputSource(f"{path}-second", checkpoints_per_increment=1)
    enumerator = second.open(None, state_of(enumerator), of_other_job=True)
    assert read(enumerator) == [[1000]]
    assert read(second.open(None, state_of(enumerator), new_run=True)) == []


@pytest.mark.parametrize("on_change", ["fail", "ignore", "restart"])
@pytest.mark.parametrize("new_run", [True, False])
def test_a_fork_first_reads_what_the_other_job_has_listed_and_not_read_in_its_directory(
    path, source, fork, new_run, on_change
):
    attempt = upstream_of_three(path)
    state = after(source(), 1)
    # The other job goes on after the cut.
    attempt.add(3, 3)
    fork_of(path, 2)
    enumerator = fork(on_change=on_change).open(None, state, new_run=new_run, of_other_job=True)
    assert read(enumerator) == [[2], [100], [200]]
    assert read(fork().open(None, state_of(enumerator), new_run=True)) == []


def test_later_attempts_runs_and_forks_read_what_is_left_in_the_directory_of_the_first_job(path, source, fork):
    attempt = upstream_of_three(path)
    attempt.add(3, 3)
    state = after(source(), 1)
    own = fork_of(path, 1)
    enumerator = fork().open(None, state, of_other_job=True)
    assert read(enumerator, 1) == [[2]]
    own.add(2, 200)
    assert read(fork().open(None, state_of(enumerator))) == [[3], [100]]
    assert read(fork().open(None, state_of(enumerator), new_run=True)) == [[3], [100], [200]]
    Attempt(f"{path}-second", 1, job="second").open().add(1, 1000)
    second = trusting(StageOutputSource(f"{path}-second", checkpoints_per_increment=1))
    assert read(second.open(None, state_of(enumerator), of_other_job=True)) == [[3], [100], [1000]]


def files_gone(path):
    for file in Path(path.removeprefix("file://")).glob("part-*.parquet"):
        file.unlink()


def directory_gone(path):
    shutil.rmtree(path.removeprefix("file://"))


def cut_of(path, checkpoint_id):
    """The output of the upstream stage up to a checkpoint of its first attempt, as a savepoint of the job has it."""
    return {"of_other_job": True, "cuts": {Attempt(path, 1).context.lineage: (1, checkpoint_id), "another": (1, 9)}}


@pytest.mark.parametrize("on_change", ["fail", "ignore", "restart"])
@pytest.mark.parametrize("new_run", [True, False])
@pytest.mark.parametrize("has_listed", [True, False])
def test_a_fork_first_reads_what_the_savepoint_has_of_the_upstream_stage_and_its_reader_had_not_listed(
    path, source, fork, has_listed, new_run, on_change
):
    attempt = Attempt(path, 1).open() if not has_listed else upstream_of_three(path)
    state = after(source(), 1)
    if not has_listed:
        attempt.add(2, 2)
    for checkpoint_id in (3, 4, 5):
        attempt.add(checkpoint_id, checkpoint_id)
    fork_of(path, 2)
    enumerator = fork(on_change=on_change).open(None, state, new_run=new_run, **cut_of(path, 4))
    assert read(enumerator, 1) == [[2]]
    assert read(fork().open(None, state_of(enumerator))) == [[3], [4], [100], [200]]


@pytest.mark.parametrize("has_listed", [True, False])
def test_a_fork_of_a_checkpoint_of_the_stage_alone_warns_of_output_that_it_does_not_read(
    path, source, fork, has_listed, caplog
):
    attempt = Attempt(path, 1).open()
    if has_listed:
        attempt.add(1, 1)
    else:
        attempt.add(1)
    state = after(source(), 1)
    attempt.add(2, 2)
    fork_of(path, 1)
    assert read(fork().open(None, state, of_other_job=True)) == [[100]]
    assert [r.getMessage() for r in caplog.records if f"instead of {path}: output there" in r.getMessage()]


def test_a_fork_that_knows_the_cut_or_reads_the_directory_of_the_other_job_warns_of_nothing(path, source, fork, caplog):
    upstream_of_three(path)
    state = after(source(), 2)
    fork_of(path, 1)
    fork().open(None, state, **cut_of(path, 2))
    source().open(None, state, of_other_job=True)
    assert caplog.records == []


@pytest.mark.parametrize("has_cut", [False, True])
def test_a_fork_opens_no_directory_of_the_other_job_if_all_its_output_was_read(path, source, fork, has_cut):
    upstream_of_three(path)
    state = after(source(), 2)
    directory_gone(path)
    fork_of(path, 1)
    assert read(fork().open(None, state, **(cut_of(path, 2) if has_cut else {"of_other_job": True}))) == [[100]]


@pytest.mark.parametrize("lose", [fallen_back, begun_again, directory_gone])
@pytest.mark.parametrize("on_change", ["fail", "ignore", "restart"])
def test_output_in_the_savepoint_that_is_lost_before_its_reader_has_listed_it_fails(
    path, source, fork, lose, on_change
):
    attempt = Attempt(path, 1).open()
    attempt.add(1, 1)
    state = after(source(), 1)
    attempt.add(2, 2)
    lose(path)
    fork_of(path, 1)
    with pytest.raises(SourceChangedError, match=r"found that checkpoint 2 of [0-9a-f]{12} was retracted"):
        fork(on_change=on_change).open(None, state, **cut_of(path, 2))


def test_output_that_the_reader_had_not_listed_is_read_only_in_allowed_and_known_directories(path, source):
    attempt = upstream_of_three(path)
    state = after(source(), 2)
    attempt.add(3, 3)
    fork_of(path, 1)
    fork = StageOutputSource(f"{path}-fork", checkpoints_per_increment=1)
    with pytest.raises(LocationNotAllowedError, match=f"{path}', which was not opened"):
        fork.open(None, state, **cut_of(path, 3))
    state["reader"]["target"] = ""
    with pytest.raises(SourceChangedError, match="in a directory whose URI has credentials, found that checkpoint 3"):
        fork.open(None, state, **cut_of(path, 3))


def test_a_directory_that_the_state_names_is_opened_only_where_it_is_allowed(path, source):
    upstream_of_three(path)
    state = after(source(), 1)
    fork_of(path, 1)
    fork = StageOutputSource(f"{path}-fork", checkpoints_per_increment=1)
    for target in ("http://127.0.0.1:9/elsewhere", path):
        state["reader"]["target"] = target
        with pytest.raises(LocationNotAllowedError, match=f"{target}', which was not opened"):
            fork.open(None, state, of_other_job=True)
    allowed = AllowedLocations().around(path)
    assert read(fork.open(None, state, of_other_job=True, allowed=allowed)) == [[2], [100]]


@pytest.mark.parametrize("forged", [None, ["lineage"], "lineage", 5])
def test_forged_directories_of_earlier_output_are_refused(path, source, fork, forged):
    upstream_of_three(path)
    state = after(source(), 1)
    state["reader"]["inherited"] = forged
    fork_of(path, 1)
    with pytest.raises(CorruptStateError, match="directories of earlier output"):
        fork().open(None, state, of_other_job=True)


LOST = [fallen_back, begun_again, files_gone, directory_gone]


@pytest.mark.parametrize("lose", LOST)
@pytest.mark.parametrize("on_change", ["fail", "ignore", "restart"])
def test_listed_output_of_the_other_job_that_is_lost_fails_before_anything_is_read(path, source, fork, lose, on_change):
    upstream_of_three(path)
    state = after(source(), 1)
    lose(path)
    fork_of(path, 1)
    with pytest.raises(SourceChangedError, match=r"found that checkpoint 2 of [0-9a-f]{12} was retracted") as caught:
        fork(on_change=on_change).open(None, state, of_other_job=True)
    assert f"for this stage in {path}, found" in str(caught.value)


@pytest.mark.parametrize("on_change", ["fail", "ignore", "restart"])
def test_listed_output_of_the_other_job_that_is_retracted_while_it_is_read_is_noticed(path, source, fork, on_change):
    upstream_of_three(path)
    state = after(source(), 1)
    fork_of(path, 1)
    enumerator = fork(on_change=on_change).open(None, state, of_other_job=True)
    increment = enumerator.next_increment()
    enumerator.load(increment)
    begun_again(path)
    with pytest.raises(SourceChangedError, match=r"found that checkpoint 2 of [0-9a-f]{12} was retracted"):
        enumerator.require_unchanged(increment)


def test_a_directory_of_the_other_job_that_was_moved_is_read_where_it_is_now(path, source, fork):
    attempt = upstream_of_three(path)
    attempt.add(3, 3)
    state = after(source(), 1)
    Path(path.removeprefix("file://")).rename(f"{path.removeprefix('file://')}-moved")
    moved = StageOutputSource(f"{path}-moved", checkpoints_per_increment=1).open(None, state, of_other_job=True)
    assert read(moved, 1) == [[2]]
    fork_of(path, 1)
    assert read(fork().open(None, state_of(moved), new_run=True)) == [[3], [100]]


def test_the_state_has_no_directory_with_credentials():
    spark: Any = None
    for uri, stored_uri in (("s3://me:very-secret@lake/balances", ""), ("s3://lake/balances", "s3://lake/balances")):
        target = CheckpointStorage.open(uri)
        reader = StageOutputReader(spark, target, {}, None, OnChange.FAIL, {}, EarlierOutput())
        assert reader.snapshot()["target"] == stored_uri


def test_listed_output_in_a_directory_with_credentials_is_not_found(path, source, fork):
    upstream_of_three(path)
    state = after(source(), 1)
    state["reader"]["target"] = ""
    fork_of(path, 1)
    with pytest.raises(SourceChangedError, match="in a directory whose URI has credentials, found that checkpoint 2"):
        fork().open(None, state, of_other_job=True)


def test_a_fork_may_first_read_what_is_left_in_the_directory_of_the_other_job(path, source, fork):
    upstream_of_three(path)
    fork_of(path, 1)
    enumerator = source().open(None, after(source(), 1), of_other_job=True)
    assert read(enumerator) == [[2]]

    assert read(fork().open(None, state_of(enumerator), new_run=True)) == [[100]]


@pytest.mark.parametrize("of_other_job", [True, False])
def test_output_that_was_retracted_in_the_directory_of_the_other_job_is_noticed(path, source, of_other_job):
    upstream_of_three(path)
    state = after(source(), 2)
    fallen_back(path)
    with pytest.raises(SourceChangedError, match="retracted checkpoint 2"):
        source().open(None, state, new_run=True, of_other_job=of_other_job)


def test_output_that_a_fork_has_read_of_its_own_upstream_may_not_be_retracted(path, source, fork):
    upstream_of_three(path)
    fork_of(path, 2)
    enumerator = fork().open(None, after(source(), 2), of_other_job=True)
    read(enumerator)
    Attempt(f"{path}-fork", 2, restored=1, job="fork").open().add(3, 300)
    with pytest.raises(SourceChangedError, match="retracted checkpoint 2"):
        fork().open(None, state_of(enumerator), new_run=True)


def test_another_directory_of_the_same_job_is_a_retraction(path, source, fork):
    upstream_of_three(path)
    state = after(source(), 2)
    fork_of(path, 1)
    with pytest.raises(SourceChangedError, match="retracted checkpoint 1"):
        fork().open(None, state, new_run=True)


def test_reconciling_keeps_commits_of_a_left_lineage_in_their_place():
    old, unread, new = (Item.of(name, 1, "v") for name in ("old/1", "old/2", "new/1"))
    finished = Ledger((old,)).finish_items([0])
    how: Any = {"on_change": OnChange.FAIL, "new_run": True}
    before = Ledger((old, unread)).finish_items([0])
    kept = reconcile_commits(before, [new], left=frozenset({"old"}), **how)
    assert (kept.items, list(kept.finished)) == ((old, unread, new), [0])
    with pytest.raises(SourceChangedError, match="retracted checkpoint 1 of old"):
        reconcile_commits(finished, [new], **how)
