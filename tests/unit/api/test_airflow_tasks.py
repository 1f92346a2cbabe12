"""
What is read from Airflow's own tables: the challenge exchange, the ends of runs, and permissions on Dags of teams.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.models.dagbundle import DagBundleModel
from airflow.models.team import Team, dag_bundle_team_association_table
from sqlalchemy import create_engine, delete, insert, text
from sqlalchemy.engine import Engine
from sqlalchemy.orm import sessionmaker

from airflow_provider_statecheck.api import airflow_access
from airflow_provider_statecheck.api.airflow_access import PermittedDags
from airflow_provider_statecheck.api.airflow_services import AirflowRuns, AirflowTaskLiveness, AirflowTasks
from airflow_provider_statecheck.api.challenges import Challenges, RenderedChallenges, StoredChallenges
from airflow_provider_statecheck.checkpoint.properties import JobStatus
from airflow_provider_statecheck.checkpoint.records import AttemptOwner
from airflow_provider_statecheck.exceptions import AccessDeniedError
from airflow_provider_statecheck.gateway.verbs import challenge_of
from airflow_provider_statecheck.metadata.tables import Caller
from tests.messages import make_owner
from tests.unit.api.airflow_rows import SECRET, RunningTask, add_dag, remove_dag

MEETING_SECONDS = 0.5


@pytest.fixture(scope="module")
def postgres_airflow(postgres_url: str) -> Iterator[Engine]:
    from airflow.models import import_all_models
    from airflow.models.base import Base

    import_all_models()
    engine = create_engine(postgres_url, connect_args={"options": "-csearch_path=airflow_tasks"})
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA airflow_tasks"))
        names = ("dag", "dag_bundle", "dag_run", "task_instance", "task_state_store", "rendered_task_instance_fields")
        Base.metadata.create_all(connection, tables=_with_referred(Base.metadata.tables, names))
    yield engine
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA airflow_tasks CASCADE"))
    engine.dispose()


def _with_referred(tables, names):
    wanted, left = set(), list(names)
    while left:
        table = tables[left.pop()]
        if table not in wanted:
            wanted.add(table)
            left += [key.column.table.name for key in table.foreign_keys]
    return list(wanted)


@pytest.fixture(params=["sqlite_airflow", pytest.param("postgres_airflow", marks=pytest.mark.db)])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Engine:
    from airflow import settings

    engine: Engine = request.getfixturevalue(request.param)
    monkeypatch.setattr(settings, "NonScopedSession", sessionmaker(engine, autoflush=False))
    monkeypatch.setattr(settings, "Session", sessionmaker(engine, autoflush=False))
    return engine


@pytest.fixture(params=[StoredChallenges, RenderedChallenges])
def challenges(request: pytest.FixtureRequest) -> Challenges:
    place: Challenges = request.param()
    return place


@pytest.fixture
def task(engine: Engine, challenges: Challenges) -> RunningTask:
    return RunningTask.start(engine, challenges=challenges)


def _prove(task: RunningTask, secret: str = SECRET) -> Caller:
    return AirflowTasks(task.challenges).prove(str(task.ti_id), secret)


def test_the_task_that_announced_a_secret_proves_itself_with_it(task: RunningTask) -> None:
    task.announce()
    assert _prove(task) == Caller(dag_id="nightly", run_id=task.run_id, task_id="features")


def test_an_instance_of_a_mapped_task_is_told_by_its_index(engine: Engine, challenges: Challenges) -> None:
    task = RunningTask.start(engine, map_index=3, challenges=challenges)
    task.announce(map_index=3)
    assert _prove(task).map_index == 3


def test_a_secret_works_once(task: RunningTask) -> None:
    task.announce()
    _prove(task)
    with pytest.raises(AccessDeniedError, match="another or one that was used before"):
        _prove(task)


def test_a_task_can_announce_again(task: RunningTask) -> None:
    for _ in range(2):
        task.announce()
        assert _prove(task).task_id == "features"


@pytest.mark.parametrize("secret", ["another", "", challenge_of(SECRET), f"{SECRET} ", SECRET.upper(), "é"])
def test_a_wrong_secret_is_refused_and_leaves_the_right_one_valid(task: RunningTask, secret: str) -> None:
    task.announce()
    with pytest.raises(AccessDeniedError, match="Expected the secret"):
        _prove(task, secret)
    _prove(task)


def test_a_token_of_an_earlier_try_is_of_no_task_that_waits(task: RunningTask) -> None:
    task.announce()
    caller = _prove(task)
    assert (caller.ti_id, AirflowTasks().is_waiting(caller)) == (str(task.ti_id), True)
    assert not AirflowTasks().is_waiting(replace(caller, ti_id=str(uuid.uuid4())))
    assert AirflowTasks().is_waiting(replace(caller, ti_id="")), "a token of an earlier version does not know its try"


def test_a_task_is_found_by_its_place_while_it_runs(task: RunningTask) -> None:
    place = Caller(dag_id="nightly", run_id=task.run_id, task_id="features")
    assert AirflowTasks().running(place).ti_id == str(task.ti_id)
    for change in ({"dag_id": "hourly"}, {"run_id": "x"}, {"task_id": "report"}, {"map_index": 0}, {"dag_id": ""}):
        with pytest.raises(AccessDeniedError, match="Expected a running instance"):
            AirflowTasks().running(replace(place, **change))
    task.become("deferred")
    with pytest.raises(AccessDeniedError, match="Expected a running instance"):
        AirflowTasks().running(place)


@pytest.mark.parametrize("written", ["null", '""', '"é"', "é", "{}", "[]", "1", "true", "", "not JSON", "\U0001d11e"])
def test_a_store_that_holds_something_else_proves_nothing(task: RunningTask, written: str) -> None:
    task.announce(written)
    for secret in (SECRET, "", "None"):
        with pytest.raises(AccessDeniedError, match="Expected the secret"):
            _prove(task, secret)


@pytest.mark.parametrize("written", [json.dumps(challenge_of(SECRET)), challenge_of(SECRET)])
def test_the_hash_is_read_with_and_without_quotes(engine: Engine, written: str) -> None:
    task = RunningTask.start(engine)
    task.announce(written)
    assert _prove(task).run_id == task.run_id


@pytest.mark.parametrize(
    "announce",
    [
        lambda task: None,
        lambda task: task.announce(key="mine", map_index=0),
        lambda task: task.announce(map_index=1),
        lambda task: RunningTask.start(task.engine, challenges=task.challenges).announce(),
    ],
    ids=["nothing", "another key", "another instance of a mapped task", "another task"],
)
def test_a_secret_that_the_task_did_not_announce_proves_nothing(
    engine: Engine, challenges: Challenges, announce: Callable[[RunningTask], None]
) -> None:
    task = RunningTask.start(engine, map_index=0, challenges=challenges)
    announce(task)
    with pytest.raises(AccessDeniedError):
        _prove(task)


@pytest.mark.parametrize(
    "state", ["success", "failed", "queued", "scheduled", "up_for_retry", "deferred", "restarting", "removed"]
)
def test_a_task_that_does_not_run_gets_nothing(task: RunningTask, state: str) -> None:
    task.announce()
    task.become(state)
    with pytest.raises(AccessDeniedError, match=state):
        _prove(task)
    task.become("running")
    _prove(task)


def test_an_unknown_id_is_refused(engine: Engine) -> None:
    with pytest.raises(AccessDeniedError, match="found none"):
        AirflowTasks().prove(str(uuid.uuid4()), SECRET)


@pytest.mark.parametrize("ti_id", ["", "x", "1", "' OR 1=1 --", "0" * 31, "a-secret-in-the-wrong-place", "None"])
def test_what_is_no_id_is_refused_without_being_shown(engine: Engine, ti_id: str) -> None:
    with pytest.raises(AccessDeniedError) as caught:
        AirflowTasks().prove(ti_id, SECRET)
    assert str(caught.value) == (
        "Expected the id of a task instance, which is a UUID, found another text; send the id of the running task."
    )


def test_two_exchanges_of_one_secret_at_once_prove_it_once(task: RunningTask, monkeypatch: pytest.MonkeyPatch) -> None:
    task.announce()
    _let_readers_meet(monkeypatch)
    proved: list[Caller] = []
    refused: list[AccessDeniedError] = []

    def exchange() -> None:
        try:
            proved.append(_prove(task))
        except AccessDeniedError as error:
            refused.append(error)

    threads = [threading.Thread(target=exchange) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(proved), len(refused)) == (1, 1)


@pytest.mark.parametrize("written", [None, 1, True, [challenge_of(SECRET)], {"hash": challenge_of(SECRET)}], ids=repr)
def test_a_rendered_field_that_is_no_text_proves_nothing(engine: Engine, written: object) -> None:
    task = RunningTask.start(engine, challenges=RenderedChallenges())
    task.announce([] if written is None else written)
    with pytest.raises(AccessDeniedError, match="Expected the secret"):
        _prove(task)


def test_a_proof_leaves_the_other_rendered_fields(engine: Engine) -> None:
    task = RunningTask.start(engine, challenges=RenderedChallenges())
    task.announce()
    _prove(task)
    assert task.rendered() == {"sql": "SELECT 1"}


def _let_readers_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold whoever has read the hash until the other has too, or until it is clear that the other waits for a lock."""
    meeting, compare = threading.Barrier(2), hmac.compare_digest

    def meet(one: bytes, other: bytes) -> bool:
        with contextlib.suppress(threading.BrokenBarrierError):
            meeting.wait(MEETING_SECONDS)
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", meet)


