"""Whatever is accepted as a setting changes what a user's task does; the rest is refused by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.configuration import conf

from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.config_options import ConfigOption
from airflow_provider_statecheck.configuration import (
    StatecheckSettings,
    StateServingSettings,
    maintenance_dags,
    migrates_on_start,
    reads_other_jobs,
)
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.get_provider_info import get_provider_info
from airflow_provider_statecheck.hooks import transport
from airflow_provider_statecheck.hooks.connection import coordinator_address
from airflow_provider_statecheck.operators import checkpointed
from airflow_provider_statecheck.operators.checkpointed import CheckpointedOperator
from airflow_provider_statecheck.operators.pyspark import CheckpointedPySparkOperator, CheckpointedStageOperator
from airflow_provider_statecheck.operators.spark_submit import CheckpointedStageSubmitOperator
from airflow_provider_statecheck.state.arrow.layout import ArrowStateSettings
from airflow_provider_statecheck.state.backends import (
    ArrowStateBackend,
    FsStateBackend,
    MemoryStateBackend,
    SnapshotMode,
    backend_of_stage,
    directories_of,
)
from tests.unit.operators.test_checkpointed import ARGUMENTS
from tests.unit.operators.test_registration import make_context

OPTIONS = get_provider_info()["config"]["statecheck"]["options"]
VALUES = {
    "checkpoint_dir": "/elsewhere/checkpoints",
    "storage_conn_id": None,  # below
    "num_retained": "7",
    "retained_runs": "3",
    "checkpoint_timeout_seconds": "12",
    "tolerable_failed_checkpoints": "4",
    "overhead_budget": "0.25",
    "checkpoint_interval": "5 min",
    "min_pause": "30 s",
    "externalized_checkpoint_retention": "NO_EXTERNALIZED_CHECKPOINTS",
    "savepoint_dir": "file:///elsewhere/savepoints",
    "data_inline_threshold": "1 KiB",
    "allowed_locations": "s3://archive",
    "on_clear": "restart",
    "on_overlap": "wait",
}
ELSEWHERE = {
    "api_url",
    "maintenance_dags",
    "migrate_on_start",
    "read_other_jobs",
    "storage_conn_id",
    "serve_state",
    "state_requests_per_second",
}
"""Options that have a test of their own."""


@pytest.fixture
def in_file() -> Iterator[Callable[[str, str], None]]:
    """Write an option into Airflow's configuration."""

    def write(key: str, value: str) -> None:
        if not conf.has_section("statecheck"):
            conf.add_section("statecheck")
        conf.set("statecheck", key, value)
        written.append(key)

    written: list[str] = []
    yield write
    for key in written:
        conf.remove_option("statecheck", key, remove_default=False)


@pytest.fixture(autouse=True)
def without_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "is_orm_open", lambda: False)
    monkeypatch.setattr(checkpointed, "push_link", lambda *_: None)


def prepared(**arguments: Any) -> tuple[Any, ...]:
    """Return all that an operator hands to its stage."""
    operator = CheckpointedPySparkOperator(task_id="t", python_callable=lambda spark, checkpoint: None, **arguments)
    stage = checkpointed.prepare_stage(operator, make_context())
    asked = replace(stage.registration, attempt_key="")
    return asked, stage.driver, stage.storage.base_uri, stage.storage.allowed, stage.on_overlap


def test_every_option_has_a_value_here() -> None:
    assert set(VALUES) | ELSEWHERE == set(OPTIONS)


@pytest.mark.parametrize("key", sorted(set(VALUES) - ELSEWHERE))
def test_an_option_changes_what_the_stage_is_handed(in_file: Any, tmp_path: Path, key: str) -> None:
    base = {} if key == "checkpoint_dir" else {"checkpoint_dir": str(tmp_path)}
    before = prepared(checkpoint_dir=str(tmp_path))
    in_file(key, str(VALUES[key]))
    assert prepared(**base) != before


@pytest.mark.parametrize("key", sorted(set(VALUES) - ELSEWHERE))
def test_the_argument_of_the_same_name_does_the_same(in_file: Any, tmp_path: Path, key: str) -> None:
    arguments = {"checkpoint_dir": str(tmp_path)} | {key: VALUES[key]}
    by_argument = prepared(**arguments)
    in_file(key, str(VALUES[key]))
    assert prepared(**{} if key == "checkpoint_dir" else {"checkpoint_dir": str(tmp_path)}) == by_argument


