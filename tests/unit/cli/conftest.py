from __future__ import annotations

import io
import json
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

import pytest

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.fencing import UnknownLiveness
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.cli import (
    maintenance_commands,
    savepoint_commands,
    state_commands,
    uninstall_command,
)
from airflow_provider_statecheck.cli.definition import get_statecheck_commands
from airflow_provider_statecheck.maintenance.job_restore import JobRestoring
from airflow_provider_statecheck.maintenance.job_savepoints import WholeJobSavepoints
from airflow_provider_statecheck.maintenance.recover import JobRecovery
from airflow_provider_statecheck.maintenance.rewind import JobRewinding
from airflow_provider_statecheck.metadata.provider_tables import ProviderTables
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.messages import ManualClock
from tests.sqlite_rows import new_engine
from tests.unit.written_stage import WrittenStage


@dataclass
class Outcome:
    """What a command gave."""

    status: int
    out: str
    err: str


Run = Callable[..., Outcome]


def rows(outcome: Outcome) -> list[dict[str, Any]]:
    """Return the rows of a command that was run with ``--output json``."""
    found: list[dict[str, Any]] = json.loads(outcome.out)
    return found


class Terminal(io.StringIO):
    """Terminal at which a user has typed an answer."""

    def isatty(self) -> bool:
        return True


class InterruptedTerminal(Terminal):
    """Terminal at which a user presses Ctrl-C."""

    def readline(self, *_: Any) -> NoReturn:
        raise KeyboardInterrupt


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WrittenStage]:
    """Rows in a database and bytes in files, which the commands work on."""
    engine, clock = new_engine(tmp_path / "state.db"), ManualClock()
    store = SqlJobStore(engine, clock)
    stage = WrittenStage(CheckpointStorage.open(str(tmp_path / "base")), clock, store)
    times = count()
    taking = WholeJobSavepoints(
        rows=AlignedCheckpoints(store),
        maintenance=stage.maintenance,
        savepoints=stage.savepoints,
        open_storage=CheckpointStorage.open,
        directory=f"file://{tmp_path}/savepoints",
        # Time passes in steps of its own while a command waits.
        pause=lambda seconds: None,
        monotonic=lambda: float(next(times)),
    )
    for module in (maintenance_commands, savepoint_commands):
        monkeypatch.setattr(module, "maintenance_gateway", lambda: stage.maintenance)
        monkeypatch.setattr(module, "job_savepoints", lambda **_: taking)
    for module in (maintenance_commands, savepoint_commands, state_commands):
        monkeypatch.setattr(module, "pointer_storage_opener", lambda conn_id, *given: CheckpointStorage.open)
    monkeypatch.setattr(uninstall_command, "maintenance_gateway", lambda: stage.maintenance)
    monkeypatch.setattr(uninstall_command, "provider_tables", lambda: ProviderTables(engine))
    for module in (maintenance_commands, state_commands, uninstall_command):
        monkeypatch.setattr(module, "guarded_storage_opener", lambda conn_id, *given: CheckpointStorage.open)
    monkeypatch.setattr(savepoint_commands, "savepoint_gateway", lambda: stage.savepoints)
    monkeypatch.setattr(savepoint_commands, "configured_savepoint_dir", lambda: f"file://{tmp_path}/savepoints")
    monkeypatch.setattr(state_commands, "airflow_gateway", lambda conn_id: stage.coordinator)
    monkeypatch.setattr(state_commands, "maintenance_gateway", lambda: stage.maintenance)
    monkeypatch.setattr(maintenance_commands, "job_rows", lambda: store)
    monkeypatch.setattr(maintenance_commands, "job_recovery", lambda: JobRecovery(store))
    monkeypatch.setattr(maintenance_commands, "job_rewinding", lambda: JobRewinding(store, UnknownLiveness()))
    monkeypatch.setattr(savepoint_commands, "restore_gateway", lambda: JobRestoring(store, UnknownLiveness()))
    yield stage
    engine.dispose()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command as Airflow does, by what its own parser makes of the arguments."""

    def run(*arguments: str) -> Outcome:
        capsys.readouterr()
        status = 0
        try:
            args = parse(*arguments)
            args.func(args)
        except SystemExit as end:
            status = int(end.code or 0)
        return Outcome(status, *capsys.readouterr())

    return run


def parse(*arguments: str) -> Namespace:
    """Parse arguments with the parser that Airflow makes of the declaration."""
    import argparse

    from airflow.cli.cli_parser import _add_command

    parser = argparse.ArgumentParser("airflow")
    subparsers: Any = parser.add_subparsers(dest="subcommand", required=True)
    for command in get_statecheck_commands():
        _add_command(subparsers, command)
    return parser.parse_args(["statecheck", *arguments])


@pytest.fixture
def finished(stage: WrittenStage) -> WrittenStage:
    """Return a job that has a checkpoint with a snapshot and does not run."""
    attempt = stage.attempt()
    stage.take(attempt, stage.snapshot(attempt, "orders"))
    attempt.finish(AttemptStatus.FINISHED)
    return stage
