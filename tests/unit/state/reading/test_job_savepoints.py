"""State and snapshots in a savepoint of the whole job."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnknownStateError
from airflow_provider_statecheck.state.descriptors import ValueStateDescriptor
from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates
from airflow_provider_statecheck.state.reading.diff_states import diff_states
from airflow_provider_statecheck.state.reading.snapshot_reader import read_snapshot
from airflow_provider_statecheck.state.reading.state_reader import read_state
from airflow_provider_statecheck.state.writing.canonical import rescale_max_parallelism
from airflow_provider_statecheck.state.writing.write_savepoint import write_savepoint
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.job_savepoints import save_documents, save_job
from tests.unit.written_stage import WrittenStage
from tests.written_state import BACKENDS, StatefulJob

UIDS = ("extract", "load")


@pytest.fixture
def storage(tmp_path: Path) -> CheckpointStorage:
    return CheckpointStorage.open(f"{tmp_path}/checkpoints")


@pytest.fixture
def single(storage: CheckpointStorage) -> dict[str, str]:
    """Pointers of the checkpoints of two stages by uid, each with the length of the uid as the only value."""
    pointers = {}
    for number, uid in enumerate(UIDS):
        job = StatefulJob(storage, BACKENDS["arrow"](), [ValueStateDescriptor("sum", int)], stage=uid, taken=number)
        job.open(2)
        job.state("a", "sum").update(len(uid))
        pointers[uid] = job.save()
        job.close()
    return pointers


@pytest.fixture
def pointer(storage: CheckpointStorage, single: dict[str, str], tmp_path: Path) -> str:
    documents = [CheckpointStates.load(each).document for each in single.values()]
    return save_documents(storage, documents, f"file://{tmp_path}/savepoints")


@pytest.mark.parametrize("suffix", ["", "/balance"])
@pytest.mark.parametrize("uid", UIDS)
def test_state_of_a_stage_is_read_by_its_uid(pointer: str, single: dict[str, str], uid: str, suffix: str) -> None:
    found = read_state(pointer, "sum", uid=f"{uid}{suffix}").read_all()
    assert found.num_rows > 0
    assert found.equals(read_state(single[uid], "sum").read_all())


def test_without_a_uid_the_uids_are_listed(pointer: str) -> None:
    with pytest.raises(InvalidConfigurationError, match="set the uid to one of 'extract', 'load'"):
        read_state(pointer, "sum")
    with pytest.raises(UnknownStateError, match="found 'extract', 'load'"):
        read_state(pointer, "sum", uid="loads")
    with pytest.raises(UnknownStateError, match="function 'load/other'"):
        read_state(pointer, "sum", uid="load/other")


@pytest.mark.parametrize("uid", ["load", "load/balance"])
def test_a_stage_is_compared_with_its_other_checkpoints(
    pointer: str, single: dict[str, str], tmp_path: Path, uid: str
) -> None:
    assert diff_states(pointer, single["load"], "sum", uid=uid).read_all().num_rows == 0
    rows = pa.table({"account": ["a"], "value": pa.array([7], pa.int64())})
    edited = write_savepoint(
        rows, "sum", stage="load", function="balance", base=single["load"], target=f"file://{tmp_path}/edited"
    )
    [row] = diff_states(pointer, edited, "sum", uid=uid).read_all().to_pylist()
    assert (row["before"], row["after"]) == (len("load"), 7)


def test_a_snapshot_of_a_stage_is_read_by_its_uid(storage: CheckpointStorage, tmp_path: Path) -> None:
    stage = WrittenStage(storage)
    taken = []
    for uid in UIDS:
        attempt = stage.attempt(uid=uid)
        taken.append(stage.take(attempt, stage.snapshot(attempt, "rows", rows=len(uid))))
    pointer = save_job(storage, taken, f"file://{tmp_path}/savepoints")
    counts = [read_snapshot(pointer, "rows", uid=uid).read_all().num_rows for uid in UIDS]
    assert counts == [2 * len(uid) for uid in UIDS]
    with pytest.raises(InvalidConfigurationError, match="'extract', 'load'"):
        read_snapshot(pointer, "rows")
    assert read_snapshot(taken[0].location, "rows").read_all().num_rows == counts[0]
    with pytest.raises(UnknownStateError, match="found 'extract'"):
        read_snapshot(taken[0].location, "rows", uid="load")


def test_a_savepoint_of_one_stage_is_written_from_its_member(pointer: str, tmp_path: Path) -> None:
    rows = pa.table({"account": ["z"], "value": pa.array([7], pa.int64())})
    target = f"file://{tmp_path}/edited"
    written = write_savepoint(rows, "sum", stage="load", function="balance", base=pointer, target=target)
    assert read_state(written, "sum").read_all().to_pylist() == rows.to_pylist()
    assert CheckpointStates.load(written).document.members == ()
    with pytest.raises(UnknownStateError, match="'extract', 'load'"):
        write_savepoint(rows, "sum", stage="other", function="balance", base=pointer, target=target)


def test_rescaling_refuses_it(storage: CheckpointStorage, pointer: str, tmp_path: Path) -> None:
    states = CheckpointStates.load(pointer)
    directory = f"file://{tmp_path}/savepoints/savepoint-000000-000000000000"
    with pytest.raises(InvalidConfigurationError, match="covers the stages 'extract', 'load'"):
        rescale_max_parallelism(states.storage, states.document, directory=directory, max_parallelism=64)
    assert not storage.allowing(directory).exists(directory)
