"""Every example Dag parses without Spark, explains itself and survives serialisation."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.exceptions import AirflowFailException
from airflow.serialization.serialized_objects import DagSerialization
from jinja2 import Template

FOLDER = Path(__file__).parents[2] / "dags"
FILES = sorted(FOLDER.glob("*.py"))
OF_PROVIDERS = {
    "example_databricks": "airflow.providers.databricks",
    "example_dataproc": "airflow.providers.google",
    "example_emr": "airflow.providers.amazon",
    "example_glue": "airflow.providers.amazon",
    "example_livy": "airflow.providers.apache.livy",
    "example_spark_kubernetes": "airflow.providers.cncf",
}
"""Files without a Dag where a provider is missing."""
_WITHOUT_PROVIDERS = f"""
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        # Airflow reads the declarations of installed providers.
        if name.startswith({tuple(OF_PROVIDERS.values())!r}) and name.endswith(".operators"):
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Missing())
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(dag_folder={str(FOLDER)!r})
assert bag.import_errors == {{}}, bag.import_errors
print(*sorted(bag.dags))
"""


@pytest.fixture(scope="module")
def bag() -> DagBag:
    return DagBag(dag_folder=str(FOLDER))


@pytest.mark.airflow
def test_every_file_parses(airflow_db: Path, bag: DagBag) -> None:
    assert bag.import_errors == {}
    missing = {name for name, provider in OF_PROVIDERS.items() if importlib.util.find_spec(provider) is None}
    assert set(bag.dags) == {file.stem for file in FILES} - missing
    assert missing <= {"example_dataproc"}


@pytest.mark.airflow
def test_a_file_whose_provider_is_missing_has_no_dag_and_fails_nothing(airflow_db: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_PROVIDERS], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert {*done.stdout.splitlines()[-1].split()} == {file.stem for file in FILES} - OF_PROVIDERS.keys()


@pytest.mark.airflow
def test_every_example_has_its_place_on_the_page() -> None:
    page = (FOLDER.parent / "docs" / "start" / "examples.md").read_text()
    assert [file.name for file in FILES if file.stem != "statecheck_maintenance" and file.name not in page] == []


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


def example(name: str) -> Any:
    """Return the module of an example."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_of(date: datetime | None) -> dict[str, Any]:
    return {"dag_run": SimpleNamespace(logical_date=date), "ds": None if date is None else f"{date:%Y-%m-%d}"}


TODAY = datetime(2026, 11, 30, 12, tzinfo=UTC)


@pytest.mark.airflow
@pytest.mark.parametrize("date", [None, TODAY])
def test_a_run_of_today_has_input_and_leaves_the_days_of_the_data_to_their_job(
    airflow_db: Path, monkeypatch, date
) -> None:
    """Its state would reach today, and the runs of all earlier days would be refused."""
    balances = example("example_running_balances")
    context = run_of(date) | {"params": {"day": balances.DAY.resolve()}}
    monkeypatch.setattr(balances, "get_current_context", lambda: context)
    assert balances.day_of_the_run() == ["1992-01-02"]
    assert Template(balances.JOB).render(context) == "customer_balances/by_hand"
    context |= run_of(datetime(1995, 3, 1, tzinfo=UTC))
    assert balances.day_of_the_run() == ["1995-03-01"]
    assert Template(balances.JOB).render(context) == "customer_balances"


@pytest.mark.airflow
@pytest.mark.parametrize("date", [None, TODAY])
def test_a_run_outside_the_year_of_the_backfill_is_refused_before_it_reads(airflow_db: Path, monkeypatch, date) -> None:
    backfill = example("example_backfill_year")
    monkeypatch.setattr(backfill, "get_current_context", lambda: run_of(date))
    with pytest.raises(AirflowFailException, match="start this Dag as a backfill of 2013"):
        backfill.month_of_the_run()
