"""
The contract of queryable state, as a suite that every form of it passes: in process, over HTTP, and stand-alone.

Subclass :class:`QueryableStateContract` and give the fixture ``reader``, which reads the rows of the fixture ``engine``
and the files below the fixture ``storage``. Writers are stages whose checkpoints the real coordinator completes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any, Protocol

import pyarrow as pa
import pytest
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of, new_key
from airflow_provider_statecheck.checkpoint.messages import FinishAttempt
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, OnClear
from airflow_provider_statecheck.checkpoint.store import JobStore
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CorruptStateError,
    InvalidConfigurationError,
    UnknownKvStateIdError,
    UnknownKvStateLocationError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.gateway.time_travel import LATEST, AsOf
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.queryable.json_values import json_of
from airflow_provider_statecheck.queryable.queries import (
    ABSENT,
    JsonUserKey,
    PythonKeys,
    QueryableName,
    StateQuery,
    StateReply,
)
from airflow_provider_statecheck.state.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateKind,
    StateTtlConfig,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.contracts.queried_stage import QueriedStage
from tests.messages import ManualClock, make_owner
from tests.written_state import BACKENDS, StatefulJob

TTL = StateTtlConfig(timedelta(milliseconds=100))
COMPOSITE = KeySerializer((KeyField("shop", pa.string()), KeyField("day", pa.date32()), KeyField("till", pa.int64())))
MakeStage = Callable[..., QueriedStage]


@dataclass
class Owner:
    name: str
    shares: float


class Mean:
    """Keeps a sum and a count; what is stored is both, and only the stage computes the mean."""

    def create_accumulator(self) -> list[int]:
        return [0, 0]

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        return [accumulator[0] + value, accumulator[1] + 1]

    def get_result(self, accumulator: list[int]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, a: list[int], b: list[int]) -> list[int]:
        return [a[0] + b[0], a[1] + b[1]]


def descriptors() -> list[Any]:
    """Return one state of each kind, those that expire, and one that is not to be served."""
    return [
        ValueStateDescriptor("balance", int, 100, queryable_name="balances"),
        ValueStateDescriptor("owner", Owner, queryable_name="owners"),
        ListStateDescriptor("purchases", str, queryable_name="purchases"),
        MapStateDescriptor("prices", str, int, queryable_name="prices"),
        ReducingStateDescriptor("largest", max, int, queryable_name="largest"),
        AggregatingStateDescriptor("mean", Mean(), list[int], queryable_name="means"),
        FoldingStateDescriptor("text", "", lambda text, number: f"{text}{number}", str, queryable_name="texts"),
        ValueStateDescriptor("last", int, ttl=TTL, queryable_name="last"),
        ListStateDescriptor("recent", int, ttl=TTL, queryable_name="recent"),
        MapStateDescriptor("visits", str, int, ttl=TTL, queryable_name="visits"),
        ValueStateDescriptor("internal", int),
    ]


def of_name(name: str) -> list[Any]:
    """Return the descriptors of a function with a single state."""
    return [ValueStateDescriptor("balance", int, queryable_name=name)]


class Reader(Protocol):
    """What a user reads with."""

    def get(self, query: StateQuery) -> StateReply: ...

    def names(self, job_id: JobId, as_of: AsOf = LATEST) -> Sequence[QueryableName]: ...


class QueriedJob:
    """A job of stages whose state is queried."""

    @pytest.fixture(autouse=True)
    def _job_of_the_test(self) -> None:
        # A server that outlives a test must not take the job of the next one for the same.
        self.job_name = f"sales {new_key()}"
        self.job_id = job_id_of(self.job_name)

    @pytest.fixture
    def storage(self, tmp_path: Path) -> CheckpointStorage:
        return CheckpointStorage.open((tmp_path / "checkpoints").as_uri())

    @pytest.fixture
    def store(self, engine: Engine, clock: ManualClock) -> JobStore:
        """Return the rows, which the coordinator of the stages writes in this process."""
        return SqlJobStore(engine, clock)

    @pytest.fixture
    def backend(self) -> str:
        """Return the backend of the stages whose backend matters; a form may override it with all of them."""
        return "arrow"

    @pytest.fixture
    def make_stage(self, store: JobStore, storage: CheckpointStorage) -> Iterator[MakeStage]:
        """Return a factory of stages, which have begun."""
        stages: list[QueriedStage] = []

        def make(
            *functions: StatefulJob, backend: str = "arrow", parallelism: int = 2, num_retained: int = 1, **values: Any
        ) -> QueriedStage:
            given = {"job_name": self.job_name, "descriptors": descriptors()} | values
            written = functions or (StatefulJob(storage, BACKENDS[backend](), **given),)
            stages.append(QueriedStage(store, tuple(written), num_retained))
            stages[-1].begin(parallelism)
            return stages[-1]

        yield make
        for each in stages:
            each.close()

    @pytest.fixture
    def stage(self, make_stage: MakeStage) -> QueriedStage:
        """Return a stage that has begun and has no checkpoint."""
        return make_stage()

    def query(self, name: str, *keys: Any, job_id: JobId | None = None, **changes: Any) -> StateQuery:
        return StateQuery(job_id=job_id or self.job_id, name=name, keys=PythonKeys(keys), **changes)

    def read(self, reader: Reader, name: str, key: Any, **changes: Any) -> Any:
        (value,) = reader.get(self.query(name, key, **changes)).values
        return value


class QueryableStateContract(QueriedJob):
    """What a user may rely on, whichever form answers."""

    # From a name and a key to a value

    def test_value_of_a_key_is_that_of_the_latest_completed_checkpoint(
        self, make_stage: MakeStage, reader: Reader, backend: str
    ) -> None:
        stage = make_stage(backend=backend)
        checkpoint_id = stage.checkpoint(balance={f"account {n}": n for n in range(40)})
        reply = reader.get(self.query("balances", "account 7"))
        assert reply.values == (7,)
        assert reply.keys == ("account 7",)
        assert (reply.job_id, reply.name, reply.uid) == (self.job_id, "balances", "stage/balance")
        assert (reply.checkpoint_id, reply.pointer) == (checkpoint_id, stage.pointer(checkpoint_id))

    def test_every_key_of_every_subtask_is_found(self, make_stage: MakeStage, reader: Reader) -> None:
        stage = make_stage(parallelism=5)
        values = {f"account {n}": n for n in range(100)}
        stage.checkpoint(balance=values)
        assert reader.get(self.query("balances", *values)).values == tuple(values.values())

    def test_reply_says_when_its_checkpoint_was_completed(
        self, stage: QueriedStage, reader: Reader, clock: ManualClock
    ) -> None:
        stage.put("balance", {"ann": 1})
        clock.advance(60)
        stage.checkpoint()
        assert reader.get(self.query("balances", "ann")).completed_at == clock.now()

    def test_live_state_of_a_running_stage_is_not_served(self, stage: QueriedStage, reader: Reader) -> None:
        stage.checkpoint(balance={"ann": 1})
        stage.put("balance", {"ann": 2, "bob": 3})
        assert reader.get(self.query("balances", "ann", "bob")).values == (1, ABSENT)

    def test_completed_checkpoint_is_served_at_once(self, stage: QueriedStage, reader: Reader) -> None:
        for number in range(1, 6):
            checkpoint_id = stage.checkpoint(balance={"ann": number})
            reply = reader.get(self.query("balances", "ann"))
            assert (reply.checkpoint_id, reply.values) == (checkpoint_id, (number,))

    def test_checkpoint_that_is_not_complete_is_not_served(self, stage: QueriedStage, reader: Reader) -> None:
        complete = stage.checkpoint(balance={"ann": 1})
        stage.put("balance", {"ann": 2})
        stage.write()
        assert reader.get(self.query("balances", "ann")).checkpoint_id == complete

    def test_same_answer_comes_after_the_end_of_the_stage(
        self, stage: QueriedStage, reader: Reader, store: JobStore
    ) -> None:
        stage.checkpoint(balance={"ann": 1})
        AttemptCoordinator(store).finish(FinishAttempt(attempt=stage.attempt, status=AttemptStatus.FINISHED))
        assert self.read(reader, "balances", "ann") == 1

    # Kinds of state, keys and namespaces

    @pytest.mark.parametrize(
        ("name", "kind", "expected"),
        [
            ("balances", StateKind.VALUE, 5),
            ("purchases", StateKind.LIST, ["tea", "salt"]),
            ("prices", StateKind.MAP, {"tea": 3, "salt": None}),
            ("largest", StateKind.REDUCING, 9),
            ("means", StateKind.AGGREGATING, [12, 2]),
            ("texts", StateKind.FOLDING, "39"),
        ],
    )
    def test_each_kind_of_state_is_read(
        self, make_stage: MakeStage, reader: Reader, backend: str, name: str, kind: StateKind, expected: Any
    ) -> None:
        stage = make_stage(backend=backend)
        stage.state("ann", "balance").update(5)
        stage.state("ann", "purchases").update(["tea", "salt"])
        stage.state("ann", "prices").put_all({"tea": 3, "salt": None})
        for each in ("largest", "mean", "text"):
            for number in (3, 9):
                stage.state("ann", each).add(number)
        stage.checkpoint()
        reply = reader.get(self.query(name, "ann"))
        assert reply.schema.kind is kind
        assert list(map(plain, reply.values)) == [expected]

    def test_record_is_read_with_the_names_of_its_fields_and_without_its_class(
        self, stage: QueriedStage, reader: Reader
    ) -> None:
        stage.state("ann", "owner").update(Owner("Ann", 0.5))
        stage.checkpoint()
        assert plain(self.read(reader, "owners", "ann")) == {"name": "Ann", "shares": 0.5}

    @pytest.mark.parametrize(("user_key", "expected"), [("tea", 3), ("salt", None), ("pepper", ABSENT)])
    def test_one_entry_of_a_map_is_read_by_its_key(
        self, stage: QueriedStage, reader: Reader, user_key: str, expected: Any
    ) -> None:
        stage.state("ann", "prices").put_all({"tea": 3, "salt": None})
        stage.checkpoint()
        assert self.read(reader, "prices", "ann", user_key=JsonUserKey(json_of(user_key))) == expected

    def test_key_of_an_entry_is_refused_for_state_that_is_not_a_map(self, stage: QueriedStage, reader: Reader) -> None:
        stage.checkpoint(balance={"ann": 1})
        with pytest.raises(InvalidConfigurationError, match="map"):
            self.read(reader, "balances", "ann", user_key=JsonUserKey("tea"))

    def test_key_of_several_columns_is_read(self, make_stage: MakeStage, reader: Reader) -> None:
        stage = make_stage(keys=COMPOSITE)
        keys = [("oslo", date(2026, 1, day), till) for day in (1, 2) for till in (1, 2)]
        stage.checkpoint(balance={key: number for number, key in enumerate(keys)})
        reply = reader.get(self.query("balances", *keys, ("rome", date(2026, 1, 1), 1)))
        assert reply.values == (0, 1, 2, 3, ABSENT)
        assert reply.keys[0] == keys[0]

    def test_key_with_too_few_columns_is_refused(self, make_stage: MakeStage, reader: Reader) -> None:
        stage = make_stage(keys=COMPOSITE)
        stage.checkpoint(balance={("oslo", date(2026, 1, 1), 1): 1})
        with pytest.raises((InvalidConfigurationError, UnsupportedStateError)):
            reader.get(self.query("balances", ("oslo", date(2026, 1, 1))))

    def test_state_of_one_namespace_is_read(self, stage: QueriedStage, reader: Reader) -> None:
        for namespace, value in (("day", 1), ("week", 7)):
            stage.state("ann", "balance", namespace).update(value)
        stage.checkpoint()
        assert [self.read(reader, "balances", "ann", namespace=each) for each in ("day", "week")] == [1, 7]

    # What is absent

    def test_absent_key_is_absent_although_the_descriptor_has_a_default(
        self, stage: QueriedStage, reader: Reader
    ) -> None:
        stage.checkpoint(balance={"ann": 1})
        assert self.read(reader, "balances", "zoe") is ABSENT

    def test_key_of_a_subtask_without_any_state_is_absent(
        self, make_stage: MakeStage, reader: Reader, backend: str
    ) -> None:
        stage = make_stage(backend=backend, parallelism=8)
        stage.checkpoint(balance={"ann": 1})
        others = [f"account {n}" for n in range(40)]
        assert set(reader.get(self.query("balances", *others)).values) == {ABSENT}

    def test_state_that_was_removed_is_absent(self, make_stage: MakeStage, reader: Reader, backend: str) -> None:
        stage = make_stage(backend=backend)
        stage.put("balance", {"ann": 1, "bob": 2})
        stage.state("ann", "prices").put_all({"tea": 1, "salt": 2})
        stage.checkpoint()
        stage.state("ann", "balance").clear()
        stage.state("ann", "prices").remove("tea")
        stage.checkpoint()
        assert reader.get(self.query("balances", "ann", "bob")).values == (ABSENT, 2)
        assert plain(self.read(reader, "prices", "ann")) == {"salt": 2}

    def test_namespace_without_state_is_absent(self, stage: QueriedStage, reader: Reader) -> None:
        stage.state("ann", "balance", "day").update(1)
        stage.checkpoint()
        assert self.read(reader, "balances", "ann", namespace="month") is ABSENT
        assert self.read(reader, "balances", "ann") is ABSENT

    def test_what_had_expired_at_the_checkpoint_is_absent(
        self, make_stage: MakeStage, reader: Reader, backend: str
    ) -> None:
        stage = make_stage(backend=backend)
        (written,) = stage.written
        self._write_expiring(stage, "old")
        written.now_ms += 60
        self._write_expiring(stage, "new")
        stage.state("old", "recent").add(2)
        written.now_ms += 60
        stage.checkpoint()
        assert reader.get(self.query("last", "old", "new")).values == (ABSENT, 1)
        assert list(map(plain, reader.get(self.query("recent", "old", "new")).values)) == [[2], [1]]
        values = reader.get(self.query("visits", "old", "new")).values
        assert (values[0], plain(values[1])) == (ABSENT, {"x": 1})

    @staticmethod
    def _write_expiring(stage: QueriedStage, key: str) -> None:
        stage.state(key, "last").update(1)
        stage.state(key, "recent").add(1)
        stage.state(key, "visits").put("x", 1)

    # What is not found

    def test_unknown_job_is_not_found(self, stage: QueriedStage, reader: Reader) -> None:
        stage.checkpoint()
        with pytest.raises(CheckpointNotFoundError):
            self.read(reader, "balances", "ann", job_id=job_id_of("another"))

    def test_unknown_name_is_an_error_that_lists_the_names(self, stage: QueriedStage, reader: Reader) -> None:
        stage.checkpoint()
        with pytest.raises(UnknownKvStateLocationError, match=r"balances.*prices"):
            self.read(reader, "balance sheets", "ann")

    def test_name_of_a_job_without_a_checkpoint_is_unknown(self, stage: QueriedStage, reader: Reader) -> None:
        with pytest.raises(UnknownKvStateLocationError):
            self.read(reader, "balances", "ann")

    @pytest.mark.parametrize("name", ["internal", "balance"])
    def test_state_is_served_by_its_queryable_name_only(self, stage: QueriedStage, reader: Reader, name: str) -> None:
        stage.checkpoint(internal={"ann": 1})
        with pytest.raises(UnknownKvStateLocationError):
            self.read(reader, name, "ann")

    def test_key_of_another_type_is_refused(self, stage: QueriedStage, reader: Reader) -> None:
        stage.checkpoint(balance={"ann": 1})
        with pytest.raises((InvalidConfigurationError, UnsupportedStateError)):
            self.read(reader, "balances", 7.5)

    def test_files_that_are_lost_are_an_error_after_a_bounded_number_of_retries(
        self, stage: QueriedStage, reader: Reader, storage: CheckpointStorage
    ) -> None:
        stage.checkpoint(balance={"ann": 1})
        assert [each.name for each in reader.names(self.job_id)]
        for name in storage.list_files(f"{storage.base_uri}/{self.job_id}/shared"):
            storage.delete_file(f"{storage.base_uri}/{self.job_id}/shared/{name}")
        with pytest.raises(UnknownKvStateIdError):
            self.read(reader, "balances", "ann")

    def test_damaged_metadata_is_an_error_until_it_is_repaired(
        self, stage: QueriedStage, reader: Reader, storage: CheckpointStorage
    ) -> None:
        metadata = f"{stage.pointer(stage.checkpoint(balance={'ann': 1}))}/_metadata"
        intact = storage.read_bytes(metadata)
        storage.write_bytes(metadata, intact[:-1] + b"?", overwrite=True)
        with pytest.raises(CorruptStateError):
            self.read(reader, "balances", "ann")
        storage.write_bytes(metadata, intact, overwrite=True)
        assert self.read(reader, "balances", "ann") == 1

    # Failed look-ups are not kept

    def test_job_that_was_unknown_is_found_once_it_has_a_checkpoint(
        self, make_stage: MakeStage, reader: Reader
    ) -> None:
        with pytest.raises(CheckpointNotFoundError):
            self.read(reader, "balances", "ann")
        stage = make_stage()
        with pytest.raises(UnknownKvStateLocationError):
            self.read(reader, "balances", "ann")
        stage.checkpoint(balance={"ann": 1})
        assert self.read(reader, "balances", "ann") == 1

    def test_key_that_was_absent_is_found_once_it_has_state(self, stage: QueriedStage, reader: Reader) -> None:
        stage.checkpoint()
        assert self.read(reader, "balances", "ann") is ABSENT
        stage.checkpoint(balance={"ann": 1})
        assert self.read(reader, "balances", "ann") == 1

    # Replaced checkpoints, other parallelisms, and fresh starts

    def test_value_of_the_newer_checkpoint_is_read_although_the_files_of_the_older_one_are_gone(
        self, make_stage: MakeStage, reader: Reader, storage: CheckpointStorage, backend: str
    ) -> None:
        stage = make_stage(backend=backend)
        for number in range(1, 8):
            newest = stage.checkpoint(balance={f"account {n}": number for n in range(20)})
            directories = storage.list_directories(f"{storage.base_uri}/{self.job_id}")
            assert [each for each in directories if each.startswith("chk-")] == [f"chk-{newest}"]
            assert reader.get(self.query("balances", "account 0", "account 1")).values == (number, number)

    def test_every_key_is_found_after_a_rescale(self, make_stage: MakeStage, reader: Reader, backend: str) -> None:
        stage = make_stage(backend=backend)
        values = {f"account {n}": n for n in range(30)}
        stage.checkpoint(balance=values)
        for parallelism in (3, 1, 7):
            stage.begin(parallelism)
            stage.put("balance", {"account 3": parallelism})
            values["account 3"] = parallelism
            stage.checkpoint()
            assert reader.get(self.query("balances", *values)).values == tuple(values.values())

    def test_fresh_start_serves_nothing_until_its_first_checkpoint_and_then_only_its_own_state(
        self, stage: QueriedStage, reader: Reader
    ) -> None:
        stage.checkpoint(balance={"ann": 1, "bob": 2})
        assert self.read(reader, "balances", "bob") == 2
        stage.begin(owner=make_owner(clear_marker="9/9"), on_clear=OnClear.RESTART)
        with pytest.raises(UnknownKvStateLocationError):
            self.read(reader, "balances", "ann")
        stage.checkpoint(balance={"ann": 5})
        assert reader.get(self.query("balances", "ann", "bob")).values == (5, ABSENT)

    def test_restart_from_a_savepoint_serves_the_latest_checkpoint_until_the_savepoint_is_restored(
        self, stage: QueriedStage, reader: Reader
    ) -> None:
        stage.checkpoint(balance={"ann": 1})
        savepoint = stage.source(stage.savepoint())
        stage.checkpoint(balance={"ann": 2})
        restart = stage.register(owner=make_owner(clear_marker="9/9"), on_clear=OnClear.RESTART, restore_from=savepoint)
        assert self.read(reader, "balances", "ann") == 2
        stage.confirm_restore(restart)
        assert self.read(reader, "balances", "ann") == 1

    def test_retry_serves_the_checkpoint_that_it_restores(self, stage: QueriedStage, reader: Reader) -> None:
        stage.checkpoint(balance={"ann": 1})
        stage.begin()
        assert self.read(reader, "balances", "ann") == 1

    # Batches

    def test_batch_comes_from_one_checkpoint_and_lists_absent_keys(self, stage: QueriedStage, reader: Reader) -> None:
        checkpoint_id = stage.checkpoint(balance={"ann": 1, "bob": 2})
        reply = reader.get(self.query("balances", "ann", "zoe", "bob", "ann"))
        assert reply.values == (1, ABSENT, 2, 1)
        assert reply.checkpoint_id == checkpoint_id

    def test_answers_during_checkpoints_and_a_rescale_are_never_older_than_the_latest_checkpoint_at_the_request(
        self, stage: QueriedStage, reader: Reader
    ) -> None:
        keys = [f"account {n}" for n in range(16)]
        hammer = Hammer(reader, self.query("balances", *keys))
        stage.checkpoint(balance=dict.fromkeys(keys, 0))
        with hammer.running(threads=3):
            for number in range(1, 51):
                if number == 25:
                    stage.begin(5)
                stage.checkpoint(balance=dict.fromkeys(keys, number))
                hammer.completed = number
        assert len(hammer.answers) > 50
        for completed, values in hammer.answers:
            assert len(set(values)) == 1
            assert completed <= values[0] <= 50

    # Names

    def test_names_are_listed_with_their_types(self, stage: QueriedStage, reader: Reader) -> None:
        checkpoint_id = stage.checkpoint()
        names = {each.name: each for each in reader.names(self.job_id)}
        assert sorted(names) == sorted(each.queryable_name for each in descriptors() if each.is_queryable)
        balances, visits = names["balances"], names["visits"]
        assert (balances.uid, balances.kind, balances.key_columns) == (
            "stage/balance",
            StateKind.VALUE,
            (("account", "string"),),
        )
        assert (balances.checkpoint_id, balances.pointer) == (checkpoint_id, stage.pointer(checkpoint_id))
        assert (balances.expires, balances.refused) == (False, "")
        assert (visits.kind, visits.expires) == (StateKind.MAP, True)

    def test_names_of_an_unknown_job_are_not_found(self, reader: Reader) -> None:
        with pytest.raises(CheckpointNotFoundError):
            reader.names(self.job_id)

    def test_instance_of_a_mapped_task_is_served_under_its_own_name(
        self, make_stage: MakeStage, reader: Reader
    ) -> None:
        for shop, value in (("oslo", 1), ("rome", 2)):
            stage = make_stage(stage=f"tills[{shop}]", descriptors=of_name("balances"))
            stage.checkpoint(balance={"ann": value})
        assert [each.name for each in reader.names(self.job_id)] == ["balances[oslo]", "balances[rome]"]
        assert [self.read(reader, f"balances[{shop}]", "ann") for shop in ("oslo", "rome")] == [1, 2]
        with pytest.raises(UnknownKvStateLocationError, match=r"balances\[oslo\]"):
            self.read(reader, "balances", "ann")

    def test_operators_of_a_job_are_read_from_their_own_checkpoints(
        self, make_stage: MakeStage, reader: Reader
    ) -> None:
        orders = make_stage(stage="orders", descriptors=of_name("orders"))
        payments = make_stage(stage="payments", descriptors=of_name("payments"))
        for each in (orders, payments, orders):
            each.checkpoint(balance={"ann": each.attempt.epoch})
        assert [reader.get(self.query(each, "ann")).checkpoint_id for each in ("orders", "payments")] == [3, 2]

    def test_second_operator_with_a_name_is_refused_and_listed_and_the_job_goes_on(
        self, make_stage: MakeStage, reader: Reader
    ) -> None:
        first = make_stage(stage="first", descriptors=of_name("balances"))
        second = make_stage(stage="second", descriptors=of_name("balances"))
        first.put("balance", {"ann": 1})
        second.put("balance", {"ann": 2})
        first.checkpoint()
        second.checkpoint()
        second.checkpoint()
        assert self.read(reader, "balances", "ann") == 1
        served, refused = reader.names(self.job_id)
        assert (served.uid, served.refused) == ("first/balance", "")
        assert refused.uid == "second/balance"
        assert "first/balance" in refused.refused

    def test_second_function_of_a_stage_with_a_name_is_refused(
        self, make_stage: MakeStage, reader: Reader, storage: CheckpointStorage
    ) -> None:
        functions = [
            StatefulJob(storage, BACKENDS["arrow"](), of_name("balances"), job_name=self.job_name, function=function)
            for function in ("first", "second")
        ]
        stage = make_stage(*functions)
        functions[0].state("ann", "balance").update(1)
        functions[1].state("ann", "balance").update(2)
        stage.checkpoint()
        assert self.read(reader, "balances", "ann") == 1
        assert [bool(each.refused) for each in reader.names(self.job_id)] == [False, True]

    # As of an earlier checkpoint

    @pytest.fixture
    def history(self, make_stage: MakeStage, clock: ManualClock) -> tuple[QueriedStage, list[tuple[int, datetime]]]:
        """Return a stage, and the ids and times of four checkpoints. The last three are retained."""
        stage, taken = make_stage(num_retained=3), []
        for number in range(1, 5):
            stage.put("balance", {"ann": number})
            clock.advance(60)
            taken.append((stage.checkpoint(), clock.now()))
        return stage, taken

    def test_retained_checkpoint_is_read_by_its_id(self, history: Any, reader: Reader) -> None:
        _, taken = history
        read = [reader.get(self.query("balances", "ann", as_of=AsOf(checkpoint_id=each))) for each, _ in taken[1:]]
        assert [each.values for each in read] == [(2,), (3,), (4,)]
        assert [each.checkpoint_id for each in read] == [each for each, _ in taken[1:]]

    def test_checkpoint_that_is_not_retained_is_not_found(self, history: Any, reader: Reader) -> None:
        _, taken = history
        for gone in (taken[0][0], 99):
            with pytest.raises(CheckpointNotFoundError):
                self.read(reader, "balances", "ann", as_of=AsOf(checkpoint_id=gone))

    def test_retained_checkpoint_is_read_by_its_pointer(self, history: Any, reader: Reader) -> None:
        stage, taken = history
        pointer = stage.pointer(taken[2][0])
        assert self.read(reader, "balances", "ann", as_of=AsOf(pointer=pointer)) == 3

    def test_savepoint_of_the_job_is_read_by_its_pointer(self, stage: QueriedStage, reader: Reader) -> None:
        stage.checkpoint(balance={"ann": 1})
        pointer = stage.savepoint()
        stage.checkpoint(balance={"ann": 2})
        assert self.read(reader, "balances", "ann") == 2
        assert self.read(reader, "balances", "ann", as_of=AsOf(pointer=pointer)) == 1

    def test_pointer_of_another_job_is_refused(
        self, make_stage: MakeStage, stage: QueriedStage, reader: Reader
    ) -> None:
        stage.checkpoint()
        other = make_stage(job_name="another")
        pointer = other.pointer(other.checkpoint(balance={"ann": 9}))
        with pytest.raises(CheckpointNotFoundError):
            self.read(reader, "balances", "ann", as_of=AsOf(pointer=pointer))

    @pytest.mark.parametrize("pointer", ["file:///etc", "http://169.254.169.254/latest"])
    def test_pointer_that_no_row_names_is_refused(self, stage: QueriedStage, reader: Reader, pointer: str) -> None:
        stage.checkpoint()
        with pytest.raises(CheckpointNotFoundError):
            self.read(reader, "balances", "ann", as_of=AsOf(pointer=pointer))

    def test_checkpoint_is_read_that_was_the_latest_at_a_time(self, history: Any, reader: Reader) -> None:
        _, taken = history
        at = [taken[1][1], taken[2][1] + timedelta(seconds=59), taken[3][1] + timedelta(days=1)]
        assert [self.read(reader, "balances", "ann", as_of=AsOf(at=each)) for each in at] == [2, 3, 4]

    def test_time_before_every_retained_checkpoint_has_no_state(self, history: Any, reader: Reader) -> None:
        _, taken = history
        with pytest.raises((CheckpointNotFoundError, UnknownKvStateLocationError)):
            self.read(reader, "balances", "ann", as_of=AsOf(at=taken[0][1] - timedelta(seconds=1)))

    def test_names_of_an_earlier_checkpoint_are_listed(self, history: Any, reader: Reader) -> None:
        _, taken = history
        listed = reader.names(self.job_id, AsOf(checkpoint_id=taken[1][0]))
        assert {each.checkpoint_id for each in listed} == {taken[1][0]}
        assert "balances" in {each.name for each in listed}


class Hammer:
    """Reads the same keys from several threads for as long as a test writes."""

    def __init__(self, reader: Reader, query: StateQuery) -> None:
        self.completed = 0
        """The number that the latest completed checkpoint holds under every key."""
        self.answers: list[tuple[int, tuple[Any, ...]]] = []
        """What was completed before each request, and its answer."""
        self._reader = reader
        self._query = query
        self._ended = Event()

    @contextmanager
    def running(self, threads: int) -> Iterator[None]:
        """Read in the background; an error of a reader is raised at the end."""
        with ThreadPoolExecutor(threads) as pool:
            readers = [pool.submit(self._read) for _ in range(threads)]
            try:
                yield
            finally:
                self._ended.set()
            for each in readers:
                each.result()

    def _read(self) -> None:
        while not self._ended.is_set():
            completed = self.completed
            self.answers.append((completed, self._reader.get(self._query).values))


def plain(value: Any) -> Any:
    """Return frozen collections as those that a test writes."""
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return {key: plain(each) for key, each in value.items()} if hasattr(value, "items") else value
