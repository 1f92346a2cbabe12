"""Log lines in a program that has configured no logging, and in one that has."""

from __future__ import annotations

import subprocess
import sys

SHOW = "import logging; from airflow_provider_statecheck.checkpoint.masking import show_logs_of_script as show; "
LOG = "logging.getLogger('airflow_provider_statecheck.spark.status_log').info('restored %s', 7); "


def stderr_of(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stderr


def test_a_plain_script_shows_them_once_on_stderr() -> None:
    shown = stderr_of(f"{SHOW} show(); show(); {LOG}")
    assert shown.count("restored 7") == shown.count("\n") == 1


def test_a_program_with_its_own_logging_decides_itself() -> None:
    configure = "logging.basicConfig(level=logging.{}, format='own %(message)s'); "
    assert stderr_of(f"{SHOW} {configure.format('WARNING')} show(); {LOG}") == ""
    assert stderr_of(f"{SHOW} {configure.format('INFO')} show(); {LOG}") == "own restored 7\n"
    assert stderr_of(f"{SHOW} show(); {configure.format('INFO')} {LOG}") == "own restored 7\n"
    level = "logging.getLogger('airflow_provider_statecheck').setLevel(logging.ERROR); "
    assert stderr_of(f"{SHOW} {level} show(); {LOG}") == ""


def test_a_level_that_a_program_sets_later_hides_them() -> None:
    warn = "logging.getLogger('airflow_provider_statecheck.x').warning('lost'); "
    later = "logging.basicConfig(level=logging.WARNING, format='own %(message)s'); "
    assert stderr_of(f"{SHOW} show(); {later} {LOG} {LOG} {warn} {warn} {LOG}") == "own lost\nown lost\n"
    own = "logging.getLogger('airflow_provider_statecheck').setLevel(logging.INFO); "
    assert stderr_of(f"{SHOW} show(); {own} {later} {LOG} {LOG}") == "own restored 7\n" * 2


def test_a_handler_that_a_program_adds_to_the_package_later_shows_them_alone() -> None:
    add = "logging.getLogger('airflow_provider_statecheck').addHandler(logging.StreamHandler()); "
    warn = "logging.getLogger('airflow_provider_statecheck.x').warning('lost'); "
    assert stderr_of(f"{SHOW} show(); {add} {warn} {warn}") == "lost\nlost\n"


def test_they_follow_a_stderr_that_changes_and_closes() -> None:
    program = f"""import contextlib, io
{SHOW}
with io.StringIO() as first, contextlib.redirect_stderr(first):
    show(); {LOG}
    assert "restored 7" in first.getvalue()
{LOG}"""
    shown = stderr_of(program)
    assert (shown.count("restored 7"), shown.count("\n")) == (1, 1)
