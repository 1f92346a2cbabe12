"""
The contract of a state backend, as a suite for all of them.

Subclass :class:`StateBackendContract` and give the fixture ``state_backend``; ``storage`` is where snapshots go.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from airflow_provider_statecheck.state.backends.state_backend import StateBackend
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.testing.keyed_access_contract import KeyedAccessContract
from airflow_provider_statecheck.testing.keyed_batch_contract import KeyedBatchContract
from airflow_provider_statecheck.testing.keyed_harness import KeyedHarness
from airflow_provider_statecheck.testing.keyed_map_contract import KeyedMapContract
from airflow_provider_statecheck.testing.keyed_model import KeyedModelContract
from airflow_provider_statecheck.testing.keyed_ownership_contract import KeyedOwnershipContract
from airflow_provider_statecheck.testing.keyed_restore_contract import KeyedRestoreContract
from airflow_provider_statecheck.testing.keyed_snapshot_contract import KeyedSnapshotContract
from airflow_provider_statecheck.testing.keyed_ttl_contract import KeyedTtlContract
from airflow_provider_statecheck.testing.keyed_ttl_restore_contract import KeyedTtlRestoreContract
from airflow_provider_statecheck.testing.keyed_values_contract import KeyedValuesContract


class StateBackendContract(
    KeyedAccessContract,
    KeyedValuesContract,
    KeyedMapContract,
    KeyedOwnershipContract,
    KeyedTtlContract,
    KeyedTtlRestoreContract,
    KeyedBatchContract,
    KeyedSnapshotContract,
    KeyedRestoreContract,
    KeyedModelContract,
):
    """All that user functions and checkpoints rely on."""

    @pytest.fixture
    def state_backend(self) -> StateBackend:
        """Return the backend under test."""
        raise NotImplementedError

    @pytest.fixture
    def storage(self) -> CheckpointStorage:
        """Return an empty storage."""
        return CheckpointStorage.open(f"memory://{uuid.uuid4().hex}")

    @pytest.fixture
    def keyed_by(
        self, state_backend: StateBackend, storage: CheckpointStorage
    ) -> Iterator[Callable[[Sequence[Any] | None], KeyedHarness]]:
        """Return what makes an operator whose keys are of some Arrow types."""
        made: list[KeyedHarness] = []

        def make(key_types: Sequence[Any] | None) -> KeyedHarness:
            made.append(KeyedHarness(state_backend, storage, key_types))
            return made[-1]

        yield make
        for each in made:
            each.close()

    @pytest.fixture
    def keyed(self, keyed_by: Callable[[Sequence[Any] | None], KeyedHarness]) -> KeyedHarness:
        """Return an operator whose keys are texts."""
        return keyed_by(None)
