"""What a process leaves behind after each of its durable steps."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.testing.faults import InProcessPlan


@dataclass(slots=True)
class Observed(InProcessPlan):
    """Plan that calls a function after each call."""

    after: Callable[[], None] = lambda: None

    @override
    def carry_out(self, name: str, call: Callable[[], Any], error: type[Exception]) -> Any:
        try:
            return InProcessPlan.carry_out(self, name, call, error)
        finally:
            self.after()


def rows_in(path: Path) -> list[Any]:
    """
    Return all rows of a SQLite file, without the versions of jobs, which also count the calls that change nothing.
    """
    with closing(sqlite3.connect(path)) as database:
        database.row_factory = sqlite3.Row
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = (dict(row) for table in tables for row in database.execute(f"SELECT * FROM {table}"))
        return [{key: value for key, value in row.items() if key != "version"} for row in rows]


def changing(states: list[Any]) -> list[int]:
    """Return the numbers of the steps, from 1, after which something differs from what the step before has left."""
    return [number for number, state in enumerate(states, 1) if number == 1 or state != states[number - 2]]
