"""Every place where a setting can be given has it as its one description says."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import MISSING, fields
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.messages import RegisterAttempt
from airflow_provider_statecheck.cli.definition import ARG_STORAGE
from airflow_provider_statecheck.configuration import StatecheckSettings, StateServingSettings
from airflow_provider_statecheck.operators.checkpointed import CheckpointedOperator
from airflow_provider_statecheck.operators.pyspark import CheckpointedStageOperator
from airflow_provider_statecheck.operators.spark_submit import CheckpointedStageSubmitOperator
from airflow_provider_statecheck.settings import SETTINGS, TASKS, Place, Setting, settings_in
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.context import StageContext
from airflow_provider_statecheck.spark.driver.settings import OPTIONS, DriverSettings, StageSettings, flink_option
from airflow_provider_statecheck.spark.stages.stage_run import run_stage
from scripts.docs.options import default_in

STAGE_OPERATORS = (CheckpointedStageOperator, CheckpointedStageSubmitOperator)
SIGNATURES: list[tuple[Place, Callable[..., Any], Any]] = [
    (Place.TASK, CheckpointedOperator.__init__, CheckpointedOperator),
    *((Place.STAGE_TASK, each.__init__, each) for each in STAGE_OPERATORS),
    (Place.SCRIPT, StageContext.open, StageContext.open),
    (Place.STAGE_SCRIPT, run_stage, run_stage),
]
NO_SETTINGS = {"self", "spark", "stage", "settings", "kwargs"}
GIVEN = [
    pytest.param(place, call, documented, setting, id=f"{place.name}-{name}")
    for place, call, documented in SIGNATURES
    for name, setting in settings_in(place).items()
]


def arguments(call: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the settings in the signature of a function, and of the operators that an operator passes the rest to."""
    found = {name: each for name, each in inspect.signature(call).parameters.items() if name not in NO_SETTINGS}
    if call in [each.__init__ for each in STAGE_OPERATORS]:
        refused = {*CheckpointedStageOperator.unused_arguments}
        found |= {n: each for n, each in arguments(CheckpointedOperator.__init__).items() if n not in refused}
    return found


def documented_in(source: Any) -> dict[str, str]:
    found = re.findall(r"^:param (\w+): (.*(?:\n[ \t]+.*)*)", inspect.getdoc(source) or "", re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def parsed(setting: Setting, value: Any) -> Any:
    option = OPTIONS.get(setting.name)
    return option.checked(setting.name, value) if option and value is not None else value


@pytest.mark.parametrize(("place", "call", "documented"), SIGNATURES, ids=lambda each: getattr(each, "name", ""))
def test_a_signature_has_exactly_the_settings_of_its_place(place: Place, call: Any, documented: Any) -> None:
    assert set(arguments(call)) == set(settings_in(place))


@pytest.mark.parametrize(("place", "call", "documented", "setting"), GIVEN)
def test_an_argument_has_the_default_of_its_setting(place: Place, call: Any, documented: Any, setting: Setting) -> None:
    default = arguments(call)[setting.name].default
    if place in setting.required_in:
        assert default is inspect.Parameter.empty
    else:
        assert parsed(setting, default) == parsed(setting, default_in(setting, place))


@pytest.mark.parametrize(("place", "call", "documented", "setting"), GIVEN)
def test_an_argument_is_documented_by_the_text_of_its_setting(
    place: Place, call: Any, documented: Any, setting: Setting
) -> None:
    texts = documented_in(documented)
    if documented in STAGE_OPERATORS and Place.TASK in setting.places:
        return  # in the docstring of the base
    is_templated = place in TASKS and setting.name in CheckpointedOperator.checkpoint_template_fields
    assert texts[setting.name] == setting.doc(place) + (" (templated)" if is_templated else "")


@pytest.mark.parametrize("name", ["overhead_budget", "checkpoint_interval", "min_pause"])
def test_the_context_documents_its_settings_alike(name: str) -> None:
    assert documented_in(StageContext)[name] == SETTINGS[name].doc(Place.SCRIPT)


def test_what_scripts_take_for_a_stage_stands_in_one_place_only() -> None:
    assert not {each.name for each in fields(StageSettings)} - {"storage_options"} & SETTINGS.keys()


def test_each_option_of_the_section_is_read() -> None:
    read = {each.name for kind in (StatecheckSettings, StateServingSettings) for each in fields(kind)}
    assert set(settings_in(Place.SECTION)) - read == {
        "api_url",
        "maintenance_dags",
        "migrate_on_start",
        "read_other_jobs",
    }
    assert set(StatecheckSettings.names()) == {
        n for n, s in settings_in(Place.SECTION).items() if Place.TASK in s.places
    }


@pytest.mark.parametrize("kind", [DriverSettings, RegisterAttempt, StateServingSettings])
def test_a_message_has_the_defaults_of_the_settings(kind: Any) -> None:
    found = {each.name: each.default for each in fields(kind) if each.name in SETTINGS and each.default is not MISSING}
    assert len(found) >= 2
    assert {n: parsed(SETTINGS[n], each) for n, each in found.items()} == {
        name: OPTIONS[name].default if name in OPTIONS else SETTINGS[name].default for name in found
    }


def test_an_attempt_has_the_defaults_of_the_settings() -> None:
    found = {n: each.default for n, each in inspect.signature(StageAttempt).parameters.items() if n in SETTINGS}
    assert found == {name: OPTIONS[name].default for name in found}


@pytest.mark.parametrize("setting", [each for each in SETTINGS.values() if each.flink], ids=lambda each: each.name)
def test_an_option_and_its_key_in_flink_have_one_default(setting: Setting) -> None:
    option = flink_option(setting)
    assert option is not None
    found = option.default.total_seconds() if setting.name == "checkpoint_timeout_seconds" else option.default
    is_no_limit = setting.name == "tolerable_failed_checkpoints" and found is None
    assert (-1 if is_no_limit else found) == OPTIONS[setting.name].default


def test_a_flag_of_a_command_says_what_the_setting_says() -> None:
    assert ARG_STORAGE.kwargs["help"] == SETTINGS["storage_conn_id"].help()


def test_a_handover_writes_durations_in_the_unit_of_bare_numbers() -> None:
    given = {"checkpoint_interval": timedelta(minutes=5), "min_pause": timedelta(seconds=1), "num_retained": 3}
    driver = DriverSettings.of(given, StageSettings())
    assert (driver.checkpoint_interval, driver.min_pause_ms) == ("300000", 1000)
    assert CheckpointConfig.checkpoint_interval.checked("i", driver.checkpoint_interval) == timedelta(minutes=5)