def test_a_task_instance_waits_while_it_runs_or_is_deferred(engine: Engine) -> None:
    task = RunningTask.start(engine)
    caller = Caller(dag_id="nightly", run_id=task.run_id, task_id="features")
    found = {}
    for state in ("running", "deferred", "success", "failed", "up_for_retry", "scheduled"):
        task.become(state)
        found[state] = AirflowTasks().is_waiting(caller)
    assert {state for state, waits in found.items() if waits} == {"running", "deferred"}
    task.become("deferred")
    for other in ({"map_index": 0}, {"run_id": "another"}, {"task_id": "another"}, {"dag_id": "another"}):
        assert not AirflowTasks().is_waiting(replace(caller, **other))


def test_a_try_is_the_last_one_until_its_task_instance_is_cleared_or_tried_again(engine: Engine) -> None:
    task = RunningTask.start(engine, map_index=3)
    caller = Caller(dag_id="nightly", run_id=task.run_id, task_id="features", map_index=3)
    owner = make_owner(label="task nightly.features, try 2", airflow=caller.pairs)
    found = {}
    for state in ("running", "deferred", "success", "failed", "restarting", "up_for_retry", "removed", None):
        task.become(state, try_number=2)
        found[state] = AirflowTaskLiveness().is_last_try(owner)
    assert {state for state, is_last in found.items() if is_last} == {"running", "deferred", "success", "failed"}
    task.become("running", try_number=3)
    others = (owner, make_owner(label="process 7"), make_owner(label="a task, try 3"))
    assert not any(map(AirflowTaskLiveness().is_last_try, others))


