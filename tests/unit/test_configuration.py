from __future__ import annotations

import dataclasses

import pytest

from airflow_provider_statecheck.checkpoint.records import OnClear
from airflow_provider_statecheck.configuration import StatecheckSettings
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
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
        checkpoint_timeout_seconds=600.0,
        tolerable_failed_checkpoints=-1,
        overhead_budget=None,
        on_clear=OnClear.RESUME_UNCHANGED,
    )


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("checkpoint_dir", "s3://lake/checkpoints", "s3://lake/checkpoints"),
        ("storage_conn_id", "aws_default", "aws_default"),
        ("num_retained", "5", 5),
        ("checkpoint_timeout_seconds", "0.5", 0.5),
        ("tolerable_failed_checkpoints", "0", 0),
        ("overhead_budget", "0.05", 0.05),
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


def test_an_argument_of_none_is_not_given(monkeypatch):
    monkeypatch.setenv("AIRFLOW__STATECHECK__NUM_RETAINED", "7")

    assert StatecheckSettings.from_airflow(checkpoint_dir=DIRECTORY, num_retained=None).num_retained == 7


def test_a_good_argument_hides_a_wrong_configuration(monkeypatch):
    monkeypatch.setenv("AIRFLOW__STATECHECK__NUM_RETAINED", "many")

    assert StatecheckSettings.from_airflow(checkpoint_dir=DIRECTORY, num_retained=1).num_retained == 1


def test_a_templated_argument_may_be_text():
    assert StatecheckSettings.from_airflow(checkpoint_dir=DIRECTORY, num_retained="4").num_retained == 4


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
        ("checkpoint_timeout_seconds", 0, "from 0.01 seconds"),
        ("checkpoint_timeout_seconds", -600, "from 0.01 seconds"),
        ("checkpoint_timeout_seconds", float("nan"), "from 0.01 seconds"),
        ("checkpoint_timeout_seconds", float("inf"), "to a year"),
        ("checkpoint_timeout_seconds", "soon", "a number of seconds"),
        ("tolerable_failed_checkpoints", -2, "-1 for any number"),
        ("tolerable_failed_checkpoints", 0.5, "a whole number"),
        ("overhead_budget", 0, "above 0 and up to 1"),
        ("overhead_budget", 1.01, "above 0 and up to 1"),
        ("overhead_budget", "nan", "above 0 and up to 1"),
        ("overhead_budget", "little", "a number above 0 and up to 1"),
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