def test_a_connection_that_is_missing_is_told(tmp_path: Path, in_file: Any) -> None:
    in_file("storage_conn_id", "no_such")
    with pytest.raises(Exception, match="no_such"):
        prepared(checkpoint_dir="s3://lake/checkpoints")


def test_the_address_and_the_maintenance_dags_are_used(in_file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    in_file("api_url", "https://airflow.example.com/x/")
    monkeypatch.setenv("AIRFLOW__STATECHECK__MAINTENANCE_DAGS", "mine, yours")
    assert coordinator_address().url == "https://airflow.example.com/x"
    assert maintenance_dags() == {"mine", "yours"}
    monkeypatch.setenv("AIRFLOW__STATECHECK__MAINTENANCE_DAGS", "")
    assert maintenance_dags() == frozenset()


def test_tasks_read_other_jobs_unless_the_configuration_says_no(in_file: Any) -> None:
    assert reads_other_jobs()
    in_file("read_other_jobs", "off")
    assert not reads_other_jobs()


def test_a_server_that_starts_migrates_unless_the_configuration_says_no(in_file: Any) -> None:
    assert migrates_on_start()
    in_file("migrate_on_start", "off")
    assert not migrates_on_start()


def test_the_settings_of_a_server_of_state_are_used(in_file: Any) -> None:
    assert StateServingSettings.read() == StateServingSettings()
    in_file("serve_state", "off")
    in_file("state_requests_per_second", "50")
    assert StateServingSettings.read() == StateServingSettings(serve_state=False, state_requests_per_second=50.0)


@pytest.mark.parametrize(
    ("key", "value"),
    [("serve_state", "maybe"), *(("state_requests_per_second", each) for each in ("-1", "nan", "inf", "many"))],
)
def test_a_setting_of_a_server_of_state_that_is_out_of_range_is_refused(in_file: Any, key: str, value: str) -> None:
    in_file(key, value)
    with pytest.raises(InvalidConfigurationError, match=key):
        StateServingSettings.read()


def test_every_argument_of_the_operators_is_in_the_table() -> None:
    names = set(CheckpointedOperator.__init__.__annotations__) - {"kwargs", "return"}
    assert names == set(ARGUMENTS)


@pytest.mark.parametrize(
    "make",
    [
        lambda **a: CheckpointedStageOperator(task_id="t", stage="m:stage", **a),
        lambda **a: CheckpointedStageSubmitOperator(task_id="t", stage="m:stage", **a),
    ],
)
def test_a_stage_with_state_refuses_the_argument_that_it_does_not_act_on(make: Any) -> None:
    with pytest.raises(InvalidConfigurationError, match="overhead_budget"):
        make(overhead_budget=0.1).prepare({})


FLINK_VALUES = {
    "checkpoint_storage": "filesystem",
    "checkpoint_dir": "s3://lake/checkpoints",
    "savepoint_dir": "s3://lake/savepoints",
    "checkpoint_interval": "5 min",
    "mode": "AT_LEAST_ONCE",
    "timeout": "12 s",
    "min_pause_between_checkpoints": "30 s",
    "max_concurrent_checkpoints": 3,
    "tolerable_failed_checkpoints": 4,
    "externalized_checkpoint_retention": "NO_EXTERNALIZED_CHECKPOINTS",
    "num_retained": 7,
    "incremental": False,
    "data_inline_threshold": "1 KiB",
    "write_buffer_size": "8 KiB",
    "checkpoints_after_tasks_finish": False,
    "cleaner_parallel_mode": False,
    "create_subdir": False,
    "file_merging_enabled": False,
    "file_merging_max_file_size": "1 MiB",
    "file_merging_max_space_amplification": 3.0,
    "recovery_path": "s3://lake/savepoints/s",
    "recovery_ignore_unclaimed_state": True,
    "recovery_claim_mode": "CLAIM",
}
ACTING = {
    "checkpoint_dir",
    "savepoint_dir",
    "checkpoint_interval",
    "timeout",
    "min_pause_between_checkpoints",
    "tolerable_failed_checkpoints",
    "externalized_checkpoint_retention",
    "num_retained",
    "incremental",
    "data_inline_threshold",
    "checkpoint_storage",
    "write_buffer_size",
    "file_merging_enabled",
    "file_merging_max_file_size",
    "file_merging_max_space_amplification",
}
KEYS = [(option, key) for option in CheckpointConfig.options() for key in (option.key, *option.old_keys)]


@pytest.mark.parametrize(("option", "key"), KEYS, ids=[key for _, key in KEYS])
def test_a_key_of_flink_acts_in_the_section_or_is_refused(in_file: Any, option: ConfigOption[Any], key: str) -> None:
    arguments = {} if option.name == "checkpoint_dir" else {"checkpoint_dir": "/data/checkpoints"}
    before = StatecheckSettings.from_airflow(checkpoint_dir="/data/checkpoints")
    in_file(key, str(FLINK_VALUES[option.name]))
    if option.name in ACTING:
        assert StatecheckSettings.from_airflow(**arguments) != before
        return
    with pytest.raises(InvalidConfigurationError, match=key):
        StatecheckSettings.from_airflow(**arguments)


@pytest.mark.parametrize("key", ["state.backend", "state.backend.type"])
@pytest.mark.parametrize(("name", "kind"), [("hashmap", MemoryStateBackend), ("filesystem", FsStateBackend)])
def test_the_configured_state_backend_is_that_of_a_stage(in_file: Any, key: str, name: str, kind: type) -> None:
    in_file(key, name)
    driver = prepared(checkpoint_dir="/data/checkpoints")[1]
    config = driver.state_config
    assert isinstance(backend_of_stage(None, config), kind)
    assert isinstance(backend_of_stage("arrow", config), ArrowStateBackend)


@pytest.mark.parametrize("name", ["block_rows", "block_bytes", "part_bytes", "memtable_bytes", "cache_bytes"])
def test_the_configured_sizes_of_the_arrow_backend_hold(in_file: Any, name: str) -> None:
    in_file(f"state.backend.arrow.{name.replace('_', '-')}", "77")
    config = prepared(checkpoint_dir="/data/checkpoints")[1].state_config
    backend = backend_of_stage(None, config)
    assert isinstance(backend, ArrowStateBackend)
    assert getattr(backend.settings, name) == 77
    own = ArrowStateBackend(ArrowStateSettings(block_rows=5))
    assert backend_of_stage(own, config) == replace(own, mode=SnapshotMode.INCREMENTAL)


@pytest.mark.parametrize("key", ["state.backend.arrow.block-row", "state.backend.rocksdb.memory.managed"])
def test_a_setting_that_the_backend_does_not_have_is_refused(key: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=key):
        backend_of_stage(None, {key: "1"})


@pytest.mark.parametrize("kind", [FsStateBackend, MemoryStateBackend])
@pytest.mark.parametrize("argument", ["base_checkpoint_path", "base_savepoint_path"])
def test_a_stage_has_the_directories_of_its_backend(kind: Any, argument: str) -> None:
    backend = kind(**{argument: "s3://lake/elsewhere/"})
    name = argument.removeprefix("base_").replace("_path", "_dir")
    assert directories_of(backend, {}) == {name: "s3://lake/elsewhere"}
    assert isinstance(backend_of_stage(backend, {}), kind)
    assert directories_of(kind(), {}) == directories_of("arrow", {}) == directories_of(None, {}) == {}


@pytest.mark.parametrize("key", ["execution.checkpointing.storage", "state.checkpoint-storage"])
def test_a_storage_that_is_a_directory_is_that_of_the_stage(in_file: Any, key: str) -> None:
    assert directories_of(None, {key: "s3://lake/checkpoints"}) == {"checkpoint_dir": "s3://lake/checkpoints"}
    assert directories_of(None, {key: "jobmanager"}) == {}
    with pytest.raises(InvalidConfigurationError, match="URI of a directory"):
        directories_of(None, {key: "s3://lake"})
    in_file(key, "file:///data/of/storage")
    settings = StatecheckSettings.from_airflow()
    assert settings.checkpoint_dir == "file:///data/of/storage"
    assert CheckpointConfig.checkpoint_storage.key_in(settings.state_config) is None
    assert StatecheckSettings.from_airflow(checkpoint_dir="/data/given").checkpoint_dir == "/data/given"
