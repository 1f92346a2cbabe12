"""
Add up the delays of a year twice, by airport and by carrier, and checkpoint both at the same flight.

The task executes two operators in its own process, without Spark, and leads their checkpoints. An operator coordinator
assigns them one month after the other. After each month, one checkpoint contains the state of both operators and the
position of the coordinator. Fail the task at any point: the retry restores all three and repeats the month that failed.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any

from airflow.sdk import dag, task

from airflow_provider_statecheck.checkpoint.ids import new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, JobStatus
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    DistributionMode,
    OperatorState,
    OperatorStateHandle,
    OperatorStateMeta,
    OperatorSubtaskState,
)
from airflow_provider_statecheck.checkpoint.states.matching import RestoreTarget

# [START howto_aligned_checkpoints]
from airflow_provider_statecheck.flink.components import AcknowledgeMessage, DeclineMessage
from airflow_provider_statecheck.flink.coordinator import CheckpointCoordinator
from airflow_provider_statecheck.flink.plan import ExecutionStatus
from airflow_provider_statecheck.hooks.statecheck import StatecheckHook

FLIGHTS, REPORT = Path("data/flights/flights.csv"), Path("data/delays.json")
ONE = OperatorStateMeta((0,), DistributionMode.SPLIT_DISTRIBUTE)


class Delays:
    """An operator that adds up the minutes of delay by a column of the flights."""

    status, name, parallelism, max_parallelism = ExecutionStatus.RUNNING, "", 1, 128
    coordinator: CheckpointCoordinator

    def __init__(self, uid: str, by: str, minutes: str) -> None:
        self.uid, self.operator_id, self.attempt_id = uid, operator_id_of(uid), f"{uid}/{new_key()}"
        self.restore_target = RestoreTarget(operator_id=self.operator_id, uid=uid, parallelism=1, max_parallelism=128)
        self.by, self.minutes = by, minutes
        self.total = Counter[str]()

    def add(self, flights: list[dict[str, str]]) -> None:
        """Add the flights of a month."""
        for flight in flights:
            if flight[self.minutes] != "NA":
                self.total[flight[self.by]] += max(0, int(flight[self.minutes]))

    def trigger_checkpoint(self, checkpoint_id: int, timestamp: datetime, options: Any) -> None:
        """Acknowledge a checkpoint with the state, or decline it before the first month."""
        if not self.total:
            self.coordinator.receive_decline_message(
                DeclineMessage(job_id=self.coordinator.job_id, attempt_id=self.attempt_id, checkpoint_id=checkpoint_id)
            )
            return
        data = json.dumps(self.total).encode()
        handle = OperatorStateHandle((("delays", ONE),), ByteStreamStateHandle(f"{self.uid}/{checkpoint_id}", data))
        state = OperatorState(
            operator_id=self.operator_id,
            uid=self.uid,
            parallelism=1,
            max_parallelism=128,
            subtask_states={0: OperatorSubtaskState(managed_operator=(handle,))},
        )
        self.coordinator.receive_acknowledge_message(
            AcknowledgeMessage(
                job_id=self.coordinator.job_id, attempt_id=self.attempt_id, checkpoint_id=checkpoint_id, state=state
            )
        )

    def set_initial_state(
        self, checkpoint_id: int, subtask_states: Mapping[int, OperatorSubtaskState], *, is_finished: bool
    ) -> None:
        """Restore the state of a checkpoint."""
        [handle] = subtask_states[0].managed_operator
        if isinstance(handle.stream, ByteStreamStateHandle):
            self.total.update(json.loads(handle.stream.data))

    def notify_checkpoint_complete(self, checkpoint_id: int, timestamp: datetime, last_subsumed_id: int) -> None:
        """Do nothing: the state has no effects outside."""

    def notify_checkpoint_aborted(self, checkpoint_id: int, latest_completed_id: int, timestamp: datetime) -> None:
        """Do nothing."""

    def notify_checkpoint_subsumed(self, checkpoint_id: int) -> None:
        """Do nothing."""


class Months:
    """The coordinator of an operator that assigns the months of the flights, as the enumerator of a source does."""

    def __init__(self, uid: str) -> None:
        self.operator_id, self.assigned = operator_id_of(uid), 0
        with FLIGHTS.open(newline="") as file:
            flights = sorted(csv.DictReader(file), key=month_of)
        self.months = [list(each) for _, each in groupby(flights, month_of)]

    def next_month(self) -> list[dict[str, str]]:
        """Return the flights of the next month, an empty list at the end of the year."""
        if self.assigned == len(self.months):
            return []
        self.assigned += 1
        return self.months[self.assigned - 1]

    def checkpoint(self, checkpoint_id: int, result: Future[bytes | None]) -> None:
        """Give the position in the year to the checkpoint."""
        result.set_result(json.dumps(self.assigned).encode())

    def reset_to_checkpoint(self, checkpoint_id: int, state: bytes | None) -> None:
        """Continue after the months that a checkpoint contains."""
        self.assigned = 0 if state is None else json.loads(state)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Do nothing: the position has no effects outside."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Do nothing."""

    def abort_current_triggering(self) -> None:
        """Do nothing: the position was given at once."""


def month_of(flight: dict[str, str]) -> int:
    return int(flight["month"])


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    doc_md=__doc__,
    tags=["example", "statecheck"],
)
def example_aligned_checkpoints() -> None:
    @task(retries=2, retry_delay=timedelta(seconds=1))
    def delays() -> None:
        operators = [Delays("by_airport", "origin", "dep_delay"), Delays("by_carrier", "carrier", "arr_delay")]
        months = Months("by_airport")
        with StatecheckHook().coordinator(operators, operator_coordinators=[months]) as coordinator:
            for operator in operators:
                operator.coordinator = coordinator
            coordinator.restore_latest_checkpointed_state(operators)
            while flights := months.next_month():
                for operator in operators:
                    operator.add(flights)
                coordinator.trigger_checkpoint(CheckpointProperties.for_checkpoint()).result(60)
            REPORT.write_text(json.dumps({each.uid: each.total for each in operators}))
            coordinator.shutdown_store(JobStatus.FINISHED)

    delays()


# [END howto_aligned_checkpoints]

example_aligned_checkpoints()
