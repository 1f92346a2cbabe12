"""Faults by number at every durable step of an aligned checkpoint: each commit, each write and each delete."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.store import JobStore, JobTransaction
from airflow_provider_statecheck.exceptions import CommitStateUnknownError, StorageError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

_STORAGE_STEPS = ("write_bytes", "delete_file", "delete_directory")


class Crash(BaseException):
    """The end of the process, as far as the code that runs can tell."""


class StepFault(StrEnum):
    """How a step fails."""

    CRASH_BEFORE = "crash_before"
    CRASH_AFTER = "crash_after"
    ERROR_BEFORE = "error_before"
    ERROR_AFTER = "error_after"

    @property
    def has_effect(self) -> bool:
        """Tell whether the step is done although it fails."""
        return self in (StepFault.CRASH_AFTER, StepFault.ERROR_AFTER)

    @property
    def is_crash(self) -> bool:
        """Tell whether the process ends."""
        return self in (StepFault.CRASH_BEFORE, StepFault.CRASH_AFTER)


@dataclass
class StepPlan:
    """Counts durable steps and makes one of them fail; after a crash none has any effect."""

    point: int | None = None
    fault: StepFault = StepFault.CRASH_BEFORE
    steps: int = 0
    is_dead: bool = False

    def before(self, error: type[Exception]) -> bool:
        """Begin a step, and tell whether it fails after its effect."""
        if self.is_dead:
            raise Crash
        self.steps += 1
        if self.steps != self.point:
            return False
        if not self.fault.has_effect:
            self.fail(error)
        return True

    def fail(self, error: type[Exception]) -> None:
        """Fail as planned."""
        if self.fault.is_crash:
            self.is_dead = True
            raise Crash
        raise error(f"Injected at step {self.point}.")


class FaultyJobs:
    """Rows whose commits fail as planned."""

    def __init__(self, jobs: JobStore, plan: StepPlan) -> None:
        self._jobs = jobs
        self._plan = plan

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jobs, name)

    @contextmanager
    def transaction(self, job_id: JobId, *, create_as: str | None = None) -> Iterator[JobTransaction]:
        """Begin a transition whose commit counts as a step."""
        with self._jobs.transaction(job_id, create_as=create_as) as tx:
            yield tx
            fails_after = self._plan.before(CommitStateUnknownError)
        if fails_after:
            self._plan.fail(CommitStateUnknownError)


class FaultyFiles:
    """A storage whose writes and deletes fail as planned."""

    def __init__(self, storage: CheckpointStorage, plan: StepPlan) -> None:
        self._storage = storage
        self._plan = plan

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._storage, name)
        return self._counted(attribute) if name in _STORAGE_STEPS else attribute

    def allowing(self, *uris: str | None, **options: Any) -> FaultyFiles:
        """Return one that reads in more places and fails as planned."""
        return FaultyFiles(self._storage.allowing(*uris, **options), self._plan)

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            fails_after = self._plan.before(StorageError)
            result = call(*args, **kwargs)
            if fails_after:
                self._plan.fail(StorageError)
            return result

        return counted
