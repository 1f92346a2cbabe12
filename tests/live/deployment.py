"""A whole Airflow of its own: PostgreSQL, api-server, scheduler, dag-processor and triggerer."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from tests.live.components import Component
from tests.live.postgres import Postgres, running_postgres
from tests.live.rest import AirflowApi, wait_until
from tests.standalone_cluster import free_port

DAGS = Path(__file__).with_name("dags")
EXAMPLES = Path(__file__).parents[2] / "dags"
DAG_IDS = (
    "live_stage",
    "live_timed",
    "live_mapped",
    "live_pipeline",
    "live_steps",
    "live_actions",
    "live_leaks",
    "live_mailbox",
    "live_mailbox_hasty",
    "live_mailbox_cluster",
    "live_mailbox_deferred",
    "live_secrets",
    "live_queries",
    "live_days_waiting",
    "live_days_failing",
    "live_undated",
    "live_task_state",
    "live_partitions",
    "example_trigger_form",
    "statecheck_maintenance",
)
ADMIN, STRANGER = ("admin", "password of an administrator"), ("stranger", "password of a user without permissions")
LEDGER_PASSWORD = "c0rrect/h0rse+b@ttery"
JWT_SECRET = "a secret of the live tests that is long enough for HS512, in bytes at least"
READER = ("reader", "password of a user who may only read")

_HOST = "127.0.0.1"


class Deployment:
    """Running components, as a service manager keeps them."""

    def __init__(self, folder: Path, postgres: Postgres) -> None:
        self.folder = folder
        self.dags = Path(shutil.copytree(DAGS, folder / "dags", ignore=shutil.ignore_patterns("__pycache__")))
        for dag_id in ("statecheck_maintenance", "example_trigger_form"):
            shutil.copy(EXAMPLES / f"{dag_id}.py", self.dags)
        self.postgres = postgres
        port = free_port()
        self.environment = _environment(folder, postgres.url, port)
        self.api = AirflowApi(url_of(port))
        self.api_server = self._component("api-server")
        self.scheduler = self._component("scheduler", "--skip-serve-logs")
        self.dag_processor = self._component("dag-processor")
        self._numbers = itertools.count()
        self.triggerer = self._component("triggerer", "--skip-serve-logs")

    @property
    def components(self) -> tuple[Component, ...]:
        return self.api_server, self.scheduler, self.dag_processor, self.triggerer

    def start(self) -> None:
        self._migrate()
        self.ensure_running()
        self.api.log_in(*ADMIN)
        for dag_id in DAG_IDS:
            wait_until(f"the Dag {dag_id}", partial(self.api.has_dag, dag_id))

    def ensure_running(self) -> None:
        """Start again what has ended, and wait until the API answers."""
        wait_until("the api-server", self.keep_running)

    def keep_running(self) -> bool:
        """Start again what has ended, and tell whether the API answers."""
        for component in self.components:
            component.start()
        return self.api.is_up()

    def stop(self) -> None:
        self.api.close()
        for component in self.components:
            component.sweep()

    def next_number(self) -> int:
        """Return a number that no other run has."""
        return next(self._numbers)

    def job(self, name: str) -> JobView:
        """Return the rows of a job."""
        return self.store().describe(job_id_of(name))

    def store(self) -> SqlJobStore:
        """Return the store of the rows."""
        return SqlJobStore(create_engine(self.postgres.url, poolclass=NullPool))

    def _component(self, *arguments: str) -> Component:
        return Component(arguments, self.environment, self.folder / f"{arguments[0]}.log")

    def _migrate(self) -> None:
        command = [sys.executable, "-m", "airflow", "db", "migrate"]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode != 0:
            pytest.fail(f"airflow db migrate ended with {done.returncode}:\n{done.stdout}{done.stderr}", pytrace=False)


@contextmanager
def running_deployment(folder: Path) -> Iterator[Deployment]:
    with running_postgres() as postgres:
        deployment = Deployment(folder, postgres)
        try:
            deployment.start()
            yield deployment
        finally:
            deployment.stop()


def _environment(folder: Path, database: str, port: int) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    # Programs of a test, such as one that submits into another network, and spark-submit.
    path = os.pathsep.join((str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]))
    return {**kept, **airflow_variables(folder, database, port), "PATH": path}


def airflow_variables(folder: Path, database: str, port: int) -> dict[str, str]:
    """
    Return the settings of an Airflow on PostgreSQL, and write its users.

    :param folder: Folder with the Dags in ``dags``, for Airflow's home and the checkpoints.
    """
    (folder / "passwords.json").write_text(json.dumps(dict((ADMIN, STRANGER, READER))))
    return {**_settings(folder, database, port), **_intervals(), "AIRFLOW_HOME": str(folder / "home")}


def _settings(folder: Path, database: str, port: int) -> dict[str, str]:
    url = url_of(port)
    return {
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database,
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "dags"),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{ADMIN[0]}:admin,{READER[0]}:viewer,{STRANGER[0]}:",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(folder / "passwords.json"),
        "AIRFLOW__API__HOST": _HOST,
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API_AUTH__JWT_SECRET": JWT_SECRET,
        "AIRFLOW_CONN_SPARK_LOCAL": json.dumps({"conn_type": "spark", "host": "local[1]"}),
        "AIRFLOW_CONN_LEDGER": json.dumps({"conn_type": "generic", "login": "bookkeeper", "password": LEDGER_PASSWORD}),
        "AIRFLOW__STATECHECK__CHECKPOINT_DIR": str(folder / "checkpoints"),
        "AIRFLOW__STATECHECK__SAVEPOINT_DIR": (folder / "savepoints").as_uri(),
    }


def _intervals() -> dict[str, str]:
    return {
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.3",
        "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "2",
        "AIRFLOW__SCHEDULER__JOB_HEARTBEAT_SEC": "2",
        "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "12",
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "3",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "45",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "1",
        "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
        "AIRFLOW__WORKERS__MAX_FAILED_HEARTBEATS": "45",
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    }


def url_of(port: int) -> str:
    """Return the URL of an api-server."""
    return f"http://{_HOST}:{port}"
