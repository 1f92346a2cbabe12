"""The tries of a task that submits a driver to a service, without an operator: what is added, and what is relayed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.records import AttemptRecord, AttemptStatus
from airflow_provider_statecheck.hooks.relayed_stage import RelayedStage
from airflow_provider_statecheck.hooks.submitted_stage import DriverAccess
from airflow_provider_statecheck.payloads.additions import Additions
from airflow_provider_statecheck.spark.driver.settings import DriverSettings
from airflow_provider_statecheck.spark.driver.shipped_files import (
    published_package,
    published_stage_application,
    published_wheel,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.messages import make_owner, make_registration
from tests.sqlite_rows import new_store

APPLICATION = Path(__file__).parents[1] / "submit" / "application.py"
LIMIT_SECONDS = 200
RESUMED = ["numbers", "item a", "item b", "item b", "item c"]


@dataclass
class Task:
    """One task whose driver writes below a folder."""

    work: Path
    trouble: str = "none"
    _gateway: Any = field(default_factory=lambda: AttemptCoordinator(new_store()))
    _tries: int = 0

    @property
    def script(self) -> str:
        """Return the URI of the application."""
        return APPLICATION.as_uri()

    @property
    def arguments(self) -> list[str]:
        """Return the arguments of the application."""
        return [str(self.work), self.trouble]

    @contextmanager
    def next_try(self, ends: AttemptStatus = AttemptStatus.FINISHED) -> Iterator[Additions]:
        """Register an attempt, relay the calls of its driver while the block runs, and close it with its end."""
        stage = self._stage()
        additions = Additions(
            mailbox=stage.open_mailbox(),
            package=published_package(self._packages),
            wheel=published_wheel(self._packages),
        )
        with stage.relaying():
            yield additions
        stage.close(ends)

    def of_stage(self, additions: Additions, location: str) -> Additions:
        """Return additions with the application of a stage."""
        return replace(additions, application=published_stage_application(self._packages), arguments=(location,))

    def wait_until(self, what: Callable[[], Any]) -> None:
        """Wait until something is so."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while not what():
            assert time.monotonic() < deadline
            time.sleep(0.1)

    @property
    def attempts(self) -> tuple[AttemptRecord, ...]:
        """Return the attempts of the task's operator."""
        return tuple(self._gateway.describe(job_id_of("sales")).attempts)

    @property
    def computed(self) -> list[str]:
        """Return what drivers have computed, over all tries."""
        return (self.work / "computed.log").read_text().splitlines()

    @property
    def imported_from(self) -> str:
        """Return where the last driver has found the package."""
        return (self.work / "package").read_text()

    @property
    def _packages(self) -> CheckpointStorage:
        return CheckpointStorage.open(f"{self.work}/packages")

    def _stage(self) -> RelayedStage:
        self._tries += 1
        storage = CheckpointStorage.open(f"{self.work}/checkpoints")
        owner = make_owner(try_number=self._tries, ti_id=f"try-{self._tries}", label=f"try {self._tries}")
        return RelayedStage(
            DriverAccess("http://nowhere", self._gateway),
            make_registration(storage_base=storage.base_uri, owner=owner),
            DriverSettings(),
            storage=storage,
            patience_seconds=LIMIT_SECONDS,
        )