DAY = timedelta(days=1)
FUTURE = datetime(2126, 1, 1, tzinfo=UTC)
"""After all runs of other tests."""


def of(task: RunningTask, task_id: str, map_index: int = -1) -> AttemptOwner:
    coordinates = {"dag_id": "nightly", "run_id": task.run_id, "task_id": task_id, "map_index": str(map_index)}
    return make_owner(airflow=tuple(coordinates.items()))


def test_the_earliest_run_is_found_in_which_a_task_runs_or_starts(engine: Engine) -> None:
    liveness = AirflowTaskLiveness()
    first, second, third = (
        RunningTask.start(engine, "waiting", logical_date=FUTURE + number * DAY) for number in range(3)
    )
    other = RunningTask.start(engine, "another", logical_date=FUTURE - DAY)
    assert liveness.earlier_run_of(of(first, "waiting")) is None
    assert liveness.earlier_run_of(of(third, "waiting")) == first.run_id
    assert liveness.earlier_run_of(of(other, "another")) is None
    for state in ("success", "failed", "up_for_retry", "scheduled", None):
        first.become(state)
        assert liveness.earlier_run_of(of(third, "waiting")) == second.run_id
    first.become("queued", queued_dttm=datetime.now(UTC))
    assert liveness.earlier_run_of(of(third, "waiting")) == first.run_id
    first.become("queued", queued_dttm=datetime.now(UTC) - timedelta(minutes=6))
    assert liveness.earlier_run_of(of(third, "waiting")) == second.run_id, "no worker may ever take it"
    assert liveness.earlier_run_of(make_owner()) is None


def test_partitions_and_runs_without_a_date_are_waited_for_in_their_order(engine: Engine) -> None:
    liveness = AirflowTaskLiveness()
    one, two = (RunningTask.start(engine, "parts", partition_date=FUTURE + number * DAY) for number in (2, 1))
    assert liveness.earlier_run_of(of(one, "parts")) == two.run_id
    assert liveness.earlier_run_of(of(two, "parts")) is None
    three, four = (RunningTask.start(engine, "undated", run_after=FUTURE) for _ in range(2))
    assert liveness.earlier_run_of(of(four, "undated")) == three.run_id
    assert liveness.earlier_run_of(of(three, "undated")) is None


def test_only_the_same_instance_of_a_mapped_task_is_waited_for(engine: Engine) -> None:
    RunningTask.start(engine, "mapped", map_index=0, logical_date=FUTURE + 10 * DAY)
    later = RunningTask.start(engine, "mapped", map_index=1, logical_date=FUTURE + 11 * DAY)
    assert AirflowTaskLiveness().earlier_run_of(of(later, "mapped", 1)) is None


