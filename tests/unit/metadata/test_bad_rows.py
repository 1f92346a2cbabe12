from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Float, Integer, create_engine, delete, insert, text
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.checkpoint.codec import encode
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of, new_key
from airflow_provider_statecheck.checkpoint.job_list import JobOverview, JobSort, JobsPage, ListedStatus
from airflow_provider_statecheck.checkpoint.messages import AttemptRef, FinishAttempt, TriggerCheckpoint
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, ClaimRecord
from airflow_provider_statecheck.checkpoint.records import (
    AcknowledgementRecord,
    ActionRecord,
    AttemptOwner,
    AttemptStatus,
    CheckpointRequest,
    JobAction,
    RowsVersion,
    StatisticsRecord,
    Transport,
)
from airflow_provider_statecheck.checkpoint.store import CheckpointPage
from airflow_provider_statecheck.exceptions import CorruptRowError, StateCheckError
from airflow_provider_statecheck.gateway.verbs import decode_error, encode_error
from airflow_provider_statecheck.maintenance.gc import CollectedJob
from airflow_provider_statecheck.maintenance.job_maintenance import (
    JobMaintenance,
    RetireJob,
    UnknownRuns,
    each_job,
)
from airflow_provider_statecheck.metadata.record_rows import (
    EnumText,
    Flag,
    JsonOf,
    RecordTable,
    UtcDateTime,
    json_reader,
)
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.metadata.tables import (
    ACKNOWLEDGEMENTS,
    ACTIONS,
    METADATA,
    REQUESTS,
    STATISTICS,
    TOKENS,
    Caller,
    TokenRecord,
)
from airflow_provider_statecheck.metadata.token_store import SqlTokenStore
from tests.bad_rows import COLUMNS, NO_TEXT, corrupt
from tests.conformance.databases import own_schema
from tests.messages import ManualClock, complete_checkpoint, make_owner, make_registration
from tests.soak import every_nth
from tests.sqlite_rows import engine_on, new_engine

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BAD, GOOD = job_id_of("sales"), job_id_of("orders")
AIRFLOW = (("dag_id", "d"), ("run_id", "r"), ("task_id", "t"), ("map_index", "-1"))
KEYS = {key: f"{place:032x}" for place, key in enumerate(("request", "action", "token"), start=1)}
POINTER = "memory://savepoint"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A database with two jobs; the one to be damaged has rows in all tables."""
    path = tmp_path_factory.mktemp("rows") / "rows.db"
    engine = new_engine(path)
    store = SqlJobStore(engine, ManualClock(NOW))
    _add_jobs(engine, store)
    engine.dispose()
    return path.read_bytes()


@pytest.fixture
def engine(rows: bytes, tmp_path: Path) -> Iterator[Engine]:
    path = tmp_path / "rows.db"
    path.write_bytes(rows)
    engine = engine_on(path)
    yield engine
    engine.dispose()


@pytest.fixture
def store(engine: Engine) -> SqlJobStore:
    return SqlJobStore(engine, ManualClock(NOW))


def _add_jobs(engine: Engine, store: SqlJobStore) -> None:
    coordinator = AttemptCoordinator(store)
    for name in ("orders", "sales"):
        _run(coordinator, name)
    _add_other_rows(engine, store)


def _run(coordinator: AttemptCoordinator, name: str) -> None:
    owner = make_owner(airflow=AIRFLOW)
    attempt = coordinator.register(make_registration(job_name=name, owner=owner)).attempt
    complete_checkpoint(coordinator, attempt)
    coordinator.finish(FinishAttempt(attempt=attempt, status=AttemptStatus.FAILED, message="no memory"))
    again = coordinator.register(make_registration(job_name=name, owner=owner)).attempt
    complete_checkpoint(coordinator, again)
    coordinator.trigger(TriggerCheckpoint(attempt=again, request_key=new_key()))


def _add_other_rows(engine: Engine, store: SqlJobStore) -> None:
    (operator,) = store.describe(BAD).operators
    of_job: dict[str, Any] = {"job_id": BAD, "operator_id": operator.operator_id}
    caller = Caller(dag_id="d", run_id="r", task_id="t")
    rows: list[tuple[RecordTable[Any], Any]] = [
        (ACKNOWLEDGEMENTS, AcknowledgementRecord(**of_job, checkpoint_id=3, attempt_id="a")),
        (STATISTICS, StatisticsRecord(**of_job)),
        (
            REQUESTS,
            CheckpointRequest(
                **of_job, request_key=KEYS["request"], properties=CheckpointProperties(), requested_at=NOW
            ),
        ),
        (
            ACTIONS,
            ActionRecord(
                **of_job,
                request_key=KEYS["action"],
                action=JobAction.RESTORE,
                checkpoint_id=1,
                requested_by="ada",
                requested_at=NOW,
            ),
        ),
        (
            TOKENS,
            TokenRecord(
                **of_job,
                epoch=2,
                token_hash=KEYS["token"],
                caller=caller,
                created_at=NOW,
                expires_at=NOW + timedelta(days=1),
            ),
        ),
    ]
    with engine.begin() as connection:
        connection.execute(delete(STATISTICS.table).where(STATISTICS.c.job_id == BAD))
        for table, record in rows:
            connection.execute(insert(table.table), table.values_of(record))
    with store.transaction(BAD) as tx:
        tx.save_claim(ClaimRecord(pointer=POINTER, job_id=BAD, operator_id=operator.operator_id, claimed_at=NOW))


def _bad_values(column: Column[Any]) -> Iterator[object]:
    """Yield values that SQLite stores in a column, and that are none of its type."""
    yield NO_TEXT
    kind = column.type
    if isinstance(kind, EnumText):
        yield from ("unknown", "", 7)
    elif isinstance(kind, UtcDateTime):
        yield from ("yesterday", "2026-13-01 00:00:00.000000", "9999-12-31 00:00:00.000000", 7)
    elif isinstance(kind, JsonOf):
        yield from ("{", "", "7", "[1]", '"text"', "[" * 9_999 + "]" * 9_999)
        yield from () if column.nullable else ("null",)
    elif isinstance(kind, Flag):
        yield from ("yes", 2, 0.5)
    elif isinstance(kind, Integer | Float):
        yield from ("many", -1, 9e999)
        yield from () if isinstance(kind, Float) else (1.5,)


def _calls(store: SqlJobStore, job_id: JobId) -> Iterator[Callable[[], object]]:
    """Yield the calls of a job, from those that read to those that write."""
    clock = ManualClock(NOW)
    tokens = SqlTokenStore(store.engine)
    coordinator = AttemptCoordinator(store)
    maintenance = JobMaintenance(store, UnknownRuns(), tokens, clock)
    name = "sales" if job_id == BAD else "orders"
    operator_id = make_operator_id(store)
    yield lambda: store.describe(job_id)
    yield lambda: store.checkpoints(job_id, CheckpointPage())
    yield lambda: store.latest(job_id, operator_id)
    yield lambda: store.latest_checkpoints(job_id)
    yield lambda: store.latest_checkpoints(job_id, RowsVersion(-1, NOW))
    yield lambda: store.request(job_id, KEYS["request"])
    if job_id == BAD:
        yield lambda: store.claim(POINTER)
        yield lambda: tokens.find(KEYS["token"])
    yield lambda: tokens.owner_of(AttemptRef(job_id=job_id, operator_id=operator_id, epoch=2))
    yield lambda: _acknowledgements(store, job_id)
    yield lambda: _row_by_row(store, job_id, operator_id)
    yield lambda: maintenance.close_abandoned(job_id)
    yield lambda: maintenance.settle_run(job_id)
    yield lambda: maintenance.refusal(RetireJob(job_id=job_id))
    yield lambda: maintenance.forget(job_id, 86_400)
    yield lambda: coordinator.register(make_registration(job_name=name, owner=make_owner(airflow=AIRFLOW)))


def make_operator_id(store: SqlJobStore) -> Any:
    return store.describe(GOOD).operators[0].operator_id


def _acknowledgements(store: SqlJobStore, job_id: JobId) -> object:
    with store.transaction(job_id) as tx:
        return tx.acknowledgements(3)


def _row_by_row(store: SqlJobStore, job_id: JobId, operator_id: Any) -> None:
    with store.transaction(job_id) as tx:
        tx.storage_bases(operator_id)
        tx.statistics(operator_id)
        tx.open_requests(operator_id)
        tx.open_actions(operator_id)
        tx.summary(2)
        tx.remove_attempts((AttemptRef(job_id=job_id, operator_id=operator_id, epoch=1),))
        tx.remove_checkpoints((1,))


def _errors(store: SqlJobStore, job_id: JobId) -> list[StateCheckError]:
    errors = []
    for call in _calls(store, job_id):
        try:
            call()
        except StateCheckError as error:
            errors.append(error)
    return errors


def _require_others_go_on(store: SqlJobStore) -> None:
    assert GOOD in [job.job_id for job in store.jobs()]
    assert store.dag_ids() >= {"d"}
    assert GOOD in store.jobs_of_run("d", "r")
    for sort in JobSort:
        overviews = {job.job_id: job for job in _pages(store, JobsPage(sort=sort, limit=1))}
        assert overviews[GOOD].problem is None
        assert overviews[GOOD].name == "orders"


def _pages(store: SqlJobStore, page: JobsPage) -> Iterator[JobOverview]:
    listed = store.job_overviews(page)
    yield from listed.jobs
    while listed.following is not None:
        listed = store.job_overviews(replace(page, after=listed.following))
        yield from listed.jobs


def _is_looked_for(column: Column[Any]) -> bool:
    """Return whether a row with another value is still a row of the job, and found."""
    table = column.table.name
    # Requests are looked up by their operator and status.
    return not column.primary_key and (table, column.name) not in (
        ("statecheck_request", "operator_id"),
        ("statecheck_request", "status"),
    )


@pytest.mark.parametrize("column", every_nth(COLUMNS, 7), ids=str)
def test_a_bad_value_stops_its_job_with_an_error_that_names_it_and_no_other_job(
    column: Column[Any], engine: Engine, store: SqlJobStore
) -> None:
    table = column.table.name
    for value in _bad_values(column):
        corrupt(engine, column, value, BAD)

        found = [e for e in _errors(store, BAD) if isinstance(e, CorruptRowError)]
        named = {(e.table, e.column) for e in found}
        assert named == {(table, column.name)} if _is_looked_for(column) else len(named) <= 1, value
        assert all(f"column {e.column} of table {table}" in str(e) and e.key in str(e) for e in found)
    _require_others_go_on(store)
    assert _errors(store, GOOD) == []


ON_POSTGRES = [
    ("checkpoint", "status", "'unknown'"),
    ("checkpoint", "properties", "'[1]'"),
    ("checkpoint", "properties", """'{"snapshot_type": "checkpoint", "savepoint_format": null, "unclaimed": "yes"}'"""),
    ("checkpoint", "metadata_size", "-1"),
    ("attempt", "owner", "'null'"),
    ("attempt", "owner", f"'{'[' * 5_000}{']' * 5_000}'"),
    ("attempt", "owner", f"'{'7' * 5_000}'"),
    ("attempt", "ended_at", "'infinity'"),
    ("attempt", "storage_base", "NULL"),
    ("job", "seen_at", "'0099-01-01 BC'"),
    ("job", "completed_at", "'10000-01-01'"),
    ("job", "name", "NULL"),
    ("token", "caller", """'{"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": "first"}'"""),
]


def test_postgres_stores_bad_values_too(postgres_url: str) -> None:
    with own_schema(postgres_url) as url:
        engine = create_engine(url)
        store = SqlJobStore(engine, ManualClock(NOW))
        _add_jobs(engine, store)
        for table, column, value in ON_POSTGRES:
            with engine.begin() as connection:
                connection.execute(text(f"ALTER TABLE statecheck_{table} ALTER COLUMN {column} DROP NOT NULL"))
                connection.execute(text(f"CREATE TABLE known AS SELECT * FROM statecheck_{table}"))
                connection.execute(text(f"UPDATE statecheck_{table} SET {column} = {value} WHERE job_id = '{BAD}'"))
            found = [e for e in _errors(store, BAD) if isinstance(e, CorruptRowError)]
            assert {(e.table, e.column) for e in found} == {(f"statecheck_{table}", column)}, value
            _require_others_go_on(store)
            assert _errors(store, GOOD) == []
            with engine.begin() as connection:
                connection.execute(text(f"DELETE FROM statecheck_{table}"))
                connection.execute(text(f"INSERT INTO statecheck_{table} SELECT * FROM known"))
                connection.execute(text("DROP TABLE known"))
        engine.dispose()


@pytest.mark.parametrize("name", ["status", "failed_at", "name", "seen_at", "checkpoint_id"])
def test_the_list_of_jobs_shows_which_row_is_bad(name: str, engine: Engine, store: SqlJobStore) -> None:
    corrupt(engine, METADATA.tables["statecheck_job"].c[name], b"\xff", BAD)

    listed = store.job_overviews(JobsPage())
    shown = {job.job_id: job for job in listed.jobs}[BAD]
    assert name in str(shown.problem)
    assert "statecheck_job" in str(shown.problem)
    assert isinstance(shown.status, ListedStatus)
    assert sum(listed.counts.values()) == 2


def test_maintenance_goes_on_after_a_bad_row_and_reports_it(engine: Engine, store: SqlJobStore) -> None:
    corrupt(engine, METADATA.tables["statecheck_attempt"].c.owner, "{", BAD)
    done: list[str] = []

    def collect(job_id: JobId) -> CollectedJob:
        store.describe(job_id)
        done.append(job_id)
        return CollectedJob(job=job_id)

    reports = {each.job: each for each in each_job((BAD, GOOD), collect, CollectedJob)}
    assert done == [GOOD]
    assert "column owner of table statecheck_attempt" in reports[BAD].problems[0]


def test_the_error_of_a_bad_row_arrives_over_http_as_what_it_is(engine: Engine, store: SqlJobStore) -> None:
    corrupt(engine, METADATA.tables["statecheck_checkpoint"].c.status, "unknown", BAD)
    with pytest.raises(CorruptRowError) as raised:
        store.describe(BAD)

    arrived = decode_error(json.loads(json.dumps(encode_error(raised.value))))
    assert isinstance(arrived, CorruptRowError)
    assert (arrived.table, arrived.column) == ("statecheck_checkpoint", "status")
    assert arrived.key == f"job_id={BAD}, checkpoint_id=3"


def test_owner_in_a_row_of_an_earlier_version_has_no_transport() -> None:
    written = encode(make_owner(transport=Transport.MAILBOX))
    read = json_reader(AttemptOwner)
    assert read(written).transport is Transport.MAILBOX
    del written["transport"]
    assert read(written).transport is None
