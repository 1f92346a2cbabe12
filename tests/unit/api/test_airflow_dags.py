"""What the coordinator finds out about the current tasks of another Dag: from rows that Airflow itself writes."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.serialized_dag import SerializedDagModel
from airflow.utils.session import create_session
from sqlalchemy import delete, update
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.api.airflow_dags import AirflowDags
from airflow_provider_statecheck.checkpoint.declared_uids import DagTasks

BUNDLE = "bundle-of-ledgers"
GONE = DagTasks(exists=False)
HEAD = """
    from airflow.sdk import DAG, BaseOperator, TaskGroup, task
    from airflow_provider_statecheck import CheckpointedSparkSubmitOperator, CheckpointedStageOperator

    def stage(task_id, **arguments):
        return CheckpointedStageOperator(task_id=task_id, stage="pipelines:stage", **{"job": "sales"} | arguments)

"""


class Folder:
    """A folder of Dag files, and the rows that Airflow has of it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, body: str) -> None:
        (self.path / name).write_text(textwrap.dedent(HEAD + body))

    def parse(self) -> None:
        """Let Airflow parse all files, as its processor and ``dag.test()`` do."""
        bag = DagBag(str(self.path), bundle_path=self.path, bundle_name=BUNDLE)
        assert not bag.import_errors, bag.import_errors
        sync_bag_to_db(bag, BUNDLE, None)

    def change(self, dag_id: str, **values: Any) -> None:
        with create_session() as session:
            session.execute(update(DagModel).where(DagModel.dag_id == dag_id).values(**values))

    def parsed_before(self, dag_id: str, age: timedelta) -> None:
        """Let the last time that Airflow found a Dag be earlier."""
        with create_session() as session:
            model = session.get(DagModel, dag_id)
            assert model is not None
            assert model.last_parsed_time is not None
            model.last_parsed_time -= age


