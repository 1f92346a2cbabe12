"""What is read of a checkpoint, what is not, and what is said where that cannot be."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CorruptStateError,
    IncompatibleCheckpointError,
    InvalidConfigurationError,
    StateMigrationError,
    UnknownStateError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.spark.stages.stage_state import coordinator_state
from airflow_provider_statecheck.state.arrow.layout import ArrowStateSettings
from airflow_provider_statecheck.state.arrow.run_files import RunBytes
from airflow_provider_statecheck.state.backends import ArrowStateBackend
from airflow_provider_statecheck.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates
from airflow_provider_statecheck.state.reading.diff_states import StateDiff, diff_states
from airflow_provider_statecheck.state.reading.state_reader import StateReader, read_state, restored_keys
from airflow_provider_statecheck.state.schema_evolution import encode_schemas
from airflow_provider_statecheck.state.serializers.serializer import AS_IS, Compatibility
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import InlineStateHandle
from tests.unit.state.serializers.test_custom_serializers import SketchSerializer
from tests.written_state import BACKENDS, FUNCTION, GROUPS, STAGE, TEXT_KEY, StatefulJob

TTL = StateTtlConfig(timedelta(milliseconds=100))
ONE, TWO = SketchSerializer(1), SketchSerializer(2)
VALUE = ValueStateDescriptor("value", int)


def job_of(tmp_path: Path, *descriptors: Any, keys: Any = None, backend: str = "arrow") -> StatefulJob:
    made = StatefulJob(CheckpointStorage.open(tmp_path.as_uri()), BACKENDS[backend](), descriptors)
    if keys is not None:
        made.keys = keys
    made.open(2)
    return made


@pytest.fixture
def job(tmp_path: Path) -> Iterator[StatefulJob]:
    made = job_of(tmp_path, VALUE)
    yield made
    made.close()


def rows(pointer: str, name: str = "value", **arguments: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in read_state(pointer, name, **arguments).read_all().to_pylist())


def parts_of(tmp_path: Path) -> list[Path]:
    return sorted(
        (each for each in tmp_path.rglob("shared/*/state/*") if each.is_file()), key=lambda each: each.stat().st_mtime
    )


def test_keys_of_several_columns_and_types_have_their_names(tmp_path: Path) -> None:
    keys = KeySerializer((KeyField("country", pa.string()), KeyField("amount", pa.decimal128(10, 2))))
    job = job_of(tmp_path, VALUE, keys=keys)
    job.state(("nz", Decimal("1.50")), "value").update(3)
    (row,) = read_state(job.save(), "value").read_all().to_pylist()
    assert row == {"country": "nz", "amount": Decimal("1.50"), "value": 3}


def test_key_column_whose_name_means_something_else_gets_another(tmp_path: Path) -> None:
    keys = KeySerializer((KeyField("value", pa.int64()), KeyField("key_value", pa.int64())))
    job = job_of(tmp_path, VALUE, keys=keys)
    job.state((1, 2), "value").update(3)
    (row,) = read_state(job.save(), "value").read_all().to_pylist()
    assert row == {"key_key_value": 1, "key_value": 2, "value": 3}


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string()),
        *(pa.binary(), pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.decimal128(38, 18)),
    ],
    ids=str,
)
def test_every_type_of_key_is_known_from_its_name(kind: Any) -> None:
    keys = KeySerializer((KeyField("k", kind),))
    assert restored_keys(keys.snapshot()) == keys


def test_unknown_type_of_key_is_refused() -> None:
    snapshot = replace(restored_keys(KeySerializer((KeyField("k", pa.int64()),)).snapshot()).snapshot(), config={})
    with pytest.raises(CorruptStateError, match="columns of a key"):
        restored_keys(snapshot)
    with pytest.raises(UnsupportedStateError, match="'uuid'"):
        restored_keys(replace(snapshot, config={"fields": [{"name": "k", "type": "uuid"}]}))


def test_rows_of_namespaces_are_read_only_where_that_is_said(tmp_path: Path) -> None:
    for backend in BACKENDS:
        job = job_of(tmp_path / backend, VALUE, backend=backend)
        job.state("ann", "value").update(1)
        assert rows(job.save(), namespaces=True) == [("ann", "", 1)]
        job.state("ann", "value", "window-1").update(2)
        pointer = job.save()
        with pytest.raises(UnsupportedStateError, match="namespaces=True"):
            rows(pointer)
        assert rows(pointer, namespaces=True) == [("ann", "", 1), ("ann", "window-1", 2)]
        job.close()


def test_state_that_is_not_there_names_those_that_are(job: StatefulJob) -> None:
    pointer = job.save()
    with pytest.raises(UnknownStateError, match=f"'other'.*{FUNCTION}: value"):
        read_state(pointer, "other")
    with pytest.raises(UnknownStateError, match="'none'"):
        read_state(pointer, "value", uid="none")


def test_function_is_known_by_its_uid_with_and_without_the_stage(job: StatefulJob) -> None:
    job.state("ann", "value").update(1)
    pointer = job.save()
    assert rows(pointer, uid=FUNCTION) == rows(pointer, uid=f"{STAGE}/{FUNCTION}") == [("ann", 1)]


def test_pointer_to_nothing_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError):
        read_state(f"{tmp_path.as_uri()}/chk-1", "value")


def test_reading_is_lazy_and_a_deleted_file_is_named(job: StatefulJob, tmp_path: Path) -> None:
    job.state("ann", "value").update(1)
    pointer = job.save()
    for part in parts_of(tmp_path):
        if part.read_bytes().startswith(b"ARROW1") and b"statecheck-arrow-state" not in part.read_bytes():
            part.unlink()
    reader = read_state(pointer, "value")
    assert reader.schema.names == ["account", "value"]
    with pytest.raises(CheckpointNotFoundError, match="restore from another checkpoint"):
        reader.read_all()


def test_changed_bytes_are_told(job: StatefulJob, tmp_path: Path) -> None:
    job.state("ann", "value").update(1)
    pointer = job.save()
    for part in parts_of(tmp_path):
        data = bytearray(part.read_bytes())
        if b"statecheck-arrow-state" not in data:
            data[len(data) // 2] ^= 0xFF
            part.chmod(0o644)
            part.write_bytes(data)
    with pytest.raises(CorruptStateError):
        read_state(pointer, "value").read_all()


def test_time_by_which_state_expires_can_be_given(tmp_path: Path) -> None:
    job = job_of(tmp_path, ValueStateDescriptor("value", int, ttl=TTL))
    job.state("ann", "value").update(1)
    pointer = job.save()
    moment = datetime.fromtimestamp(job.now_ms / 1000, UTC)
    assert rows(pointer, now=moment + timedelta(milliseconds=99)) == [("ann", 1)]
    assert rows(pointer, now=moment + timedelta(milliseconds=100)) == []
    with pytest.raises(InvalidConfigurationError, match="zone"):
        read_state(pointer, "value", now=datetime(2026, 1, 1))  # noqa: DTZ001 - that is what is refused


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"now_ms": 5}, 5),
        ({"run": "2026-02-01T00:00:00+00:00"}, 1_769_904_000_000),
        ({"run": "manual__1"}, 1_767_225_600_000),
        ({"run": "2026-02-01"}, 1_769_904_000_000),
        ({}, 1_767_225_600_000),
    ],
)
def test_time_of_a_checkpoint_is_the_logical_date_or_when_it_was_made(
    tmp_path: Path, values: dict[str, Any], expected: int
) -> None:
    job = job_of(tmp_path, VALUE)
    states = CheckpointStates.load(job.publish(job.operator()))
    document = replace(states.document, state=InlineStateHandle(value={"stage": values}))
    assert CheckpointStates(states.storage, document).taken_at_ms == expected


@pytest.mark.parametrize("values", [[], {"now_ms": "5"}, {"run": 5}])
def test_values_of_a_stage_in_another_form_are_corrupt(tmp_path: Path, values: Any) -> None:
    job = job_of(tmp_path, VALUE)
    states = CheckpointStates.load(job.publish(job.operator()))
    document = replace(states.document, state=InlineStateHandle(value={"stage": values}))
    with pytest.raises(CorruptStateError, match="Expected the values of a stage"):
        _ = CheckpointStates(states.storage, document).taken_at_ms


def test_values_in_a_file_are_read_once_for_all_states(tmp_path: Path) -> None:
    job, file = job_of(tmp_path, VALUE, ListStateDescriptor("list", int)), tmp_path / "values"
    states = CheckpointStates.load(job.save())
    file.write_bytes(b'{"stage": {"now_ms": 7}}')
    handle = FileStateHandle(file.as_uri(), file.stat().st_size, hashlib.sha256(file.read_bytes()).hexdigest())
    states = CheckpointStates(states.storage.allowing(tmp_path.as_uri()), replace(states.document, state=handle))
    assert states.content("value").taken_at_ms == 7
    file.unlink()
    assert states.content("list").taken_at_ms == 7


def test_types_that_evolved_are_read_as_the_newest(tmp_path: Path) -> None:
    job = job_of(tmp_path, ValueStateDescriptor("value", pa.int32()))
    job.state("ann", "value").update(1)
    operator = job.operator()
    job.descriptors = [ValueStateDescriptor("value", pa.int64())]
    operator = replace(operator, coordinator_state=job.operator().coordinator_state)
    table = read_state(job.publish(operator), "value").read_all()
    assert table.schema.field("value").type == pa.int64()
    assert table.to_pylist() == [{"account": "ann", "value": 1}]


def test_state_of_other_types_cannot_be_compared(tmp_path: Path) -> None:
    first = job_of(tmp_path / "a", VALUE)
    second = job_of(tmp_path / "b", ValueStateDescriptor("value", str))
    third = job_of(tmp_path / "c", ListStateDescriptor("value", int))
    pointers = [each.save() for each in (first, second, third)]
    for other in pointers[1:]:
        with pytest.raises(IncompatibleCheckpointError, match="same types"):
            diff_states(pointers[0], other, "value")


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class WithGreen(Enum):
    GREEN = "green"
    RED = "red"
    BLUE = "blue"


class WithNavy(Enum):
    RED = "red"
    NAVY = "blue"
    BLUE = "blue"  # noqa: PIE796 - the former name


class WithWhite(Enum):
    RED = "red"
    WHITE = "blue"
    BLUE = "blue"  # noqa: PIE796 - the former name


@pytest.mark.parametrize(
    ("old", "new"),
    [(ONE, TWO), (list[ONE], list[TWO]), (Colour, WithNavy), (set[int], list[int])],  # type: ignore[valid-type]
    ids=["version", "nested version", "renamed member", "collection"],
)
def test_types_with_equal_columns_and_other_values_cannot_be_compared(tmp_path: Path, old: Any, new: Any) -> None:
    jobs = [job_of(tmp_path / f"{n}", ValueStateDescriptor("value", each)) for n, each in enumerate((old, new))]
    first, second = (each.save() for each in jobs)
    for pair in ((first, second), (second, first)):
        with pytest.raises(IncompatibleCheckpointError, match="same types"):
            diff_states(*pair, "value")


class TextOfAnyVersion:
    """Serializer that reads all of its versions."""

    class_id = "text"

    def __init__(self, version: int) -> None:
        self.version = version

    def serialize(self, value: str) -> bytes:
        return f"{self.version}{value}".encode()

    def deserialize(self, data: bytes) -> str:
        return data.decode()[1:]

    def resolve_compatibility(self, old: Any) -> Compatibility:
        return AS_IS


def with_late_text(job: StatefulJob, *requesting: int) -> str:
    """Return a checkpoint with a state of two versions, of which only some subtasks have requested the second one."""
    accounts = [f"account {number}" for number in range(20)]
    for version, subtasks in ((1, (0, 1)), (2, requesting)):
        job.open(2, job.operator() if job.taken else None)
        job.descriptors = [ValueStateDescriptor("text", TextOfAnyVersion(version))]
        for subtask in subtasks:
            job.states[subtask].get_partitioned_state(job.descriptors[0])
        owned = [job.states[subtask].key_group_range for subtask in subtasks]
        for account in accounts if version == 1 else accounts[:5]:
            if any(TEXT_KEY.key_group_of(account, GROUPS) in each for each in owned):
                job.state(account, "text").update(str(version))
        job.descriptors = []
        job.save()
    return job.publish(job.operator())


def test_rows_of_two_versions_of_a_serializer_are_refused(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    pointer = with_late_text(job, 1)
    job.close()
    with pytest.raises(UnsupportedStateError, match="'text' to be written with one version of its serializer"):
        rows(pointer, "text")


def test_rows_that_a_newer_serializer_reads_as_they_are_are_read(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    pointer = with_late_text(job, 0, 1)
    job.close()
    assert {value for _, value in rows(pointer, "text")} == {b"11", b"22"}


def test_user_keys_whose_new_names_have_another_order_are_not_read(tmp_path: Path) -> None:
    job = StatefulJob(
        CheckpointStorage.open(tmp_path.as_uri()),
        ArrowStateBackend(ArrowStateSettings(block_rows=1)),
        [MapStateDescriptor("map", Colour, int)],
    )
    job.open(1)
    for colour in Colour:
        job.state("ann", "map").put(colour, 1)
    operator = job.operator()
    job.descriptors = [MapStateDescriptor("map", WithWhite, int)]
    job.close()
    pointer = job.publish(replace(operator, coordinator_state=coordinator_state(encode_schemas(job.schemas()))))
    with pytest.raises(StateMigrationError, match="in their old order"):
        read_state(pointer, "map").read_all()


def test_an_enum_with_further_members_is_compared_by_names(tmp_path: Path) -> None:
    job = job_of(tmp_path, ValueStateDescriptor("value", Colour))
    job.state("ann", "value").update(Colour.RED)
    job.state("bob", "value").update(Colour.BLUE)
    operator = job.operator()
    first = job.publish(operator)
    job.descriptors = [ValueStateDescriptor("value", WithGreen)]
    job.open(2, operator)
    job.state("bob", "value").update(WithGreen.GREEN)
    second = job.save()
    changes = diff_states(first, second, "value").read_all().to_pylist()
    assert changes == [{"account": "bob", "change": "changed", "before": "BLUE", "after": "GREEN"}]
    assert diff_states(second, first, "value").read_all().num_rows == 1
    job.close()


def test_shared_files_that_nothing_touches_are_not_read(
    job: StatefulJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(400):
        job.state(f"key {number}", "value").update(number)
    first = job.save()
    shared = [part for part in parts_of(tmp_path) if b"statecheck-arrow-state" not in part.read_bytes()]
    job.state("key 7", "value").update(-7)
    second = job.save()
    read, original = list[int](), RunBytes.read

    def counted(self: RunBytes, handle: Any, pieces: Any) -> Any:
        read.append(sum(length for _, length in pieces))
        return original(self, handle, pieces)

    monkeypatch.setattr(RunBytes, "read", counted)
    expected = [{"account": "key 7", "change": "changed", "before": 7, "after": -7}]
    assert diff_states(first, second, "value").read_all().to_pylist() == expected
    assert sum(read) < sum(part.stat().st_size for part in shared) // 4


def test_entries_of_maps_are_compared_one_by_one(tmp_path: Path) -> None:
    job = job_of(tmp_path, MapStateDescriptor("map", str, list[float]))
    nan = float("nan")
    job.state("ann", "map").put_all({"same": [nan, 1.0], "other": [1.0], "gone": None})
    first = job.save()
    job.state("ann", "map").put_all({"same": [nan, 1.0], "other": [1.0, 2.0], "new": None})
    job.state("ann", "map").remove("gone")
    second = job.save()
    found = sorted(tuple(row.values()) for row in diff_states(first, second, "map").read_all().to_pylist())
    assert found == [
        ("ann", "gone", "removed", None, None),
        ("ann", "new", "added", None, None),
        ("ann", "other", "changed", [1.0], [1.0, 2.0]),
    ]
    job.close()


def test_subtask_is_believed_about_its_own_key_groups_only(tmp_path: Path) -> None:
    job = job_of(tmp_path, VALUE)
    job.open(1)
    for number in range(40):
        job.state(f"key {number}", "value").update(number)
    old = job.operator()
    job.open(2, old)
    for number in range(40):
        job.state(f"key {number}", "value").update(-number)
    new = job.operator()
    # The second subtask still goes by a file that was written for all key groups.
    states = {0: new.subtask_states[0], 1: old.subtask_states[0]}
    found = rows(job.publish(replace(new, subtask_states=states)))
    assert len(found) == 40
    for key, value in found:
        number, is_first = int(key.split()[1]), job.keys.key_group_of(key, 16) < 8
        assert value == (-number if is_first else number)


def test_large_state_is_compared_some_key_groups_at_a_time(tmp_path: Path) -> None:
    for backend in BACKENDS:
        job = job_of(tmp_path / backend, VALUE, backend=backend)
        for number in range(40):
            job.state(f"key {number}", "value").update(number)
        states = [CheckpointStates.load(job.save())]
        for number in range(30, 50):
            job.state(f"key {number}", "value").update(-number)
        states.append(CheckpointStates.load(job.save()))
        content = states[0].content("value")
        assert len(list(content.windows(1))) == 16
        before, after = (StateReader(each.storage, each.content("value")) for each in states)
        assert sum(table.num_rows for table in before.tables()) == 40
        batches = StateDiff(before, after, bytes_at_once=1).batches()
        found = [row["change"] for batch in batches for row in batch.to_pylist()]
        assert sorted(found) == ["added"] * 10 + ["changed"] * 10
        job.close()
