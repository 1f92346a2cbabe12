from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stack.running import RunningStack, running_stack


@pytest.fixture(scope="package")  # gone when other tests want the machine
def stack() -> Iterator[RunningStack]:
    """Not below pytest's own folder, which another user, as which root runs PostgreSQL, cannot reach."""
    with tempfile.TemporaryDirectory(prefix="statecheck-stack-") as folder:
        Path(folder).chmod(0o711)
        with running_stack(Path(folder, "running")) as running:
            yield running
