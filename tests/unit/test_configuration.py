"""Settings of a stage: arguments, Airflow's configuration, Flink's names, defaults."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk.configuration import conf

from airflow_provider_statecheck.checkpoint.config import ExternalizedCheckpointCleanup
from airflow_provider_statecheck.checkpoint.records import OnClear, OnOverlap
from airflow_provider_statecheck.configuration import StatecheckSettings, storage_settings
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.get_provider_info import get_provider_info
from airflow_provider_statecheck.state.backends import directories_of
from tests.unit.interpreter import modules_loaded_by

DIRECTORY = "file:///data/checkpoints"


@pytest.fixture(autouse=True)
def _no_section_in_the_environment(monkeypatch):
    for field in dataclasses.fields(StatecheckSettings):
        monkeypatch.delenv(f"AIRFLOW__STATECHECK__{field.name.upper()}", raising=False)


def test_the_declared_defaults_hold_where_nothing_is_given():
    assert StatecheckSettings.from_airflow(checkpoint_dir=DIRECTORY) == StatecheckSettings(
        checkpoint_dir=DIRECTORY,
        storage_conn_id=None,
        num_retained=2,
        retained_runs=1,
        checkpoint_timeout_seconds=600.0,
        tolerable_failed_checkpoints=-1,
        overhead_budget=None,
        checkpoint_interval=None,
        min_pause=timedelta(0),
        externalized_checkpoint_retention=ExternalizedCheckpointCleanup.RETAIN_ON_CANCELLATION,
        savepoint_dir=None,
        data_inline_threshold=20 * 1024,
        allowed_locations=(),
        on_clear=OnClear.RESUME_UNCHANGED,
        on_overlap=OnOverlap.FAIL,
        state_config={},
    )


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("checkpoint_dir", "s3://lake/checkpoints", "s3://lake/checkpoints"),
        ("storage_conn_id", "aws_default", "aws_default"),
        ("num_retained", "5", 5),
        ("retained_runs", "0", 0),
        ("checkpoint_timeout_seconds", "0.5", 0.5),
        ("tolerable_failed_checkpoints", "0", 0),
        ("overhead_budget", "0.05", 0.05),
        ("checkpoint_interval", "5 min", timedelta(minutes=5)),
        ("checkpoint_interval", " Auto ", "auto"),
        ("min_pause", "30000", timedelta(seconds=30)),
        (
            "externalized_checkpoint_retention",
            "NO_EXTERNALIZED_CHECKPOINTS",
            ExternalizedCheckpointCleanup.NO_EXTERNALIZED_CHECKPOINTS,
        ),
        ("savepoint_dir", "s3://lake/savepoints", "s3://lake/savepoints"),
        ("data_inline_threshold", "1 MiB", 1 << 20),
        ("on_clear", "restart", OnClear.RESTART),
    ],
)
def test_airflows_configuration_comes_before_the_default(monkeypatch, key, text, value):
    monkeypatch.setenv("AIRFLOW__STATECHECK__CHECKPOINT_DIR", DIRECTORY)
    monkeypatch.setenv(f"AIRFLOW__STATECHECK__{key.upper()}", text)

    assert getattr(StatecheckSettings.from_airflow(), key) == value


def test_an_argument_comes_before_airflows_configuration(monkeypatch):
    monkeypatch.setenv("AIRFLOW__STATECHECK__CHECKPOINT_DIR", "file:///elsewhere")
    monkeypatch.setenv("AIRFLOW__STATECHECK__NUM_RETAINED", "7")

    settings = StatecheckSettings.from_airflow(checkpoint_dir=DIRECTORY, num_retained=3)

    assert (settings.checkpoint_dir, settings.num_retained) == (DIRECTORY, 3)


@pytest.mark.parametrize("given", [None, ""], ids=["none", "empty"])
def test_an_argument_without_a_value_is_not_given(monkeypatch, given):
    monkeypatch.setenv("AIRFLOW__STATECHECK__CHECKPOINT_DIR", DIRECTORY)
    monkeypatch.setenv("AIRFLOW__STATECHECK__SAVEPOINT_DIR", "s3://lake/savepoints")

    settings = StatecheckSettings.from_airflow(checkpoint_dir=given, savepoint_dir=given)

    assert (settings.checkpoint_dir, settings.savepoint_dir) == (DIRECTORY, "s3://lake/savepoints")


@pytest.mark.parametrize("key", ["checkpoint_dir", "storage_conn_id"])
def test_what_a_template_writes_for_a_missing_value_is_refused(key):
    with pytest.raises(InvalidConfigurationError, match=f"Expected a value for {key}, found 'None'"):
        StatecheckSettings.from_airflow(**{"checkpoint_dir": DIRECTORY} | {key: "None"})


def test_a_good_argument_hides_a_wrong_configuration(monkeypatch):
    monkeypatch.setenv("AIRFLOW__STATECHECK__NUM_RETAINED", "many")

    assert StatecheckSettings.from_airflow(checkpoint_dir=DIRECTORY, num_retained=1).num_retained == 1


def test_a_templated_argument_may_be_text():
    assert StatecheckSettings.from_airflow(checkpoint_dir=DIRECTORY, num_retained="4").num_retained == 4


def test_an_empty_option_has_the_default_that_airflow_shows(monkeypatch):
    expected = StatecheckSettings.from_airflow(checkpoint_dir=DIRECTORY)
    options = get_provider_info()["config"]["statecheck"]["options"].keys() & dataclasses.asdict(expected).keys()
    assert len(options) > 10
    for option in options:
        monkeypatch.setenv(f"AIRFLOW__STATECHECK__{option.upper()}", "")

    assert StatecheckSettings.from_airflow(checkpoint_dir=DIRECTORY) == expected


@pytest.mark.parametrize("given", [None, ""], ids=["none", "empty"])
def test_a_missing_checkpoint_dir_is_refused_with_the_way_to_set_it(given):
    with pytest.raises(InvalidConfigurationError, match="AIRFLOW__STATECHECK__CHECKPOINT_DIR") as caught:
        StatecheckSettings.from_airflow(checkpoint_dir=given)

    assert vars(caught.value)["key"] == "checkpoint_dir"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("num_retained", 0, "at least 1"),
        ("num_retained", "two", "a whole number"),
        ("num_retained", 2.7, "a whole number"),
        ("num_retained", True, "a whole number"),
        ("retained_runs", -1, "0 or more"),
        ("retained_runs", "all", "a whole number"),
        ("on_overlap", "queue", "fail, wait"),
        ("checkpoint_timeout_seconds", 0, "from 0.01 seconds"),
        ("checkpoint_timeout_seconds", -600, "from 0.01 seconds"),
        ("checkpoint_timeout_seconds", float("nan"), "from 0.01 seconds"),
        ("checkpoint_timeout_seconds", float("inf"), "to a year"),
        ("checkpoint_timeout_seconds", "soon", "a number"),
        ("tolerable_failed_checkpoints", -2, "-1 for any number"),
        ("tolerable_failed_checkpoints", 0.5, "a whole number"),
        ("overhead_budget", 0, "above 0 and up to 1"),
        ("overhead_budget", 1.01, "above 0 and up to 1"),
        ("overhead_budget", "nan", "above 0 and up to 1"),
        ("overhead_budget", "little", "a number"),
        ("checkpoint_interval", "9 ms", "at least 10 ms"),
        ("checkpoint_interval", "soon", "milliseconds, or a number with a unit"),
        ("min_pause", -1, "0 or more"),
        ("externalized_checkpoint_retention", "ALWAYS", "one of DELETE_ON_CANCELLATION"),
        ("savepoint_dir", "/data", "URI of a directory"),
        ("savepoint_dir", "s4://lake/savepoints", "scheme of an fsspec filesystem"),
        ("data_inline_threshold", "2 MB", "from 0 to 1 MiB"),
        ("on_clear", "maybe", "resume_unchanged, resume, restart"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name_itself_and_what_is_allowed(key, value, expected):
    with pytest.raises(InvalidConfigurationError) as caught:
        StatecheckSettings.from_airflow(checkpoint_dir=DIRECTORY, **{key: value})

    message = str(caught.value)
    assert key in message
    assert expected in message
    assert str(value) in message
    assert vars(caught.value)["key"] == key


def test_a_wrong_value_from_the_environment_is_refused_too(monkeypatch):
    monkeypatch.setenv("AIRFLOW__STATECHECK__ON_CLEAR", "maybe")

    with pytest.raises(InvalidConfigurationError, match="on_clear"):
        StatecheckSettings.from_airflow(checkpoint_dir=DIRECTORY)


def test_a_misspelt_argument_is_refused_instead_of_ignored():
    with pytest.raises(InvalidConfigurationError, match="num_retaned"):
        StatecheckSettings.from_airflow(checkpoint_dir=DIRECTORY, num_retaned=3)


def test_settings_cannot_be_changed():
    settings = StatecheckSettings.from_airflow(checkpoint_dir=DIRECTORY)

    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.num_retained = 9  # type: ignore[misc]


def test_reading_the_module_loads_no_airflow():
    assert "airflow" not in modules_loaded_by("import airflow_provider_statecheck.configuration")


@pytest.fixture
def in_file() -> Iterator[Callable[[dict[str, str]], None]]:
    """Return what puts options into the file of Airflow's configuration."""
    given: list[str] = []
    had_section = ConfigParser.has_section(conf, "statecheck")

    def put(options: dict[str, str]) -> None:
        if not ConfigParser.has_section(conf, "statecheck"):
            ConfigParser.add_section(conf, "statecheck")
        for key, value in options.items():
            ConfigParser.set(conf, "statecheck", key, value)
            given.append(key)

    yield put
    for key in given:
        ConfigParser.remove_option(conf, "statecheck", key)
    if not had_section:
        ConfigParser.remove_section(conf, "statecheck")


