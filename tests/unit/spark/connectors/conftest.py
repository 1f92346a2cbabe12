from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem


@pytest.fixture
def memory_path() -> Iterator[str]:
    """The memory filesystem is one for the whole process, so each test has a root of its own in it."""
    root = f"memory://{uuid.uuid4().hex[:12]}"
    yield f"{root}/table"
    filesystem = MemoryFileSystem()
    if filesystem.exists(root):
        filesystem.rm(root, recursive=True)


@pytest.fixture(params=["local", "memory"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A target on each kind of storage: where files are renamed, and where they are copied."""
    if request.param == "local":
        return f"file://{tmp_path}/table"
    found: str = request.getfixturevalue("memory_path")
    return found
