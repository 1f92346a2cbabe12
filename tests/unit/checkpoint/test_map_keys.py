"""Instances of a mapped task with one map key, which would share one operator."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.messages import AdoptAttempt, AttemptGrant, FinishAttempt
from airflow_provider_statecheck.checkpoint.records import AttemptOwner, AttemptStatus
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StaleAttemptError
from tests.messages import complete_checkpoint, make_owner, make_registration
from tests.sqlite_rows import new_store

JOB = job_id_of("sales")


@pytest.fixture
def coordinator() -> AttemptCoordinator:
    return AttemptCoordinator(new_store())


def instance(index: int, **changes: str) -> AttemptOwner:
    """Return the owner of an attempt of one instance."""
    return make_owner(logical_task="dag/load[oslo]", airflow=(("map_index", str(index)),), **changes)


def worked(coordinator: AttemptCoordinator, status: AttemptStatus | None) -> AttemptGrant:
    """Let the first instance complete a checkpoint and end; ``None`` if it goes on."""
    grant = coordinator.register(make_registration(owner=instance(0)))
    complete_checkpoint(coordinator, grant.attempt)
    if status is not None:
        coordinator.finish(FinishAttempt(attempt=grant.attempt, status=status))
    return grant


@pytest.mark.parametrize("status", [None, AttemptStatus.FINISHED, AttemptStatus.FAILED])
def test_an_instance_with_the_map_key_of_another_one_is_refused(
    coordinator: AttemptCoordinator, status: AttemptStatus | None
) -> None:
    worked(coordinator, status)
    before = coordinator.describe(JOB).attempts
    with pytest.raises(InvalidConfigurationError, match=r"found 'dag/load\[oslo\]' at the instances 0 and 1"):
        coordinator.register(make_registration(owner=instance(1)))
    assert coordinator.describe(JOB).attempts == before


def test_an_instance_does_not_adopt_the_driver_of_another_one(coordinator: AttemptCoordinator) -> None:
    attempt = worked(coordinator, None).attempt
    with pytest.raises(StaleAttemptError, match="register an attempt instead"):
        coordinator.adopt(AdoptAttempt(attempt=attempt, owner=instance(1)))


@pytest.mark.parametrize(
    "changes", [{"clear_marker": "4/1"}, {"run_id": "next", "run_key": "2026-01-02"}], ids=["cleared", "next run"]
)
def test_a_map_key_may_have_another_index_after_a_clear_and_in_another_run(
    coordinator: AttemptCoordinator, changes: dict[str, str]
) -> None:
    worked(coordinator, AttemptStatus.FAILED)
    assert coordinator.register(make_registration(owner=instance(1, **changes))).is_restore