@pytest.fixture
def folder(sqlite_airflow: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    # By default, Airflow keeps the rows of a Dag that changes again within half a minute.
    monkeypatch.setenv("AIRFLOW__CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL", "0")
    (tmp_path / "dags").mkdir()
    with create_session() as session:
        session.add(DagBundleModel(name=BUNDLE))
    yield Folder(tmp_path / "dags")
    with create_session() as session:
        session.execute(delete(DagModel).where(DagModel.bundle_name == BUNDLE))
        session.execute(delete(DagBundleModel).where(DagBundleModel.name == BUNDLE))


def one_stage(dag_id: str = "ledger", task_id: str = "totals", **arguments: object) -> str:
    return f"""
    with DAG({dag_id!r}, schedule=None):
        stage({task_id!r}, **{arguments!r})
    """


def asked(dag_id: str = "ledger", job: str = "sales", *, has_files: bool = False) -> DagTasks | None:
    return AirflowDags(has_files=has_files).tasks_of(dag_id, job)


def test_the_uids_of_a_serialized_dag_are_those_that_its_tasks_register_with(folder: Folder) -> None:
    folder.write(
        "ledger.py",
        """
    with DAG("ledger", schedule=None):
        stage("plain")
        stage("given", uid="another")
        stage("renamed", renamed_uids={"older": "old", "old": "renamed", "x": "y"})
        stage("template", uid="sales {{ params.region }}")
        BaseOperator(task_id="unrelated")
        with TaskGroup("group"):
            stage("inner")
        CheckpointedStageOperator.partial(
            task_id="mapped", stage="p:s", job="sales", renamed_uids={"m": "mapped"}
        ).expand(map_key=["a", "b"])
        CheckpointedStageOperator.partial(task_id="uids", stage="p:s", job="sales", map_key="k").expand(uid=["a", "b"])
        CheckpointedSparkSubmitOperator.partial(task_id="kwargs", application="a.py").expand_kwargs([{"map_key": "a"}])

        @task.checkpointed_spark(
            job="sales", uid="decorated one", map_key="{{ item }}", renamed_uids={"d": "decorated one"}
        )
        def decorated(spark, checkpoint, item): ...

        decorated.expand(item=[1, 2])
    """,
    )
    folder.parse()
    uids = {
        "plain": ("plain",),
        "given": ("another",),
        "renamed": ("renamed", "old", "older"),
        "template": (),
        "group.inner": ("group.inner",),
        "mapped": ("mapped", "m"),
        "uids": (),
        "kwargs": (),
        "decorated": ("decorated one", "d"),
    }
    found = asked()
    assert found is not None
    assert (found.exists, dict(found.uids)) == (True, uids)


@pytest.mark.parametrize(
    ("job", "found"),
    [
        ("sales", {"sales", "template"}),
        ("test/sales", {"sales", "template"}),
        ("sales@what-if", {"sales", "template"}),
        ("refunds", {"refunds", "template"}),
        ("ledger/2026-01-01T00:00:00+00:00", {"run", "template"}),
    ],
)
def test_tasks_of_other_jobs_are_left_out(folder: Folder, job: str, found: set[str]) -> None:
    folder.write(
        "ledger.py",
        """
    with DAG("ledger", schedule=None):
        for name, job in {"sales": "sales", "refunds": "refunds", "run": None, "template": "{{ params.job }}"}.items():
            stage(name, job=job)
    """,
    )
    folder.parse()
    tasks = asked(job=job)
    assert tasks is not None
    assert tasks.uids.keys() == found


def test_the_newest_version_of_a_dag_counts(folder: Folder) -> None:
    for task_id in ("totals", "sums"):
        folder.write("ledger.py", one_stage(task_id=task_id))
        folder.parse()
        assert asked() == DagTasks(exists=True, is_paused=True, uids={task_id: (task_id,)})


def test_a_dag_that_is_paused_is_known_as_such(folder: Folder) -> None:
    folder.write("ledger.py", one_stage())
    folder.parse()
    for is_paused in (True, False):
        folder.change("ledger", is_paused=is_paused)
        assert asked() == DagTasks(exists=True, is_paused=is_paused, uids={"totals": ("totals",)})


def test_a_dag_that_is_unknown_stale_or_deleted_does_not_exist(folder: Folder) -> None:
    assert asked("never heard of") == GONE
    folder.write("ledger.py", one_stage())
    folder.parse()
    folder.change("ledger", is_stale=True)
    assert asked() == GONE
    folder.parse()
    assert asked() != GONE
    with create_session() as session:
        session.execute(delete(DagModel).where(DagModel.dag_id == "ledger"))
    assert asked() == GONE


def test_a_dag_whose_file_was_parsed_without_it_does_not_exist(folder: Folder) -> None:
    folder.write("ledger.py", one_stage("ledger"))
    folder.write("books.py", one_stage("books"))
    folder.parse()
    for dag_id in ("ledger", "books"):
        folder.parsed_before(dag_id, timedelta(seconds=10))
    folder.write("ledger.py", one_stage("ledger_v2"))
    (folder.path / "books.py").rename(folder.path / "books.txt")
    folder.parse()
    assert [asked("ledger"), asked("ledger_v2") == GONE] == [GONE, False]
    assert asked("books") != GONE, "files are parsed at different times"


def test_dags_that_are_parsed_together_all_exist(folder: Folder) -> None:
    folder.write("ledger.py", "".join(one_stage(f"ledger_{number}") for number in range(3)))
    folder.parse()
    folder.parsed_before("ledger_0", timedelta(seconds=2))
    assert GONE not in [asked(f"ledger_{number}") for number in range(3)]


def test_a_dag_whose_file_was_deleted_is_gone_where_the_files_are(folder: Folder) -> None:
    folder.write("ledger.py", one_stage())
    folder.parse()
    assert asked(has_files=True) != GONE
    (folder.path / "ledger.py").unlink()
    assert [asked(has_files=True), asked() == GONE] == [GONE, False]
    folder.path.rename(folder.path.with_name("elsewhere"))
    assert asked(has_files=True) != GONE, "this machine does not have the bundle"


def test_a_dag_that_cannot_be_read_here_is_unknown(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    folder.write("ledger.py", one_stage())
    folder.parse()
    with create_session() as session:
        row = SerializedDagModel.get("ledger", session=session)
        assert row is not None
        data = dict(row.data or {})
        data["dag"] = data["dag"] | {"timetable": {"__type": "a.timetable.of.a.Plugin", "__var": {}}}
        row._data = data
    assert asked() is None
    assert "Could not read the tasks of Dag ledger" in caplog.text
