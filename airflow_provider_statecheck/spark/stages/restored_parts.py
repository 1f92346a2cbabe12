"""The parts of a stage in the checkpoint that a try restored."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

from airflow_provider_statecheck.checkpoint.states.operator_state import OperatorState
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.restore import RestoredStage
from airflow_provider_statecheck.state.schemas import OperatorSchemas, decode_schemas
from airflow_provider_statecheck.storage.borrowed_states import own_borrowed
from airflow_provider_statecheck.storage.state_codec import decode_state
from airflow_provider_statecheck.storage.views.state_files import read_state

STATE_KEY = "stage"
"""Under which a checkpoint's small values hold those of a stage."""
SOURCE, SINK = "source", "sink"
"""Parts of which the driver alone has state."""


class RestoredParts:
    """
    Reads a checkpoint of a stage; of a fresh start there is nothing in it.

    The checkpoint may be a savepoint of a stage with another uid; then its functions are known by their own part of the uid.

    :param attempt: The registered try.
    :param restored: What it restored.
    """

    def __init__(self, attempt: StageAttempt, restored: RestoredStage | None) -> None:
        self._attempt = attempt
        self._restored = restored

    @property
    def checkpoint_id(self) -> int | None:
        """Return which checkpoint it is; ``None`` for a fresh start."""
        return None if self._restored is None else self._restored.checkpoint.checkpoint_id

    @property
    def own_checkpoint_id(self) -> int | None:
        """
        Return the checkpoint of this very operator at which the state was taken; a savepoint is a copy of one.

        It is ``None`` for a fresh start, and for what was taken of another job or of a stage with another uid.
        """
        if self._restored is None:
            return None
        document, attempt = self._restored.document, self._attempt.grant.attempt
        is_own = (document.job_id, document.operator_id) == (attempt.job_id, attempt.operator_id)
        return int(self._small_values.get("checkpoint", document.checkpoint_id)) if is_own else None

    @property
    def own_epoch(self) -> int | None:
        """Return the attempt of this operator that took it, ``None`` where :attr:`own_checkpoint_id` is."""
        return None if self._restored is None or self.own_checkpoint_id is None else self._restored.document.epoch

    @property
    def run(self) -> str | None:
        """Return the run that took the checkpoint."""
        run: str | None = self._small_values.get("run")
        return run

    @property
    def now_ms(self) -> int | None:
        """Return the time by which state expired in that run, in milliseconds."""
        now_ms = self._small_values.get("now_ms")
        return None if now_ms is None else int(now_ms)

    @property
    def cost_seconds(self) -> tuple[float, ...]:
        """Return what a checkpoint cost at that time, as far as it was known."""
        cost = self._small_values.get("cost_seconds")
        return () if cost is None else (float(cost),)

    @property
    def source(self) -> Any:
        """Return what the source saved."""
        return self._value(SOURCE)

    @property
    def open_commits(self) -> Any:
        """Return what the sink had not committed, and need not be told that it did."""
        return self._value(SINK)

    @cached_property
    def functions(self) -> tuple[OperatorState, ...]:
        """
        Return the state of the functions; files that belong to somebody else are copied first.

        :raises StorageError: if one cannot be copied.
        """
        states = tuple(s for s in self._states if s.uid not in (self.uid_of(SOURCE), self.uid_of(SINK)))
        if self._restored is None or not self._restored.checkpoint.properties.unclaimed:
            return states
        return own_borrowed(self._attempt.storage, states, self._attempt.grant.attempt).states

    def schemas_of(self, state: OperatorState) -> OperatorSchemas:
        """
        Return the types of a function's state.

        :raises CorruptStateError: if they are not what was written.
        """
        if state.coordinator_state is None:
            return OperatorSchemas()
        return decode_schemas(json.loads(read_state(self._attempt.storage, state.coordinator_state)))

    def uid_of(self, part: str) -> str:
        """Return the uid that a part of the stage has in the checkpoint."""
        stage = self._attempt.registration.uid if self._restored is None else self._restored.document.uid
        return f"{stage}/{part}"

    def _value(self, part: str) -> Any:
        state = next((s for s in self._states if s.uid == self.uid_of(part)), None)
        if state is None or state.coordinator_state is None:
            return None
        return decode_state(json.loads(read_state(self._attempt.storage, state.coordinator_state)))

    @property
    def _small_values(self) -> dict[str, Any]:
        return {} if self._restored is None else dict(self._restored.state.get(STATE_KEY, {}))

    @property
    def _states(self) -> tuple[OperatorState, ...]:
        return () if self._restored is None else self._restored.document.operator_states
