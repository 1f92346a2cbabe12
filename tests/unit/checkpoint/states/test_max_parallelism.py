"""Which numbers of key groups a restore accepts."""

from __future__ import annotations

import logging

import pytest

from airflow_provider_statecheck.checkpoint.states.compatibility import restored_max_parallelism
from airflow_provider_statecheck.exceptions import IncompatibleCheckpointError, InvalidConfigurationError
from tests.unit.checkpoint.states.states import make_state, make_target


def test_equal_max_parallelism_is_kept() -> None:
    assert restored_max_parallelism(make_state(), make_target(is_max_parallelism_configured=True)) == 128


@pytest.mark.parametrize("is_configured", [True, False])
def test_more_subtasks_than_restored_key_groups_are_refused(is_configured: bool) -> None:
    target = make_target(parallelism=200, max_parallelism=256, is_max_parallelism_configured=is_configured)
    with pytest.raises(IncompatibleCheckpointError, match="max_parallelism=128, the job asks for parallelism=200"):
        restored_max_parallelism(make_state(), target)


def test_as_many_subtasks_as_restored_key_groups_are_allowed() -> None:
    assert restored_max_parallelism(make_state(), make_target(parallelism=128, max_parallelism=256)) == 128


@pytest.mark.parametrize("max_parallelism", [64, 256])
def test_changed_configured_max_parallelism_is_refused(max_parallelism: int) -> None:
    target = make_target(max_parallelism=max_parallelism, is_max_parallelism_configured=True)
    with pytest.raises(IncompatibleCheckpointError, match=f"{max_parallelism}, which cannot be changed; set it to 128"):
        restored_max_parallelism(make_state(), target)


@pytest.mark.parametrize("max_parallelism", [64, 256])
def test_changed_derived_max_parallelism_gives_way(max_parallelism: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert restored_max_parallelism(make_state(), make_target(max_parallelism=max_parallelism)) == 128
    assert "uses max_parallelism=128" in caplog.text


@pytest.mark.parametrize(("parallelism", "max_parallelism"), [(0, 1), (3, 2), (1, 32769)])
def test_operator_out_of_bounds_cannot_be_restored(parallelism: int, max_parallelism: int) -> None:
    with pytest.raises(InvalidConfigurationError):
        make_target(parallelism=parallelism, max_parallelism=max_parallelism)
