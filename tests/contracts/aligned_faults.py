"""Faults by number at every durable step of an aligned checkpoint: each transition, each write and each delete."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from airflow_provider_statecheck.checkpoint.aligned.rows import CoordinatorRows
from airflow_provider_statecheck.exceptions import CommitStateUnknownError, StorageError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

_STORAGE_STEPS = ("write_bytes", "copy_file", "copy_directory", "delete_file", "delete_directory")
_READS = ("outcome", "owns", "describe", "checkpoint")


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


class FaultyRows:
    """Rows whose transitions fail as planned."""

    def __init__(self, rows: CoordinatorRows, plan: StepPlan) -> None:
        self._rows = rows
        self._plan = plan

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._rows, name)
        return call if name in _READS else counted(self._plan, call, CommitStateUnknownError)


class FaultyFiles:
    """A storage whose writes and deletes fail as planned."""

    def __init__(self, storage: CheckpointStorage, plan: StepPlan) -> None:
        self._storage = storage
        self._plan = plan

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._storage, name)
        return counted(self._plan, attribute, StorageError) if name in _STORAGE_STEPS else attribute

    def allowing(self, *uris: str | None, **options: Any) -> FaultyFiles:
        """Return one that reads in more places and fails as planned."""
        return FaultyFiles(self._storage.allowing(*uris, **options), self._plan)


def counted(plan: StepPlan, call: Callable[..., Any], error: type[Exception]) -> Callable[..., Any]:
    """Return a call that is a step of a plan."""

    def step(*args: Any, **kwargs: Any) -> Any:
        fails_after = plan.before(error)
        result = call(*args, **kwargs)
        if fails_after:
            plan.fail(error)
        return result

    return step
