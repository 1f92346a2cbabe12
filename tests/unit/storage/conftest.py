from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.unit.written_stage import WrittenStage


@pytest.fixture
def local(tmp_path: Path) -> CheckpointStorage:
    return CheckpointStorage.open(str(tmp_path / "base"))


@pytest.fixture
def memory() -> Iterator[CheckpointStorage]:
    """The memory filesystem is one for the whole process, so each test has a root of its own in it."""
    root = f"memory://{uuid.uuid4().hex[:12]}"
    yield CheckpointStorage.open(f"{root}/base")
    filesystem = MemoryFileSystem()
    if filesystem.exists(root):
        filesystem.rm(root, recursive=True)


@pytest.fixture(params=["local", "memory"])
def storage(request: pytest.FixtureRequest) -> CheckpointStorage:
    """Each kind of storage: with hard links, and with whole objects only."""
    found: CheckpointStorage = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def job(storage: CheckpointStorage) -> str:
    """The directory of a job."""
    return f"{storage.base_uri}/{'0123456789abcdef' * 2}"


@pytest.fixture
def stage(local: CheckpointStorage) -> WrittenStage:
    return WrittenStage(local)