def test_a_dag_is_known_by_its_row(engine: Engine) -> None:
    is_dag: Callable[[str], bool] = AirflowTasks().is_dag
    add_dag(engine, "known_dag")
    try:
        assert is_dag("known_dag")
        assert not is_dag("unknown_dag")
        assert not is_dag("")
    finally:
        remove_dag(engine, "known_dag")


@pytest.mark.parametrize(
    ("state", "ended_as"),
    [("success", JobStatus.FINISHED), ("failed", JobStatus.FAILED), ("running", None), ("queued", None)],
)
def test_a_run_has_ended_when_it_succeeded_failed_or_is_gone(
    sqlite_airflow: Engine, state: str, ended_as: JobStatus | None
) -> None:
    engine = sqlite_airflow
    run_id = RunningTask.start(engine).run_id
    with engine.begin() as connection:
        connection.execute(text("UPDATE dag_run SET state = :s WHERE run_id = :r"), {"s": state, "r": run_id})
    owner = make_owner(airflow=(("dag_id", "nightly"), ("run_id", run_id)))
    assert AirflowRuns().ended_as(owner) is ended_as
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM task_instance WHERE run_id = :r"), {"r": run_id})
        connection.execute(text("DELETE FROM dag_run WHERE run_id = :r"), {"r": run_id})
    assert AirflowRuns().ended_as(owner) is JobStatus.CANCELED


OF_A_TEAM, OF_NO_TEAM, DELETED = "dag-of-red-team", "dag-of-no-team", "dag-that-was-deleted"
RED = SimpleAuthManagerUser(username="ann", role="user", teams=["red"])
BLUE = SimpleAuthManagerUser(username="bob", role="user", teams=["blue"])
ADMIN = SimpleAuthManagerUser(username="eve", role="admin", teams=[])


@pytest.fixture
def dags(sqlite_airflow: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Dags of a team and of none, of which one was deleted."""
    engine = sqlite_airflow
    monkeypatch.setattr(airflow_access, "get_auth_manager", SimpleAuthManager)
    monkeypatch.setenv("AIRFLOW__CORE__MULTI_TEAM", "true")
    for dag_id in (OF_A_TEAM, OF_NO_TEAM):
        add_dag(engine, dag_id)
    owned = {"dag_bundle_name": f"bundle-of-{OF_A_TEAM}", "team_name": "red"}
    with engine.begin() as connection:
        connection.execute(insert(Team).values(name="red"))
        connection.execute(insert(dag_bundle_team_association_table).values(**owned))
    yield
    with engine.begin() as connection:
        connection.execute(delete(dag_bundle_team_association_table))
        connection.execute(delete(Team))
    for dag_id in (OF_A_TEAM, OF_NO_TEAM):
        remove_dag(engine, dag_id)
    with engine.begin() as connection:
        connection.execute(delete(DagBundleModel).where(DagBundleModel.name.contains("-team")))


@pytest.mark.parametrize(
    ("user", "readable"),
    [(RED, {OF_A_TEAM, OF_NO_TEAM}), (BLUE, {OF_NO_TEAM}), (ADMIN, {OF_A_TEAM, OF_NO_TEAM})],
    ids=["of the team", "of another team", "admin"],
)
@pytest.mark.parametrize("method", ["GET", "PUT"])
@pytest.mark.usefixtures("dags")
def test_a_deleted_dag_is_permitted_to_no_team(user: SimpleAuthManagerUser, readable: set[str], method: str) -> None:
    dags = PermittedDags(user, method)  # type: ignore[arg-type]
    assert dags.among((OF_A_TEAM, OF_NO_TEAM, DELETED)) == readable


@pytest.mark.usefixtures("dags")
def test_tasks_share_jobs_with_existing_dags_of_their_own_team_only() -> None:
    tasks, others = AirflowTasks(), (OF_A_TEAM, OF_NO_TEAM, DELETED)
    assert tasks.has_teams()
    assert tasks.of_team(OF_A_TEAM, others) == {OF_A_TEAM}
    assert tasks.of_team(OF_NO_TEAM, others) == {OF_NO_TEAM}


@pytest.mark.usefixtures("dags")
def test_no_user_has_a_permission_without_the_id_of_a_dag() -> None:
    assert PermittedDags(ADMIN).among(("", OF_A_TEAM)) == {OF_A_TEAM}


@pytest.mark.usefixtures("dags")
def test_without_teams_the_permission_on_a_deleted_dag_is_that_on_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__MULTI_TEAM", "false")
    assert PermittedDags(RED).among((DELETED,)) == {DELETED}
