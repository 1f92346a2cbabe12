"""The worker's view: merged where the place is the configured one, handed on everywhere else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import CoordinatorError
from airflow_provider_statecheck.storage.file_merging.worker_view import FsMergingCheckpointStorageAccess
from tests.unit.storage.file_merging.conftest import Make
from tests.unit.storage.file_merging.driving import SHARED, Driver, subtask


@dataclass
class Reference:
    is_default: bool


class Plain:
    """A view that says which of its methods was called."""

    def resolve_checkpoint_storage_location(self, checkpoint_id: int, reference: Any) -> Any:
        return ("plain", checkpoint_id, reference)

    def create_task_owned_state_stream(self) -> Any:
        return "stream"

    def create_task_owned_checkpoint_state_toolset(self) -> Any:
        return "toolset"


def _access(driver: Driver) -> FsMergingCheckpointStorageAccess:
    return FsMergingCheckpointStorageAccess(Plain(), driver.manager, subtask(3))


def test_streams_of_the_configured_place_are_merged(make: Make) -> None:
    driver = make(subtasks=0)
    access = _access(driver)
    streams = access.resolve_checkpoint_storage_location(5, Reference(is_default=True))
    handles = []
    for data in (b"a", b"bc"):
        stream = streams.create_checkpoint_state_output_stream(SHARED)
        stream.write(data)
        handles.append(stream.close_and_get_handle())
    access.make_durable(5)
    assert driver.files() == {handle.uri for handle in handles}
    assert [driver.read(handle) for handle in handles] == [b"a", b"bc"]


def test_a_savepoint_is_not_merged(make: Make) -> None:
    reference = Reference(is_default=False)
    found = _access(make()).resolve_checkpoint_storage_location(5, reference)
    assert found == ("plain", 5, reference)


def test_what_a_task_owns_is_not_merged(make: Make) -> None:
    access = _access(make())
    assert access.create_task_owned_state_stream() == "stream"
    assert access.create_task_owned_checkpoint_state_toolset() == "toolset"


def test_closing_the_view_unregisters_the_subtask_and_nobody_waits_for_it(make: Make) -> None:
    driver = make(subtasks=1)
    access = _access(driver)
    driver.saved(b"x", 1, index=3)
    access.close()
    driver.subsumed(1, index=0)
    assert driver.files() == set()


def test_a_view_needs_a_manager_that_is_open(make: Make) -> None:
    driver = make()
    driver.manager.close()
    with pytest.raises(CoordinatorError, match="closed"):
        _access(driver)
