"""Tasks that run as long as a test says so."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_statecheck.checkpoint.records import AttemptOwner


class RunningTasks:
    """A ``TaskLiveness`` that knows runs by their ids."""

    def __init__(self, run_ids: Iterable[str] = ()) -> None:
        self._run_ids = frozenset(run_ids)

    def let_run(self, *run_ids: str) -> None:
        """Let the tasks of these runs run, and no others."""
        self._run_ids = frozenset(run_ids)

    def is_running(self, owner: AttemptOwner) -> bool:
        """Tell whether the owner's run is one of them."""
        return owner.run_id in self._run_ids
