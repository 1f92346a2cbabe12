"""A two-phase sink of a user's own whose steps inside a commit can be told to fail."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from typing_extensions import override

from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.spark.sinks.commits.commit_files import CommitFiles
from airflow_provider_statecheck.testing.faults import FaultPlan
from tests.unit.spark.sinks.two_phase.folder_sink import FolderSink


class CountedFolderSink(FolderSink):
    """Counts what its driver does; the plan stays there."""

    def __init__(self, folder: Path, plan: FaultPlan) -> None:
        super().__init__(folder)
        self._plan: FaultPlan | None = plan

    @override
    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_plan": None}

    @override
    def commit_transaction(self, transaction: Mapping[str, Any]) -> None:
        assert self._plan is not None
        call = super().commit_transaction
        self._plan.carry_out("sink.commit_transaction", lambda: call(transaction), StorageError)

    @override
    def abort_transaction(self, transaction: Mapping[str, Any]) -> None:
        call = super().abort_transaction
        if self._plan is None:  # in a task
            call(transaction)
        else:
            self._plan.carry_out("sink.abort_transaction", lambda: call(transaction), StorageError)


def make(work: Path, plan: FaultPlan) -> FolderSink:
    """Return the sink; writing its log is a step too."""
    write = CommitFiles.write

    def counted(*args: Any) -> None:
        plan.carry_out("sink.write_log", lambda: write(*args), StorageError)

    setattr(CommitFiles, "write", counted)  # noqa: B010 - for good: the process is that of one driver
    return CountedFolderSink(work / "output", plan)
