"""An Airflow of a test, with a home and a database of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, inspect, text

from airflow_provider_statecheck.api.tokens import TokenKeeper
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, ClaimRecord
from airflow_provider_statecheck.checkpoint.records import (
    AcknowledgementRecord,
    ActionRecord,
    CheckpointRequest,
    JobAction,
    StatisticsRecord,
    SystemClock,
)
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.metadata.tables import METADATA, Caller
from airflow_provider_statecheck.metadata.token_store import SqlTokenStore
from tests.messages import complete_checkpoint, make_owner, make_registration

ROOT = Path(__file__).parents[2]
MANAGER = "airflow_provider_statecheck.metadata.db_manager.StatecheckDBManager"
HEAD = "0001_0_1_0"
TABLES = set(METADATA.tables)
CALLER = Caller(dag_id="nightly", run_id="run-1", task_id="features")
EVERYTHING = dict.fromkeys(TABLES, 1)


class Airflow:
    """One Airflow with a home and a database of its own."""

    def __init__(self, home: Path, url: str, **settings: str) -> None:
        self.engine: Engine = create_engine(url)
        self._output = home / "output"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        settings |= {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__API_AUTH__JWT_SECRET": "of the api-servers of a test, long enough for a signature",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url,
            "AIRFLOW__DATABASE__EXTERNAL_DB_MANAGERS": MANAGER,
            "PYTHONPATH": str(ROOT),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.airflow_commands"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=home,
            env=environment | settings,
        )

    def run(self, *arguments: str) -> None:
        """Run a command that has to succeed."""
        status = self.status_of(*arguments)
        assert status == 0, self.output

    def status_of(self, *arguments: str) -> int:
        """Run a command and return its exit status."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(self._output), *arguments]) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("status "):
                return int(line.split()[1])
        pytest.fail(f"the process that runs Airflow's commands ended with {self._process.wait()}")

    @property
    def output(self) -> str:
        """What the last command printed."""
        return self._output.read_text()

    def close(self) -> None:
        self._process.communicate(timeout=60)
        self.engine.dispose()

    def fill(self) -> None:
        """Put a job with an attempt, a checkpoint and a token into our tables, and a variable into Airflow's."""
        coordinator = AttemptCoordinator(SqlJobStore(self.engine))
        owner = make_owner(airflow=(("dag_id", "nightly"), ("run_id", "run-1"), ("task_id", "t"), ("map_index", "-1")))
        registration = make_registration(job_name=f"sales {new_key()}", owner=owner)
        coordinator_attempt = coordinator.register(registration).attempt
        complete_checkpoint(coordinator, coordinator_attempt)
        self.give_token()
        self.give_snapshot(coordinator_attempt)
        with self.engine.begin() as connection:
            statement = "INSERT INTO variable (key, val, is_encrypted) VALUES ('kept', 'by airflow', false)"
            connection.execute(text(statement))

    def give_token(self) -> None:
        TokenKeeper(SqlTokenStore(self.engine), SystemClock()).issue(CALLER)

    def give_snapshot(self, attempt: AttemptRef) -> None:
        keys: dict[str, Any] = {"job_id": attempt.job_id, "operator_id": attempt.operator_id}
        with SqlJobStore(self.engine).transaction(attempt.job_id) as tx:
            properties = CheckpointProperties.for_savepoint()
            tx.save_request(
                CheckpointRequest(**keys, request_key=new_key(), properties=properties, requested_at=tx.now)
            )
            action = JobAction.RESTORE
            tx.save_action(
                ActionRecord(**keys, request_key=new_key(), action=action, requested_by="ann", requested_at=tx.now)
            )
            tx.save_acknowledgement(AcknowledgementRecord(**keys, checkpoint_id=1, attempt_id="1"))
            tx.save_claim(ClaimRecord(**keys, pointer=f"memory://savepoints/{new_key()}", claimed_at=tx.now))
            tx.save_statistics(StatisticsRecord(**keys))

    def rows(self) -> dict[str, int]:
        """Return how many rows each of our tables has that is there."""
        return {name: self._count(name) for name in self.tables()}

    def tables(self) -> set[str]:
        """Return which of our tables are there, and any that are ours by name alone."""
        names = inspect(self.engine).get_table_names()
        return {name for name in names if name.startswith("statecheck_")}

    def revision(self) -> str | None:
        """Return the revision that our tables are stamped with."""
        if not inspect(self.engine).has_table("alembic_version_statecheck"):
            return None
        with self.engine.connect() as connection:
            return str(connection.execute(text("SELECT version_num FROM alembic_version_statecheck")).scalar_one())

    def keeps_its_own(self) -> bool:
        """Tell whether the row in Airflow's own table is there."""
        return self._count("variable") == 1

    def _count(self, table: str) -> int:
        with self.engine.connect() as connection:
            return int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())


def own_database(request: pytest.FixtureRequest, home: Path) -> str:
    """Return the URL of a new database, of the kind in the request's parameter."""
    if request.param == "sqlite":
        return f"sqlite:///{home}/own.db"
    server: str = request.getfixturevalue("postgres_url")
    name = f"commands_{uuid.uuid4().hex}"
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return engine.url.set(database=name).render_as_string(hide_password=False)
