from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.unit.storage.file_merging.driving import Driver

Make = Callable[..., Driver]


@pytest.fixture
def make(storage: CheckpointStorage) -> Make:
    """Makes managers over each kind of storage."""
    return lambda **settings: Driver.over(storage, **settings)


@pytest.fixture
def make_local(local: CheckpointStorage) -> Make:
    """Makes managers over local files, which grow."""
    return lambda **settings: Driver.over(local, **settings)


@pytest.fixture
def make_collected(memory: CheckpointStorage) -> Make:
    """Makes managers over a storage whose files exist when they are closed."""
    return lambda **settings: Driver.over(memory, **settings)