@pytest.mark.parametrize(
    ("key", "text", "name", "value"),
    [
        ("execution.checkpointing.dir", "s3://lake/c", "checkpoint_dir", "s3://lake/c"),
        ("state.checkpoints.dir", "s3://lake/c", "checkpoint_dir", "s3://lake/c"),
        ("execution.checkpointing.num-retained", "7", "num_retained", 7),
        ("execution.checkpointing.timeout", "2 min", "checkpoint_timeout_seconds", 120.0),
        ("execution.checkpointing.tolerable-failed-checkpoints", "3", "tolerable_failed_checkpoints", 3),
        ("execution.checkpointing.interval", "30000", "checkpoint_interval", timedelta(seconds=30)),
        ("execution.checkpointing.min-pause", "5 s", "min_pause", timedelta(seconds=5)),
        (
            "execution.checkpointing.externalized-checkpoint-retention",
            "DELETE_ON_CANCELLATION",
            "externalized_checkpoint_retention",
            ExternalizedCheckpointCleanup.DELETE_ON_CANCELLATION,
        ),
        ("state.savepoints.dir", "s3://lake/s", "savepoint_dir", "s3://lake/s"),
        ("execution.checkpointing.data-inline-threshold", "0", "data_inline_threshold", 0),
    ],
)
def test_a_key_of_flink_is_read_with_a_warning_that_says_our_name(
    in_file: Any, caplog: pytest.LogCaptureFixture, key: str, text: str, name: str, value: Any
) -> None:
    in_file({"checkpoint_dir": DIRECTORY} if name != "checkpoint_dir" else {})
    in_file({key: text})

    assert getattr(StatecheckSettings.from_airflow(), name) == value
    assert f"Read {name} from Flink's key {key}; set {name} instead; its unit may differ." in caplog.messages


