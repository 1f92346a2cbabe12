"""Where a driver finds its mailbox."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError, InvalidConfigurationError
from airflow_provider_statecheck.gateway.mailbox.box import Mailbox
from airflow_provider_statecheck.spark.driver.application import STAGE_ARGUMENT
from airflow_provider_statecheck.spark.driver.attempts import HANDOVER_VARIABLE, Handover
from airflow_provider_statecheck.spark.driver.mailbox import (
    MailboxContent,
    MailboxHandover,
    find_handover,
    taken_argument,
)
from airflow_provider_statecheck.spark.driver.settings import DriverSettings
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.messages import make_registration
from tests.sqlite_rows import new_store


@pytest.fixture
def mailbox(tmp_path: Path) -> Mailbox:
    """Return a mailbox with a handover."""
    storage = CheckpointStorage.open(str(tmp_path))
    registration = make_registration(storage_base=storage.base_uri)
    opened = Mailbox(storage, AttemptCoordinator(new_store()).register(registration).attempt)
    MailboxContent(registration=registration, driver=DriverSettings(), patience_seconds=9.0).open(opened)
    return opened


def found(**arguments: Any) -> MailboxHandover:
    handover = find_handover(**arguments)
    assert isinstance(handover, MailboxHandover)
    return handover


@pytest.mark.parametrize("form", ["two", "one"])
def test_mailbox_is_taken_out_of_the_arguments_of_the_application(mailbox: Mailbox, monkeypatch, form: str) -> None:
    option = ["--statecheck-mailbox", mailbox.uri] if form == "two" else [f"--statecheck-mailbox={mailbox.uri}"]
    arguments = ["job.py", "--day", "1", *option, "--verbose"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert (found().mailbox.uri, found(mailbox=mailbox.uri).patience_seconds) == (mailbox.uri, 9.0)
    assert arguments == ["job.py", "--day", "1", "--verbose"]


def test_session_that_refuses_to_name_its_properties_is_not_asked_where_an_argument_names_the_mailbox(
    mailbox: Mailbox, monkeypatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["job.py", f"--statecheck-mailbox={mailbox.uri}"])
    assert found(spark=object()).mailbox.uri == mailbox.uri


@pytest.mark.parametrize("form", [["--statecheck-stage", "sales:totals"], ["--statecheck-stage=sales:totals"]])
def test_stage_is_taken_out_of_arguments_with_names(monkeypatch, form: list[str]) -> None:
    arguments = ["statecheck_stage.py", "--JOB_NAME", "totals", *form]
    monkeypatch.setattr(sys, "argv", arguments)
    assert taken_argument(STAGE_ARGUMENT) == "sales:totals"
    assert taken_argument(STAGE_ARGUMENT) is None
    assert arguments == ["statecheck_stage.py", "--JOB_NAME", "totals"]


def test_mailbox_that_the_application_names_comes_first(mailbox: Mailbox, monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["job.py", "--statecheck-mailbox", "s3://other"])
    given = found(mailbox=mailbox.uri, storage_options={"auto_mkdir": True})
    assert given.mailbox.attempt == mailbox.attempt
    assert given.driver.storage_options == {"auto_mkdir": True}


def test_handover_in_the_environment_comes_before_the_arguments(mailbox: Mailbox, monkeypatch) -> None:
    handover = Handover(url="http://api", token="t", registration=make_registration(), driver=DriverSettings())
    monkeypatch.setenv(HANDOVER_VARIABLE, handover.environment()[HANDOVER_VARIABLE])
    monkeypatch.setattr(sys, "argv", ["job.py", "--statecheck-mailbox", mailbox.uri])
    assert find_handover() == handover


def test_driver_that_nobody_submitted_is_told(monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["job.py"])
    with pytest.raises(EnvironmentNotReadyError, match="submitted, found a process without a handover"):
        find_handover()


def test_driver_whose_task_has_ended_is_told(mailbox: Mailbox) -> None:
    mailbox.remove()
    with pytest.raises(EnvironmentNotReadyError, match="found none; its task has ended"):
        find_handover(mailbox=mailbox.uri)


def test_handover_of_another_version_is_told(mailbox: Mailbox, tmp_path: Path) -> None:
    [file] = tmp_path.rglob("handover.json")
    file.write_text('{"registration": 1}')
    with pytest.raises(EnvironmentNotReadyError, match="Run the driver with the package"):
        find_handover(mailbox=mailbox.uri)


def test_uri_of_something_else_is_told() -> None:
    with pytest.raises(InvalidConfigurationError, match="URI of a mailbox"):
        find_handover(mailbox="s3://lake/checkpoints/sales")
