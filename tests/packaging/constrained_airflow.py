"""
An Airflow on PostgreSQL, installed under one of Airflow's constraint files as a managed service installs it.

Such a service has migrated the database before it installs the packages of a user.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from sqlalchemy import create_engine, inspect
from sqlalchemy.pool import NullPool

from tests.live.components import Component
from tests.live.deployment import ADMIN, airflow_variables, url_of
from tests.live.postgres import running_postgres
from tests.live.rest import AirflowApi, wait_until
from tests.packaging.environment import Environment, built_wheel, requirement
from tests.packaging.test_constraints import EXTRAS
from tests.standalone_cluster import free_port

DAGS = Path(__file__).with_name("dags")
DAG_IDS = ("resuming", "exchange_of_victim", "exchange_of_attacker")
DRIVERS = ("psycopg2-binary", "asyncpg")
"""Drivers of PostgreSQL, which belong to the service."""
_NEED_PYTHON_3_12 = ("numpy",)
"""Distributions that a constraint file for Python 3.12 pins to a version without a wheel for 3.11."""
_ENDED = ("success", "failed")


class ConstrainedAirflow:
    """
    Running components and their database.

    :param folder: Folder for Airflow's home, the Dags and the checkpoints.
    :param constraints: Constraint file of a version of Airflow.
    """

    def __init__(self, folder: Path, constraints: Path, database: str) -> None:
        self.folder = folder
        self._version = constraints.stem.removeprefix("airflow-")
        self._constraints = _for_this_python(constraints, folder / constraints.name)
        self._database = database
        shutil.copytree(DAGS, folder / "dags", ignore=shutil.ignore_patterns("__pycache__"))
        self._environment = Environment(folder)
        self._variables = airflow_variables(folder, database, port := free_port()) | self._environment.variables
        self._variables["STATECHECK_TEST_FOLDER"] = str(folder)
        self.api = AirflowApi(url_of(port))
        self._components = [self._component(name) for name in ("api-server", "scheduler", "dag-processor")]
        self.tables_of_the_service: set[str] = set()
        """Tables before the user's packages were installed."""

    def install(self) -> None:
        """Install Airflow, migrate its database, and then install this package with all extras."""
        self._environment.install(f"apache-airflow=={self._version}", *DRIVERS, constraints=self._constraints)
        self._run("db", "migrate")
        self.tables_of_the_service = self.tables()
        pins = dict(line.split("==") for line in self._constraints.read_text().splitlines())
        wheel = requirement(built_wheel(self.folder / "dist"), *EXTRAS)
        self._environment.install(wheel, f"pyspark=={pins['pyspark-client']}", constraints=self._constraints)

    def start(self) -> None:
        wait_until("the api-server", self._is_up)
        self.api.log_in(*ADMIN)
        for dag_id in DAG_IDS:
            wait_until(f"the Dag {dag_id}", partial(self.api.has_dag, dag_id))

    def stop(self) -> None:
        self.api.close()
        for component in self._components:
            component.sweep()

    def tables(self) -> set[str]:
        return set(inspect(create_engine(self._database, poolclass=NullPool)).get_table_names())

    def trigger(self, dag_id: str) -> None:
        """Start the only run of a Dag."""
        self.api.trigger(dag_id, dag_id, "2026-01-02T00:00:00+00:00", {})

    def end_of(self, dag_id: str) -> str:
        """Wait for the end of the run of a Dag, and return its state."""
        return wait_until(f"the end of {dag_id}", lambda: self._ended(dag_id))

    def story(self) -> str:
        """Return the logs of the tasks, which help to understand a failed test."""
        return "\n".join(log.read_text() for log in sorted((self.folder / "home").glob("logs/dag_id=*/**/*.log")))

    def _ended(self, dag_id: str) -> str | None:
        state = self.api.run_state(dag_id, dag_id)
        return state if state in _ENDED else None

    def _is_up(self) -> bool:
        for component in self._components:
            component.start()
        return self.api.is_up()

    def _run(self, *arguments: str) -> None:
        command = (str(self._environment.python), "-m", "airflow", *arguments)
        self._environment.output_of(*command, **self._variables)

    def _component(self, name: str) -> Component:
        arguments = (name, "--skip-serve-logs") if name == "scheduler" else (name,)
        python = str(self._environment.python)
        return Component(arguments, self._variables, self.folder / f"{name}.log", python)


@contextmanager
def running_airflow(folder: Path, constraints: Path) -> Iterator[ConstrainedAirflow]:
    with running_postgres() as postgres:
        airflow = ConstrainedAirflow(folder, constraints, postgres.url)
        try:
            airflow.install()
            airflow.start()
            yield airflow
        finally:
            airflow.stop()


def _for_this_python(constraints: Path, copy: Path) -> Path:
    left_out = _NEED_PYTHON_3_12 if sys.version_info < (3, 12) else ()
    lines = constraints.read_text().splitlines()
    copy.write_text("".join(f"{line}\n" for line in lines if line.partition("==")[0] not in left_out))
    return copy