@pytest.mark.parametrize("key", ["execution.checkpointing.dir", "state.checkpoints.dir"])
def test_two_directories_of_checkpoints_in_flinks_keys_are_refused(in_file: Any, key: str) -> None:
    given = {"execution.checkpointing.storage": "s3://lake/c", key: "s3://lake/c"}
    in_file(given)
    assert StatecheckSettings.from_airflow().checkpoint_dir == "s3://lake/c"
    in_file({key: "s3://lake/other"})
    refused = r"found different ones in execution.checkpointing.storage and execution.checkpointing.dir"
    for call in (
        StatecheckSettings.from_airflow,
        lambda: storage_settings(given | {key: "s3://lake/other"}),
        lambda: directories_of(None, given | {key: "s3://lake/other"}),
    ):
        with pytest.raises(InvalidConfigurationError, match=refused):
            call()


@pytest.mark.parametrize("where", ["file", "environment", "argument"])
def test_our_own_name_comes_before_flinks_even_with_the_value_of_the_default(
    in_file: Any, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    in_file({"execution.checkpointing.num-retained": "7"})
    if where == "file":
        in_file({"num_retained": "2"})
    if where == "environment":
        monkeypatch.setenv("AIRFLOW__STATECHECK__NUM_RETAINED", "2")
    arguments = {"num_retained": 2} if where == "argument" else {}

    assert StatecheckSettings.from_airflow(checkpoint_dir=DIRECTORY, **arguments).num_retained == 2


def test_an_argument_hides_a_wrong_value_under_flinks_name(in_file: Any) -> None:
    in_file({"execution.checkpointing.timeout": "soon"})

    settings = StatecheckSettings.from_airflow(checkpoint_dir=DIRECTORY, checkpoint_timeout_seconds=5)
    assert settings.checkpoint_timeout_seconds == 5
    with pytest.raises(InvalidConfigurationError, match=r"execution\.checkpointing\.timeout"):
        StatecheckSettings.from_airflow(checkpoint_dir=DIRECTORY)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("execution.checkpointing.timeuot", "an unknown key (did you mean execution.checkpointing.timeout?)"),
        ("execution.checkpointing.mode", "to be EXACTLY_ONCE, the only value that a stage supports"),
        ("execution.checkpointing.cleaner.parallel-mode", "has no effect on a stage"),
        ("taskmanager.numberOfTaskSlots", "an unknown key"),
    ],
)
def test_a_key_with_a_dot_that_no_stage_uses_is_refused_by_name(in_file: Any, key: str, message: str) -> None:
    in_file({key: "AT_LEAST_ONCE"})
    with pytest.raises(InvalidConfigurationError, match=re.escape(message)) as caught:
        StatecheckSettings.from_airflow(checkpoint_dir=DIRECTORY)
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("name", "stated", "other"),
    [
        ("mode", "EXACTLY_ONCE", "AT_LEAST_ONCE"),
        ("max-concurrent-checkpoints", "1", "2"),
        ("create-subdir", "true", "false"),
    ],
)
def test_a_key_of_flink_may_state_what_a_stage_does_and_nothing_else(
    in_file: Any, name: str, stated: str, other: str
) -> None:
    key = f"execution.checkpointing.{name}"
    in_file({key: stated})
    StatecheckSettings.from_airflow(checkpoint_dir=DIRECTORY)

    in_file({key: other})
    with pytest.raises(InvalidConfigurationError, match=f"only value that a stage supports, found {other}") as caught:
        StatecheckSettings.from_airflow(checkpoint_dir=DIRECTORY)
    assert caught.value.key == key


def test_settings_of_the_state_backend_are_handed_on(in_file: Any) -> None:
    in_file({"state.backend": "hashmap", "state.backend.arrow.block-rows": "7"})
    settings = StatecheckSettings.from_airflow(checkpoint_dir=DIRECTORY)
    assert settings.state_config == {"state.backend": "hashmap", "state.backend.arrow.block-rows": "7"}


def test_without_keys_of_flink_nothing_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    StatecheckSettings.from_airflow(checkpoint_dir=DIRECTORY)

    assert caplog.messages == []
