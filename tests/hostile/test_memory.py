"""Memory of real processes that read the files of hostile jobs: at most 300 MiB above idle."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.json_text import MOST_VALUES
from airflow_provider_statecheck.storage.metadata_file import LARGEST_METADATA
from tests.hostile.odd_values import body_of, put, sealed
from tests.sqlite_rows import new_engine
from tests.unit.written_stage import WrittenStage, local_path

MOST_KIB = 300 * 1024


class HostileJobs:
    """Jobs whose files are as large as readers accept, or larger, in rows that name them as they are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engine = new_engine(folder / "state.db")
        self.stage = WrittenStage(CheckpointStorage.open(str(folder / "base")), store=SqlJobStore(self.engine))

    def environment(self) -> dict[str, str]:
        """Return the environment of an Airflow that knows these jobs."""
        return {
            **os.environ,
            "AIRFLOW_HOME": str(self.folder / "home"),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.folder}/state.db",
            "AIRFLOW__STATECHECK__CHECKPOINT_DIR": str(self.folder / "base"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        }

    def add(self, job: str, change: Callable[[Any], Any], numbers: tuple[int, ...] = (3,)) -> None:
        """Let a job write metadata with other values, and acknowledge it."""
        self.stage.run(job)
        for number in numbers:
            path = self.metadata_of(job, number)
            data = sealed(json.dumps(change(body_of(path.read_bytes())), separators=(",", ":")).encode())
            path.write_bytes(data)
            self._acknowledge(job, number, data)

    def metadata_of(self, job: str, number: int) -> Path:
        return local_path(f"{self.stage.storage.base_uri}/{job_id_of(job)}/chk-{number}/_metadata")

    def _acknowledge(self, job: str, number: int, data: bytes) -> None:
        values = {"size": len(data), "digest": hashlib.sha256(data).hexdigest(), "job": job_id_of(job), "id": number}
        changed = "SET metadata_size = :size, metadata_sha256 = :digest WHERE job_id = :job AND checkpoint_id = :id"
        with self.engine.begin() as connection:
            connection.execute(text(f"UPDATE statecheck_checkpoint {changed}"), values)


def many_snapshots(body: Any) -> Any:
    """Return metadata with as many snapshots as are read."""
    [handle] = body["snapshots"]
    text = json.dumps(handle)
    count = (MOST_VALUES - 1000) // (1 + sum(map(text.count, ",[{")))
    return body | {"snapshots": [handle | {"name": f"step {i}", "uri": f"{handle['uri']}-{i}"} for i in range(count)]}


def many_values(body: Any) -> Any:
    """Return metadata with as many values as are read, each an object of its own."""
    return body | {"state": {"kind": "inline", "value": {"a": [[]] * (MOST_VALUES // 2 - 1000)}}}


def long_text(body: Any) -> Any:
    """Return metadata of the largest size."""
    return body | {"state": {"kind": "inline", "value": {"a": "é" * (LARGEST_METADATA // 6 - 10_000)}}}


KINDS = {"snapshots": many_snapshots, "values": many_values, "text": long_text}


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[HostileJobs]:
    made = HostileJobs(tmp_path)
    yield made
    made.engine.dispose()


def peaks(jobs: HostileJobs, *commands: list[str]) -> tuple[int, int]:
    """Return the memory in KiB that commands took above idle, and that of the largest process that they started."""
    given = json.dumps([["statecheck", "jobs"], *(["statecheck", *each] for each in commands)])
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile.measured_commands", given],
        env=jobs.environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    _, own, children = done.stdout.splitlines()[-1].split()
    return int(own), int(children)


def add_files(jobs: HostileJobs, kinds: list[str]) -> None:
    """Add jobs with the largest metadata that is read, in all of their checkpoints, and jobs with files that are none."""
    for number, kind in enumerate(kinds):
        jobs.add(f"{kind} {number}", KINDS[kind], numbers=(1, 2, 3) if number % 2 else (3,))
    for number, kind in enumerate(["huge", "endless", "many values", "pipe"]):
        jobs.stage.run(f"orphans {kind}")
        put(kind, local_path(f"{jobs.stage.storage.base_uri}/{job_id_of(f'orphans {kind}')}/_orphans"))
        jobs.stage.run(f"metadata {kind}")
        put(kind, jobs.metadata_of(f"metadata {kind}", 1 + number % 3))


def test_collection_takes_little_memory_for_the_largest_files_of_several_jobs(jobs: HostileJobs) -> None:
    add_files(jobs, ["text"] * 4)
    own, children = peaks(jobs, ["gc", "--all"])
    assert max(own, children) < MOST_KIB, (own // 1024, children // 1024)


@pytest.mark.soak
@pytest.mark.parametrize("command", ["recover", "gc", "prune", "verify"])
def test_maintenance_takes_little_memory_for_the_largest_files_of_any_kind(jobs: HostileJobs, command: str) -> None:
    add_files(jobs, [*KINDS, "snapshots", "snapshots"])
    of_all = {
        "recover": [["recover", str(jobs.folder / "base"), "--dry-run"]],
        "gc": [["gc", "--all", "--dry-run", "--quarantine"], ["gc", "--all"]],
        "prune": [["prune", "--older-than", "30d", "--yes"]],
        "verify": [["verify", f"{kind} {number}"] for number, kind in enumerate(KINDS)],
    }
    own, children = peaks(jobs, *of_all[command])
    assert max(own, children) < MOST_KIB, (own // 1024, children // 1024)
