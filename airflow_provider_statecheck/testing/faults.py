"""
Fault injection by call number, for every call of the storage and of the gateway.

A run without a fault counts the calls; further runs then fail at each of them in turn.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.exceptions import CommitStateUnknownError, StateCheckError, StorageError
from airflow_provider_statecheck.gateway.verbs import StageGateway, verbs_of
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

STORAGE_CALLS = (
    "write_bytes",
    "read_bytes",
    "read_range",
    "read_sized",
    "read_verified",
    "list_files",
    "list_directories",
    "delete_file",
    "delete_directory",
)
WRITING_CALLS = ("write_bytes", "copy_file", "copy_directory", "delete_file", "delete_directory")
GATEWAY_CALLS = (
    "register",
    "confirm_restore",
    "trigger",
    "acknowledge",
    "decline",
    "confirm_discards",
    "confirm_commits",
    "finish",
    "describe",
)

READING_CALLS = frozenset(
    {"read_bytes", "read_range", "read_sized", "read_verified", "list_files", "list_directories", "describe"}
)
"""Calls without an effect, for which a lost reply equals an error."""


class FaultMode(StrEnum):
    """The way in which a call fails."""

    ERROR = "error"
    """The call raises and has no effect."""
    KILL = "kill"
    """The process is killed before the call."""
    REPLY_LOST = "reply_lost"
    """The call has its effect and then raises."""
    KILL_AFTER = "kill_after"
    """The process is killed right after the call."""

    @property
    def is_kill(self) -> bool:
        """Whether the process ends."""
        return self in (FaultMode.KILL, FaultMode.KILL_AFTER)


@dataclass(slots=True)
class FaultPlan:
    """
    Plan that counts calls and lets one or several of them fail.

    :param point: The number of the first failing call, from 1; ``None`` for a run without a fault.
    :param mode: The way in which the calls fail.
    :param times: The number of consecutive calls that fail.
    """

    point: int | None = None
    mode: FaultMode = FaultMode.ERROR
    times: int = 1
    calls: list[str] = field(default_factory=list)
    """The names of all calls so far."""

    def carry_out(self, name: str, call: Callable[[], Any], error: type[Exception]) -> Any:
        """Run a call or fail according to the plan."""
        self.calls.append(name)
        if self.point is None or not 0 <= len(self.calls) - self.point < self.times:
            return call()
        return self.fail(name, call, error)

    def fail(self, name: str, call: Callable[[], Any], error: type[Exception]) -> Any:
        """Let a call fail in the mode of the plan."""
        if self.mode is FaultMode.KILL:
            self.kill()
        if self.mode is FaultMode.ERROR:
            raise error(f"Injected fault before {name}, call {len(self.calls)}.")
        call()
        if self.mode is FaultMode.KILL_AFTER:
            self.kill()
        raise error(f"Injected fault after {name}, call {len(self.calls)}.")

    def kill(self) -> None:
        """End the process."""
        os.kill(os.getpid(), signal.SIGKILL)


class Killed(BaseException):
    """The end of a process, within the process of the test."""


@dataclass(slots=True)
class InProcessPlan(FaultPlan):
    """Plan that raises :class:`Killed` instead of killing the process; no later call has an effect."""

    is_dead: bool = False

    @override
    def carry_out(self, name: str, call: Callable[[], Any], error: type[Exception]) -> Any:
        if self.is_dead:
            raise Killed(name)
        return FaultPlan.carry_out(self, name, call, error)

    @override
    def kill(self) -> None:
        self.is_dead = True
        raise Killed


class Counted:
    """Proxy that runs the named methods of another object through a plan."""

    def __init__(self, target: Any, plan: FaultPlan, names: Iterable[str], error: type[StateCheckError]) -> None:
        self._target = target
        self._plan = plan
        self._names = frozenset(names)
        self._error = error

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._target, name)
        if name not in self._names:
            return attribute

        def counted(*args: Any, **kwargs: Any) -> Any:
            return self._plan.carry_out(name, lambda: attribute(*args, **kwargs), self._error)

        return counted


class _CountedStorage(Counted):
    def __reduce__(self) -> Any:
        return self._target.__reduce__()  # a plan stays in its process

    def allowing(self, *uris: str | None, **options: Any) -> _CountedStorage:
        """Return a storage with further readable locations and the same plan."""
        return self._with(self._target.allowing(*uris, **options))

    def allowing_own(self, uri: str) -> _CountedStorage:
        """Return a storage with a directory of this process and the same plan."""
        return self._with(self._target.allowing_own(uri))

    def _with(self, wider: CheckpointStorage) -> _CountedStorage:
        return self if wider is self._target else _CountedStorage(wider, self._plan, self._names, self._error)


def faulty_storage(storage: CheckpointStorage, plan: FaultPlan, calls: Iterable[str] = STORAGE_CALLS) -> Any:
    """Return a storage whose calls run through the plan; injected errors are ``StorageError``."""
    return _CountedStorage(storage, plan, calls, StorageError)


def faulty_gateway(gateway: StageGateway, plan: FaultPlan) -> Any:
    """Return a gateway whose calls run through the plan; injected errors are ``CommitStateUnknownError``."""
    return Counted(gateway, plan, GATEWAY_CALLS, CommitStateUnknownError)


def faulty_rows(rows: Any, plan: FaultPlan, interface: type = AlignedCheckpoints) -> Any:
    """Return rows whose changes run through the plan; injected errors are ``CommitStateUnknownError``."""
    changes = {name for name, verb in verbs_of(interface, "").items() if not verb.is_read} - {"outcome", "owns"}
    return Counted(rows, plan, changes, CommitStateUnknownError)
