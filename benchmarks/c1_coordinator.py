"""
C1: a checkpoint through the coordinator on PostgreSQL, compared with the minimal transactions of such a protocol.

The peer executes the transactions with psycopg: lock the job, allocate the id and insert the pending row; lock the job,
complete the row and subsume the oldest. It does not check epochs or derive effects.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.messages import TriggerCheckpoint
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.metadata.tables import METADATA
from benchmarks.measure import Result, in_turn, median_ratio, medians, seconds
from benchmarks.postgres import postgres
from tests.messages import make_acknowledgement, make_registration

GOAL = 1 / 3
_PEER_TABLES = """
CREATE TABLE peer_job (id int PRIMARY KEY, version bigint, next_id bigint, seen_at timestamptz);
CREATE TABLE peer_checkpoint (job int, id bigint, status text, location text, triggered_at timestamptz,
    completed_at timestamptz, metadata_uri text, metadata_sha256 text, state_size bigint, PRIMARY KEY (job, id));
INSERT INTO peer_job VALUES (1, 0, 1, now());
"""


def run(work: Path, *, quick: bool) -> list[Result]:
    """Measure rounds of checkpoints, both sides alternately on one server."""
    rounds = 20 if quick else 200
    with tempfile.TemporaryDirectory(dir=work) as folder, postgres(Path(folder)) as url:
        ours, peer = _Coordinator(url), _Bare(url)
        pairs = in_turn(
            lambda: seconds(lambda: ours.checkpoints(rounds)) / rounds * 1000,
            lambda: seconds(lambda: peer.checkpoints(rounds)) / rounds * 1000,
            3 if quick else 7,
        )
        ours.close()
        peer.close()
    mine, theirs = medians(pairs)
    return [
        Result(
            id="C1",
            case="trigger, acknowledge, complete, replace vs bare transactions",
            ours=mine,
            peer=theirs,
            unit="ms",
            ratio=median_ratio(pairs),
            goal=GOAL,
            pairs=pairs,
            sizes={"checkpoints per reading": rounds, "operators": 1},
        )
    ]


class _Coordinator:
    def __init__(self, url: str) -> None:
        self._engine = create_engine(url)
        METADATA.create_all(self._engine)
        self._coordinator = AttemptCoordinator(SqlJobStore(self._engine))
        self._attempt = self._coordinator.register(make_registration()).attempt

    def checkpoints(self, count: int) -> None:
        """Complete ``count`` checkpoints and confirm their discards like a driver."""
        for _ in range(count):
            pending = self._coordinator.trigger(TriggerCheckpoint(attempt=self._attempt, request_key=new_key()))
            reply = self._coordinator.acknowledge(make_acknowledgement(self._attempt, pending.checkpoint_id))
            discarded = tuple(c.checkpoint_id for c in reply.effects.discards)
            if discarded:
                self._coordinator.confirm_discards(self._attempt, discarded)

    def close(self) -> None:
        self._engine.dispose()


class _Bare:
    def __init__(self, url: str) -> None:
        self._engine = create_engine(url)
        self._connection: Any = self._engine.raw_connection()
        self._cursor = self._connection.cursor()
        self._cursor.execute(_PEER_TABLES)
        self._connection.commit()

    def checkpoints(self, count: int) -> None:
        """Complete ``count`` checkpoints and confirm their discards."""
        for _ in range(count):
            checkpoint_id = self._trigger()
            self._complete(checkpoint_id)
            self._confirm(checkpoint_id - 2)

    def _lock(self) -> None:
        self._cursor.execute("UPDATE peer_job SET version = version + 1, seen_at = now() WHERE id = 1")

    def _trigger(self) -> int:
        self._lock()
        self._cursor.execute("UPDATE peer_job SET next_id = next_id + 1 WHERE id = 1 RETURNING next_id - 1")
        [(checkpoint_id,)] = self._cursor.fetchall()
        values = (checkpoint_id, f"memory://base/chk-{checkpoint_id}")
        self._cursor.execute("INSERT INTO peer_checkpoint VALUES (1, %s, 'pending', %s, now())", values)
        self._connection.commit()
        return int(checkpoint_id)

    def _complete(self, checkpoint_id: int) -> None:
        self._lock()
        self._cursor.execute(
            "UPDATE peer_checkpoint SET status = 'completed', completed_at = now(), metadata_uri = %s, "
            "metadata_sha256 = %s, state_size = 100 WHERE job = 1 AND id = %s AND status = 'pending'",
            (f"memory://base/chk-{checkpoint_id}/_metadata", "0" * 64, checkpoint_id),
        )
        self._cursor.execute(
            "UPDATE peer_checkpoint SET status = 'subsumed' WHERE job = 1 AND id <= %s AND status = 'completed'",
            (checkpoint_id - 2,),
        )
        self._connection.commit()

    def _confirm(self, subsumed: int) -> None:
        self._lock()
        self._cursor.execute("UPDATE peer_checkpoint SET status = 'gone' WHERE job = 1 AND id = %s", (subsumed,))
        self._connection.commit()

    def close(self) -> None:
        self._connection.close()
        self._engine.dispose()
