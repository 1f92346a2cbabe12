"""Rows of Airflow's own tables, as far as the API looks at them."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import delete, insert, select, update
from sqlalchemy.engine import Connection, Engine

from airflow_provider_statecheck.api.challenges import Challenges, RenderedChallenges, StoredChallenges
from airflow_provider_statecheck.gateway.verbs import CHALLENGE_KEY, challenge_of

SECRET = "the secret that the task made"


@dataclass(frozen=True, slots=True)
class RunningTask:
    """A task instance in its run, and what it wrote into its state store."""

    engine: Engine
    ti_id: uuid.UUID
    run_id: str
    dag_id: str = "nightly"
    challenges: Challenges = field(default_factory=StoredChallenges)
    """Where the task announces its challenge."""

    @classmethod
    def start(
        cls,
        engine: Engine,
        task_id: str = "features",
        map_index: int = -1,
        state: str = "running",
        *,
        dag_id: str = "nightly",
        challenges: Challenges | None = None,
        **of_run: Any,
    ) -> RunningTask:
        """Insert a run, with other values of its row, and with one task instance."""
        task = cls(engine, uuid.uuid4(), f"manual__{uuid.uuid4()}", dag_id, challenges or StoredChallenges())
        run = {"dag_id": dag_id, "run_id": task.run_id, "run_type": "manual", "clear_number": 0}
        instance = {"id": task.ti_id, "dag_id": dag_id, "run_id": task.run_id, "task_id": task_id, "state": state}
        with engine.begin() as connection:
            connection.execute(insert(_table("dag_run")).values(**{"run_after": datetime.now(UTC)} | run | of_run))
            row = instance | {"map_index": map_index, "pool": "default_pool", "pool_slots": 1}
            connection.execute(insert(_table("task_instance")).values(**row))
        return task

    def announce(self, value: Any = None, key: str = CHALLENGE_KEY, map_index: int = -1) -> None:
        """Write what the execution API would, by default the secret's hash."""
        if isinstance(self.challenges, RenderedChallenges):
            self._render({"sql": "SELECT 1", key: challenge_of(SECRET) if value is None else value}, map_index)
        else:
            self._store(f'"{challenge_of(SECRET)}"' if value is None else value, key, map_index)

    def rendered(self) -> dict[str, Any]:
        """Return the rendered fields."""
        fields = _table("rendered_task_instance_fields")
        with self.engine.connect() as connection:
            found: Any = connection.scalar(select(fields.c.rendered_fields).where(fields.c.run_id == self.run_id))
        return dict(found)

    def _render(self, values: dict[str, Any], map_index: int) -> None:
        fields = _table("rendered_task_instance_fields")
        key = {"dag_id": self.dag_id, "run_id": self.run_id, "task_id": "features", "map_index": map_index}
        with self.engine.begin() as connection:
            self._ensure_instance(connection, map_index)
            connection.execute(delete(fields).filter_by(**key))
            connection.execute(insert(fields).values(**key, rendered_fields=values))

    def _ensure_instance(self, connection: Connection, map_index: int) -> None:
        instances = _table("task_instance")
        same_run = (instances.c.run_id == self.run_id) & (instances.c.map_index == map_index)
        if connection.scalar(select(instances.c.id).where(same_run)) is None:
            row = {"dag_id": self.dag_id, "run_id": self.run_id, "task_id": "features", "map_index": map_index}
            values = row | {"id": uuid.uuid4(), "pool": "default_pool", "pool_slots": 1}
            connection.execute(insert(instances).values(**values))

    def _store(self, text: str, key: str, map_index: int) -> None:
        from airflow.state import TaskScope, get_state_backend
        from sqlalchemy.orm import Session

        scope = TaskScope(dag_id=self.dag_id, run_id=self.run_id, task_id="features", map_index=map_index)
        with Session(self.engine) as session:
            get_state_backend().set(scope, key, text, session=session)
            session.commit()

    def become(self, state: str | None, **changes: Any) -> None:
        """Change the state and other values of the task instance."""
        instances = _table("task_instance")
        with self.engine.begin() as connection:
            connection.execute(update(instances).where(instances.c.id == self.ti_id).values(state=state, **changes))


def add_dag(engine: Engine, dag_id: str) -> None:
    """Insert a Dag."""
    with engine.begin() as connection:
        remove_dag(engine, dag_id)
        connection.execute(insert(_table("dag_bundle")).values(name=f"bundle-of-{dag_id}", active=True))
        limits = {"max_active_tasks": 1, "max_consecutive_failed_dag_runs": 0, "has_task_concurrency_limits": False}
        connection.execute(insert(_table("dag")).values(dag_id=dag_id, bundle_name=f"bundle-of-{dag_id}", **limits))


def remove_dag(engine: Engine, dag_id: str) -> None:
    """Delete a Dag."""
    with engine.begin() as connection:
        connection.execute(delete(_table("dag")).where(_table("dag").c.dag_id == dag_id))
        bundles = _table("dag_bundle")
        connection.execute(delete(bundles).where(bundles.c.name == f"bundle-of-{dag_id}"))


def write_dag(engine: Engine, dag: Any) -> None:
    """Insert a Dag as the Dag processor does, serialized."""
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.serialization.definitions.dag import SerializedDAG
    from airflow.serialization.serialized_objects import LazyDeserializedDAG
    from sqlalchemy.orm import Session

    bundle = f"bundle-of-{dag.dag_id}"
    with Session(engine) as session:
        session.execute(insert(_table("dag_bundle")).values(name=bundle, active=True))
        serialized = LazyDeserializedDAG.from_dag(dag)
        SerializedDAG.bulk_write_to_db(bundle, None, [serialized], session=session)
        SerializedDagModel.write_dag(serialized, bundle_name=bundle, session=session)
        session.commit()


def add_run(engine: Engine, dag_id: str, run_id: str, conf: dict[str, Any]) -> None:
    """Insert a run of a Dag."""
    from airflow.models.dagrun import DagRun
    from sqlalchemy.orm import Session

    with Session(engine) as session:
        session.add(DagRun(dag_id=dag_id, run_id=run_id, run_type="manual", run_after=datetime.now(UTC), conf=conf))
        session.commit()


def _table(name: str) -> Any:
    from airflow.models import import_all_models
    from airflow.models.base import Base

    import_all_models()
    return Base.metadata.tables[name]
