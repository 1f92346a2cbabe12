"""Attempts of submitted drivers and of scripts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from airflow_provider_statecheck.checkpoint.records import OnClear
from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError, InvalidConfigurationError
from airflow_provider_statecheck.settings import SCRIPTS, Place, settings_in
from airflow_provider_statecheck.spark import context
from airflow_provider_statecheck.spark.connectors.custom.data_frame_source import DataFrameSource
from airflow_provider_statecheck.spark.context import CurrentContext, StageContext
from airflow_provider_statecheck.spark.driver import attempts
from airflow_provider_statecheck.spark.driver.attempts import HANDOVER_VARIABLE, Handover, take_handover
from airflow_provider_statecheck.spark.driver.packages import OF_EVERY_DRIVER, OF_HTTP, OF_METADATA, OF_STAGES
from airflow_provider_statecheck.spark.driver.settings import DriverSettings, StageSettings
from airflow_provider_statecheck.spark.stages import stage_run
from airflow_provider_statecheck.spark.stages.stage import Count, Stage
from airflow_provider_statecheck.spark.stages.stage_run import run_stage
from airflow_provider_statecheck.state.backends import FsStateBackend
from tests.messages import make_registration
from tests.unit.interpreter import modules_loaded_by

DAYS = Stage("days").source(DataFrameSource([1], lambda spark, _: spark.range(1))).key_by("id").aggregate(n=Count())
TOKEN = "a token that nobody may see"
DRIVER = DriverSettings(
    tolerable_failed_checkpoints=3,
    overhead_budget=0.1,
    checkpoint_interval="auto",
    storage_options={"secret": TOKEN, "n": 1},
    logical_date=datetime(2026, 1, 1, tzinfo=UTC),
    parallelism=4,
    renamed_uids={"old": "new"},
    allow_non_restored_state=True,
)


def make_handover() -> Handover:
    registration = make_registration(job_name="täglich/2026 'x' \"y\"", on_clear=OnClear.RESUME, num_retained=7)
    return Handover(url="http://api", token=TOKEN, registration=registration, driver=DRIVER)


def test_driver_gets_what_the_operator_gave() -> None:
    handover = make_handover()
    assert take_handover(handover.environment()) == handover


def test_one_variable_whose_name_spark_passes_on_carries_plain_ascii() -> None:
    variables = make_handover().environment()
    assert [name.startswith("SPARK_") for name in variables] == [True]
    assert variables[HANDOVER_VARIABLE].isascii()


def test_options_that_are_objects_are_refused_without_being_shown() -> None:
    driver = DriverSettings(storage_options={"session": object(), "secret": TOKEN})
    handover = Handover(url="http://api", token=TOKEN, registration=make_registration(), driver=driver)
    with pytest.raises(InvalidConfigurationError, match="secret, session") as refused:
        handover.environment()
    assert TOKEN not in str(refused.value)
    assert refused.value.__suppress_context__


def test_token_is_not_in_the_text_of_a_handover() -> None:
    assert TOKEN not in repr(make_handover())


def test_children_of_the_driver_do_not_inherit_it(monkeypatch) -> None:
    monkeypatch.setenv(HANDOVER_VARIABLE, make_handover().environment()[HANDOVER_VARIABLE])
    take_handover()
    script = f"import os; print({HANDOVER_VARIABLE!r} in os.environ)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (HANDOVER_VARIABLE in os.environ, done.stdout.strip()) == (False, "False")


@pytest.mark.parametrize("variables", [{}, {HANDOVER_VARIABLE: ""}], ids=["none", "hidden from a worker"])
def test_process_without_a_handover_is_told_what_to_do(variables: dict[str, str]) -> None:
    with pytest.raises(EnvironmentNotReadyError, match=r"CheckpointedSparkSubmitOperator.*StageContext\.open"):
        take_handover(variables)


@pytest.mark.parametrize("text", [json.dumps({"url": TOKEN}), f"{{{TOKEN}", f'["{TOKEN}"]'])
def test_handover_of_another_version_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(EnvironmentNotReadyError) as refused:
        take_handover({HANDOVER_VARIABLE: text})
    assert TOKEN not in str(refused.value)
    assert refused.value.__suppress_context__


def test_second_call_after_a_failed_one_does_not_miss_the_handover(monkeypatch) -> None:
    def refuse(spark: object, handover: Handover) -> None:
        raise ConnectionError(handover.url)

    monkeypatch.setattr("airflow_provider_statecheck.spark.driver.attempts.repeat_registration", refuse)
    monkeypatch.setattr("airflow_provider_statecheck.spark.driver.attempts.running_session", object)
    monkeypatch.setattr("airflow_provider_statecheck.spark.driver.attempts.mask_settings", id)
    monkeypatch.setenv(HANDOVER_VARIABLE, make_handover().environment()[HANDOVER_VARIABLE])
    current = CurrentContext()
    for _ in range(2):
        with pytest.raises(ConnectionError, match="http://api"):
            current.get(object, None)  # type: ignore[arg-type]


def test_second_call_gives_the_same_context(monkeypatch) -> None:
    monkeypatch.setattr(
        "airflow_provider_statecheck.spark.driver.attempts.repeat_registration", lambda _, handover: handover
    )
    monkeypatch.setattr("airflow_provider_statecheck.spark.driver.attempts.mask_settings", id)
    monkeypatch.setenv(HANDOVER_VARIABLE, make_handover().environment()[HANDOVER_VARIABLE])
    current, made = CurrentContext(), []

    def make(spark, attempt, **_):
        made.append(attempt)
        return (spark, attempt)

    assert current.get(make, "session") is current.get(make, None)  # type: ignore[arg-type]
    assert len(made) == 1


def test_modules_that_make_the_check_load_none_of_these_packages() -> None:
    loaded = modules_loaded_by(
        "import airflow_provider_statecheck.spark.context, airflow_provider_statecheck.spark.stages.stage_run"
    )
    assert not loaded.intersection((*OF_EVERY_DRIVER, *OF_HTTP, *OF_STAGES, *OF_METADATA))


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        # Maintenance removes the jobs of test runs without asking how old they are.
        ({"job": "test/x"}, "choose another name"),
        ({"job": 5}, "a job that is text in UTF-8, found 5"),
        ({"run": date(2026, 1, 1)}, "Expected run to be text"),
        ({"on_clear": "restrat"}, "Expected on_clear to be one of .* found 'restrat'"),
        ({"claim_mode": None}, "Expected claim_mode to be one of .* found None"),
        ({"renamed_uids": ["old"]}, "Expected renamed_uids to be a mapping"),
        ({"min_pause": -1}, "Expected min_pause to be 0 or more"),
        ({"checkpoint_interval": "often"}, "Expected checkpoint_interval to be milliseconds"),
        ({"data_inline_threshold": "2 MiB"}, "Expected data_inline_threshold to be from 0 to 1 MiB"),
        ({"num_retained": 0}, "Expected num_retained to be at least 1"),
        ({"fork": "again"}, "Expected from_checkpoint with fork"),
        ({"savepoint_at_end": True}, "Expected a directory for the savepoint at the end"),
    ],
)
def test_script_with_a_wrong_argument_is_refused_before_any_work(
    tmp_path: Path, argument: dict[str, Any], message: str
) -> None:
    spark: Any = None
    arguments = {"job": "sales", "checkpoint_dir": f"{tmp_path}/c", "metadata": f"sqlite:///{tmp_path}/state.db"}
    with pytest.raises(InvalidConfigurationError, match=message):
        StageContext.open(spark, **arguments | argument)
    with pytest.raises(InvalidConfigurationError, match=message):
        run_stage(spark, DAYS, **arguments | argument)
    assert list(tmp_path.iterdir()) == []


class Noted(Exception):
    """Carries the arguments with which an attempt would be opened."""

    def __init__(self, *_: Any, **given: Any) -> None:
        self.given = given


def note(*arguments: Any, **given: Any) -> None:
    raise Noted(*arguments, **given)


CALLS = [(Place.SCRIPT, context, StageContext.open, ()), (Place.STAGE_SCRIPT, stage_run, run_stage, (DAYS,))]


@pytest.mark.parametrize(("place", "module", "call", "stage"), CALLS, ids=["steps", "stage"])
def test_each_setting_that_a_script_gives_reaches_its_attempt(
    monkeypatch: Any, place: Place, module: Any, call: Any, stage: tuple[Any, ...]
) -> None:
    monkeypatch.setattr(module, "open_attempt", note)
    given = {name: 2 if name == "parallelism" else object() for name in settings_in(place)}
    with pytest.raises(Noted) as opened:
        call(None, *stage, **given)
    assert given.items() <= opened.value.given.items()


def test_directories_of_the_backend_of_a_stage_come_first(monkeypatch: Any) -> None:
    monkeypatch.setattr(stage_run, "open_attempt", note)
    where: dict[str, Any] = {
        "job": "sales",
        "checkpoint_dir": "/data/c",
        "metadata": "sqlite://",
        "savepoint_dir": "/data/s",
    }
    backend = FsStateBackend("s3://lake/state")
    with pytest.raises(Noted) as opened:
        run_stage(cast("Any", None), replace(DAYS, state_backend=backend), **where)
    assert opened.value.given["checkpoint_dir"] == "s3://lake/state"
    assert opened.value.given["savepoint_dir"] == "/data/s"
    settings = StageSettings(state_config={"execution.checkpointing.storage": "s3://lake/storage"})
    with pytest.raises(Noted) as opened:
        run_stage(cast("Any", None), DAYS, settings=settings, **where)
    assert opened.value.given["checkpoint_dir"] == "s3://lake/storage"


SCRIPT_VALUES: dict[str, Any] = {
    "uid": "totals",
    "run": "2026-01-02",
    "num_retained": 7,
    "retained_runs": 3,
    "checkpoint_timeout_seconds": 12,
    "tolerable_failed_checkpoints": 4,
    "overhead_budget": 0.25,
    "checkpoint_interval": "5 min",
    "min_pause": "30 s",
    "savepoint_dir": "/elsewhere/savepoints",
    "renamed_uids": {"sums": "stage"},
    "allow_non_restored_state": True,
    "savepoint_at_end": True,
    "data_inline_threshold": "1 KiB",
    "allowed_locations": "s3://archive",
    "on_clear": "restart",
    "parallelism": 4,
    "storage_options": {"auto_mkdir": True},
}
ELSEWHERE = {"job", "checkpoint_dir", "metadata", "from_savepoint", "from_checkpoint", "fork", "claim_mode"}
"""Settings that other tests of scripts give."""


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: Any) -> Callable[..., Any]:
    """Return the registration and the settings of the driver of a script, without Spark."""
    for name in ("give_workers_this_python", "mask_settings", "make_ready"):
        monkeypatch.setattr(attempts, name, lambda *_: None)
    monkeypatch.setattr(attempts, "new_key", lambda: "key")
    monkeypatch.setattr(attempts, "attempt_of", lambda _, *asked: asked)
    where = {"job": "sales", "checkpoint_dir": f"{tmp_path}/c", "metadata": f"sqlite:///{tmp_path}/state.db"}
    spark: Any = None
    return lambda **given: attempts.open_attempt(spark, **where | given)[0]


def test_every_setting_of_scripts_has_a_value_here() -> None:
    assert SCRIPT_VALUES.keys() | ELSEWHERE == {name for place in SCRIPTS for name in settings_in(place)}


@pytest.mark.parametrize("name", SCRIPT_VALUES)
def test_a_setting_changes_what_the_attempt_of_a_script_is_handed(opened: Any, name: str) -> None:
    needed = {"savepoint_dir": "/elsewhere"} if name == "savepoint_at_end" else {}
    changed, before = opened(**needed, **{name: SCRIPT_VALUES[name]}), opened(**needed)
    assert (repr(changed), changed[0].options) != (repr(before), before[0].options)


def test_what_a_script_leaves_out_is_as_in_a_dag(opened: Any) -> None:
    _, registration, driver = opened()
    assert driver == DriverSettings()
    assert (registration.num_retained, registration.uid) == (2, "stage")


@pytest.mark.parametrize("uid", ["", 0])
def test_an_empty_uid_is_not_that_of_another_stage(opened: Any, uid: Any) -> None:
    with pytest.raises(InvalidConfigurationError, match="Expected a uid"):
        opened(uid=uid)
