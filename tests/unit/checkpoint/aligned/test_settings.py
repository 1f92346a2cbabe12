"""A coordinator of several operators acts on a setting or refuses it."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.config_options import ConfigOption
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.gateway.coordinators import SETTINGS
from tests.aligned_job import AlignedJob
from tests.unit.test_every_setting import FLINK_VALUES


@pytest.mark.parametrize("option", list(CheckpointConfig.options()), ids=lambda option: option.name)
def test_a_setting_that_a_coordinator_does_not_act_on_is_refused(job: AlignedJob, option: ConfigOption[Any]) -> None:
    config = CheckpointConfig()
    setattr(config, option.name, FLINK_VALUES[option.name])
    if option.name in SETTINGS:
        job.coordinator(config=config)
        return
    with pytest.raises(InvalidConfigurationError, match=option.key):
        job.coordinator(config=config)


def test_a_setting_that_goes_back_to_its_default_is_not_given() -> None:
    config = CheckpointConfig()
    config.num_retained = 7
    config.num_retained = None
    config.require_only((), "anything")
