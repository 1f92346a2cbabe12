"""What a task tells the driver besides data; only what winning tasks say arrives."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_statecheck.checkpoint.states.operator_state import OperatorState
from airflow_provider_statecheck.storage.operator_state_json import decode_operator_state, encode_operator_state


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """The end of one task of one vertex."""

    vertex: int
    subtask: int
    states: tuple[OperatorState, ...] = ()
    """Of the functions, each with this subtask alone; of one without state there is none."""
    committables: tuple[dict[str, Any], ...] = ()
    """What the sink has staged."""
    keys: int = 0
    """How many keys declared aggregates had in them, summed over what was worked on at once."""
    rows: int = 0
    """How many elements came in."""
    new_bytes: int = 0
    """How many bytes of state were written."""

    def encode(self) -> bytes:
        """Return the report as JSON."""
        values = {
            "vertex": self.vertex,
            "subtask": self.subtask,
            "states": [encode_operator_state(state, str) for state in self.states],
            "committables": list(self.committables),
            "rows": self.rows,
            "keys": self.keys,
            "new_bytes": self.new_bytes,
        }
        return json.dumps(values, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> TaskReport:
        """Return the report that was encoded."""
        values = json.loads(data)
        states = tuple(decode_operator_state(state, str) for state in values["states"])
        return cls(**{**values, "states": states, "committables": tuple(values["committables"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotMoment:
    """Which checkpoint the state of an increment is meant for."""

    checkpoint_id: int
    timestamp: int
    """Milliseconds since 1970."""
    is_end_of_input: bool = field(default=False)
