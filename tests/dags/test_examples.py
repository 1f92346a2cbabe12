"""Every example Dag parses without Spark, explains itself and survives serialisation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization

FOLDER = Path(__file__).parents[2] / "dags"
FILES = sorted(FOLDER.glob("*.py"))


@pytest.fixture(scope="module")
def bag() -> DagBag:
    return DagBag(dag_folder=str(FOLDER))


@pytest.mark.airflow
def test_every_file_parses(airflow_db: Path, bag: DagBag) -> None:
    assert bag.import_errors == {}
    assert len(bag.dags) == len(FILES) > 0


@pytest.mark.airflow
def test_every_dag_is_explained_paused_by_schedule_and_tagged(airflow_db: Path, bag: DagBag) -> None:
    for dag in bag.dags.values():
        assert dag.doc_md
        assert "statecheck" in dag.tags
        if dag.dag_id != "statecheck_maintenance":
            assert dag.is_paused_upon_creation or not dag.timetable.can_be_scheduled
            assert "example" in dag.tags


@pytest.mark.airflow
def test_the_lines_of_the_docs_are_a_file_with_the_maintenance_dag(airflow_db: Path, tmp_path: Path) -> None:
    """Airflow passes over files that do not look as if they held a Dag."""
    page = (FOLDER.parent / "docs" / "operate" / "deployment.md").read_text()
    [lines] = re.findall(r"```python\n([^`]*?import statecheck_maintenance.*?)```", page, re.DOTALL)
    file = tmp_path / "maintenance.py"
    file.write_text(lines)
    bag = DagBag(dag_folder=str(tmp_path), safe_mode=True)
    assert bag.import_errors == {}
    assert bag.dags["statecheck_maintenance"].fileloc == str(file)
    assert len(lines.strip().splitlines()) == 3


@pytest.mark.airflow
def test_the_maintenance_dag_begins_paused_and_runs_once_at_a_time(airflow_db: Path, bag: DagBag) -> None:
    dag = bag.dags["statecheck_maintenance"]
    assert dag.is_paused_upon_creation
    assert (dag.max_active_runs, dag.catchup) == (1, False)
    assert sorted(dag.task_ids) == ["collect", "prune", "verify"]


@pytest.mark.airflow
def test_no_maintenance_task_stops_another_and_each_that_fails_fails_the_run(airflow_db: Path, bag: DagBag) -> None:
    """A run is judged by its leaves."""
    dag = bag.dags["statecheck_maintenance"]
    assert {task.task_id for task in dag.leaves} == {task.task_id for task in dag.roots} == set(dag.task_ids)
    assert dag.max_active_tasks == 1


@pytest.mark.airflow
def test_every_dag_comes_back_from_its_serialised_form(airflow_db: Path, bag: DagBag) -> None:
    for dag in bag.dags.values():
        back = DagSerialization.from_dict(DagSerialization.to_dict(dag))
        assert back.task_ids == dag.task_ids
