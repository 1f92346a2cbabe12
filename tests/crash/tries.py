"""Tries of a pipeline in processes that can be killed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import job_id_of, job_uri
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.metadata.unit_of_work import open_engine
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument, DocumentCache
from airflow_provider_statecheck.storage.orphans import sweep

Share = TypeVar("Share")
SIGKILLED = -9
LIMIT_SECONDS = 120


@dataclass
class Tries:
    """Runs tries of a pipeline in children of the zygote."""

    process: subprocess.Popen[str]
    work: Path

    @classmethod
    def start(cls, work: Path, jvm: dict[str, str]) -> Tries:
        """
        Start a zygote.

        :param jvm: Environment with which its children use a JVM.
        """
        root = Path(__file__).parents[2]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
            env={**os.environ, **jvm, "PYTHONPATH": str(root)},
        )
        return cls(process, work)

    def close(self) -> None:
        """End the zygote."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def run(self, **command: Any) -> int:
        """Run one try and return its exit status."""
        (self.work / "result.json").unlink(missing_ok=True)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"work": str(self.work), **command}) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def outcome(self) -> dict[str, Any]:
        """Return what the last try gave."""
        return dict(json.loads((self.work / "result.json").read_text()))

    def reset(self, prepared: Path | None) -> None:
        """Begin with an empty folder, or with one as a failed try left it; always under one path, which rows name."""
        shutil.rmtree(self.work, ignore_errors=True)
        if prepared is None:
            self.work.mkdir()
        else:
            shutil.copytree(prepared, self.work)

    def error(self) -> str:
        """Return why the last try failed."""
        found = (path for path in (self.work / "error.txt", self.work / "try.log") if path.exists())
        return next((path.read_text() for path in found), "no error")

    def view(self, job: str) -> JobView:
        """Return the rows of a job."""
        engine = open_engine(f"sqlite:///{self.work}/state.db")
        try:
            return AttemptCoordinator(SqlJobStore(engine)).describe(job_id_of(job))
        finally:
            engine.dispose()

    def live(self, job: str) -> list[CheckpointRecord]:
        """Return the checkpoints of a job that a restore may choose, oldest first."""
        return [each for each in self.view(job).checkpoints if each.is_restorable]

    @property
    def storage(self) -> CheckpointStorage:
        """The storage of the checkpoints."""
        return CheckpointStorage.open(str(self.work / "checkpoints"))

    def check_bytes(self, job: str, load: Callable[[CheckpointStorage, CheckpointRecord], CheckpointDocument]) -> None:
        """No live row names a missing file; after a sweep no directory is there that no live row names."""
        storage, view, live = self.storage, self.view(job), self.live(job)
        assert live, "the stage has ended and its last checkpoint is retained"
        documents = [load(storage, checkpoint) for checkpoint in live]
        sweep(storage, view, DocumentCache(lambda _: storage))
        root = job_uri(storage.base_uri, view.job.job_id)
        named = {f"chk-{c.checkpoint_id}" for c in live}
        named |= {handle.uri.removeprefix(f"{root}/") for document in documents for handle in document.snapshots}
        assert {str(Path(name).parent).removesuffix("/data") for name in storage.list_files(root)} == named


def share(team: list[Tries], work: list[Share], check: Callable[[int, Share], None]) -> None:
    """
    Let a team check something for each of many shares of work, at the same time.

    :param check: Gets the number of the member that checks, and the share.
    """

    def check_all(member: int) -> None:
        for each in work[member :: len(team)]:
            check(member, each)

    with ThreadPoolExecutor(len(team)) as pool:
        for done in [pool.submit(check_all, member) for member in range(len(team))]:
            done.result()


def wait_until(is_reached: Callable[[], bool]) -> None:
    """Wait for something that Spark or another process does."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not is_reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)
