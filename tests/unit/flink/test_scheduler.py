"""When checkpoints are triggered."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.checkpoint.config import CheckpointConfig, CheckpointingMode
from airflow_provider_statecheck.checkpoint.config_options import ConfigOption
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.flink.leading import SETTINGS
from airflow_provider_statecheck.flink.triggering import PeriodicTrigger
from airflow_provider_statecheck.storage.aligned_files import AlignedFiles
from airflow_provider_statecheck.storage.pointers import resolve_checkpoint
from tests.aligned_job import JOB_NAME, AlignedJob
from tests.unit.checkpoint.aligned.requests import START, seconds
from tests.unit.test_every_setting import FLINK_VALUES


class FixedRandom(Random):
    """Gives the lowest or the highest of a range."""

    def __init__(self, part: float) -> None:
        super().__init__()
        self.part = part

    def uniform(self, a: float, b: float) -> float:
        return a + self.part * (b - a)


def make_trigger(part: float = 0, interval: float = 60, min_pause: float = 10) -> PeriodicTrigger:
    """A trigger that was started and fires first after the pause, for ``part`` 1 after the interval."""
    trigger = PeriodicTrigger(seconds(interval), seconds(min_pause), FixedRandom(part))
    trigger.start(START)
    return trigger


def test_a_trigger_fires_only_when_it_was_started():
    trigger = PeriodicTrigger(seconds(1), seconds(0), Random(1))
    assert not trigger.is_started
    assert trigger.next_fire_at is None
    assert not trigger.due(START + seconds(1000))


@given(st.integers(), st.floats(0, 100), st.floats(0.01, 100))
def test_the_first_delay_lies_between_pause_and_interval(number, min_pause, interval):
    trigger = PeriodicTrigger(seconds(interval), seconds(min_pause), Random(number))
    trigger.start(START)
    assert trigger.next_fire_at is not None
    assert seconds(min_pause) <= trigger.next_fire_at - START <= max(seconds(interval), seconds(min_pause))


def test_the_first_delay_is_random_over_the_whole_range():
    assert make_trigger(0).next_fire_at == START + seconds(10)
    assert make_trigger(1).next_fire_at == START + seconds(60)


def test_an_interval_shorter_than_the_pause_is_as_long_as_the_pause():
    trigger = make_trigger(1, interval=5, min_pause=20)
    assert trigger.due(START + seconds(20))
    assert trigger.next_fire_at == START + seconds(40)


def test_it_fires_at_a_fixed_rate_however_late_it_is_asked():
    trigger = make_trigger()
    assert not trigger.due(START + seconds(9.9))
    assert trigger.due(START + seconds(15))
    assert trigger.next_fire_at == START + seconds(70)


def test_each_firing_is_told_once():
    trigger = make_trigger()
    assert [trigger.due(START + seconds(10)) for _ in range(2)] == [True, False]


def test_missed_firings_are_not_made_up_for():
    trigger = make_trigger()
    assert trigger.due(START + seconds(10 + 3 * 60))
    assert trigger.next_fire_at == START + seconds(10 + 4 * 60)


def test_a_stopped_trigger_does_not_fire():
    trigger = make_trigger()
    trigger.stop()
    assert not trigger.is_started
    assert not trigger.due(START + seconds(1000))


def test_a_trigger_that_is_started_again_forgets_what_was_set():
    trigger = make_trigger()
    trigger.start(START + seconds(100))
    assert trigger.next_fire_at == START + seconds(110)


def test_an_armed_trigger_fires_after_the_delay_and_then_at_the_fixed_rate():
    trigger = make_trigger()
    trigger.rearm(START, seconds(3))
    assert trigger.due(START + seconds(3))
    assert trigger.next_fire_at == START + seconds(63)


def test_arming_does_not_start_a_stopped_trigger():
    trigger = make_trigger()
    trigger.stop()
    trigger.rearm(START, seconds(3))
    assert not trigger.is_started


@pytest.mark.parametrize(("interval", "min_pause"), [(0, 0), (-1, 0), (1, -1)])
def test_times_out_of_their_range_are_refused(interval, min_pause):
    with pytest.raises(InvalidConfigurationError):
        PeriodicTrigger(timedelta(seconds=interval), timedelta(seconds=min_pause), Random(1))


def test_a_clock_that_is_set_back_delays_the_next_firing_by_an_interval_at_most():
    trigger = make_trigger()
    assert trigger.due(START + seconds(24 * 3600))
    assert not trigger.due(START + seconds(20))
    assert trigger.next_fire_at == START + seconds(80)
    assert trigger.due(START + seconds(80))


@pytest.mark.parametrize("option", list(CheckpointConfig.options()), ids=lambda option: option.name)
def test_a_setting_that_a_coordinator_does_not_act_on_is_refused(job: AlignedJob, option: ConfigOption[Any]) -> None:
    config = CheckpointConfig()
    values = FLINK_VALUES | {"checkpoint_dir": job.storage.base_uri}
    setattr(config, option.name, values[option.name])
    if option.name in SETTINGS:
        job.coordinator(config=config)
        return
    with pytest.raises(InvalidConfigurationError, match=rf"{option.key}|\b{option.name}\b"):
        job.coordinator(config=config)


def test_a_coordinator_takes_the_settings_that_state_what_it_does(job: AlignedJob) -> None:
    stated = {
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.max-concurrent-checkpoints": 1,
        "execution.checkpointing.create-subdir": True,
    }
    job.coordinator(config=CheckpointConfig.from_mapping(stated))


@pytest.mark.parametrize("kind", ["name", "name in another case", "directory", "object"])
def test_a_coordinator_takes_its_storage_by_name_directory_or_object(job: AlignedJob, kind: str) -> None:
    files = AlignedFiles(job.storage, job.job_id, "other name")
    config = CheckpointConfig()
    config.checkpoint_storage = {
        "name": "filesystem",
        "name in another case": "FileSystem",
        "directory": job.storage.base_uri,
        "object": files,
    }[kind]
    coordinator = job.coordinator(config=config)
    future = coordinator.trigger_checkpoint(CheckpointProperties.for_checkpoint())
    job.acknowledge_all(coordinator, 1)
    document, _ = resolve_checkpoint(job.storage, future.result(0).external_pointer).read()
    assert document.job_name == ("other name" if kind == "object" else JOB_NAME)


@pytest.mark.parametrize("name", ["checkpoint_storage", "checkpoint_dir"])
def test_a_coordinator_refuses_a_directory_that_is_not_that_of_its_storage(job: AlignedJob, name: str) -> None:
    same: dict[str, Any] = {name: f"{job.storage.base_uri}/"}
    other: dict[str, Any] = {name: f"{job.storage.base_uri}-other"}
    job.coordinator(**same).shutdown()
    with pytest.raises(InvalidConfigurationError, match="to be that of the given storage"):
        job.coordinator(**other)


@pytest.mark.parametrize("storage", ["jobmanager", "a.module", AlignedFiles])
def test_a_coordinator_refuses_a_storage_that_takes_no_manifests(job: AlignedJob, storage: Any) -> None:
    config = CheckpointConfig()
    config.checkpoint_storage = storage
    with pytest.raises(InvalidConfigurationError, match="Expected checkpoint_storage to be 'filesystem', the URI"):
        job.coordinator(config=config)


def test_a_coordinator_names_the_only_mode_that_it_supports(job: AlignedJob) -> None:
    config = CheckpointConfig()
    config.mode = CheckpointingMode.AT_LEAST_ONCE
    with pytest.raises(InvalidConfigurationError, match=r"to be EXACTLY_ONCE, the only value .* found AT_LEAST_ONCE"):
        job.coordinator(config=config)


def test_a_setting_that_goes_back_to_its_default_is_not_given() -> None:
    config = CheckpointConfig()
    config.num_retained = 7
    with pytest.raises(InvalidConfigurationError, match="anything"):
        config.require_only((), "anything")
    config.num_retained = None
    config.require_only((), "anything")
    assert config.num_retained == CheckpointConfig().num_retained
