"""The reference of options, arguments and commands: committed, complete and up to date."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from airflow.cli.cli_config import ActionCommand, Arg

from airflow_provider_statecheck.cli.output import Exit
from airflow_provider_statecheck.exceptions import A_RETRY_CANNOT_HELP
from airflow_provider_statecheck.get_provider_info import get_provider_info
from scripts.docs import __main__ as program
from scripts.docs.arguments import CLASSES
from scripts.docs.commands import commands
from scripts.docs.pages import generated
from tests.docs.pages import ROOT

CLI = (ROOT / "docs" / "reference" / "cli.md").read_text()
CONFIGURATION = (ROOT / "docs" / "reference" / "configuration.md").read_text()
OPTIONS: dict[str, dict[str, Any]] = get_provider_info()["config"]["statecheck"]["options"]
COMMANDS = [pytest.param(name, command, id=name) for name, command in commands().items()]


def region(page: str, name: str) -> str:
    """Return the generated text of a region, with its runs of white space joined."""
    found = re.search(rf"<!-- generated: {re.escape(name)} -->\n(.*?)<!-- end -->", page, re.DOTALL)
    assert found, f"no region {name!r}"
    return " ".join(found[1].split())


def without_default(help_text: str) -> str:
    return re.sub(r"\s*\(default:.*|\s*Allowed values:.*|\.$", "", help_text)


def shown(arg: Arg) -> list[str]:
    """Return how a row of the page names an argument."""
    if arg.flags[0].startswith("-"):
        return [f"`{flag}" for flag in arg.flags]
    return [f"| `{(arg.kwargs.get('metavar') or arg.flags[0].upper()).replace('|', chr(92) + '|')}` |"]


@pytest.mark.parametrize("page", program.PAGES, ids=lambda page: page.name)
def test_a_page_is_up_to_date(page: Path):
    assert generated(page.read_text()) == page.read_text(), "out of date; run python -m scripts.docs"


@pytest.mark.parametrize(("name", "command"), COMMANDS)
def test_a_command_is_described_with_each_of_its_arguments(name: str, command: ActionCommand):
    text = region(CLI, f"command {name}")

    assert f"airflow statecheck {name} " in text
    assert f"\n## {name}\n" in CLI
    assert [row for arg in command.args for row in shown(arg) if row not in text] == []
    assert [arg.flags for arg in command.args if without_default(arg.kwargs["help"]) not in text] == []


@pytest.mark.parametrize(("name", "command"), COMMANDS)
def test_defaults_and_choices_of_a_command_are_shown(name: str, command: ActionCommand):
    text = region(CLI, f"command {name}")
    values = [choice for arg in command.args for choice in arg.kwargs.get("choices") or ()]
    defaults = [arg.kwargs["default"] for arg in command.args if isinstance(arg.kwargs.get("default"), int | str)]

    assert [value for value in (*values, *defaults) if f"`{value}`" not in text] == []


def test_only_arguments_without_which_a_command_fails_are_required():
    assert "| `JOB` | | " in region(CLI, "command gc")
    assert "| `NAME` | | " in region(CLI, "command state show")
    assert "| `JOB` | required | " in region(CLI, "command rewind")
    assert "airflow statecheck rewind --before RUN [OPTIONS] JOB " in region(CLI, "command rewind")


@pytest.mark.parametrize("status", Exit, ids=lambda status: status.name)
def test_an_exit_status_is_described(status: Exit):
    assert f"| {status.value} | " in region(CLI, "exit-statuses")


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_is_described(name: str):
    description, text = OPTIONS[name]["description"], region(CONFIGURATION, "options")

    assert len(description.split()) >= 5
    assert description.endswith(".")
    assert f"| `{name}` | {OPTIONS[name]['type']} | " in text
    assert " ".join(description.split()) in text
    assert f"`AIRFLOW__STATECHECK__{name.upper()}`" in text


@pytest.mark.parametrize("name", CLASSES)
def test_each_argument_of_an_operator_is_described(name: str):
    text = region(CONFIGURATION, f"arguments {name}")
    documented = re.findall(r"^:param (\w+):", inspect.getdoc(CLASSES[name]) or "", re.MULTILINE)

    assert documented
    assert [argument for argument in documented if f"| `{argument}` |" not in text] == []


def test_each_error_that_is_not_retried_is_listed_with_its_section():
    page = (ROOT / "docs" / "operate" / "troubleshooting.md").read_text()
    text = region(page, "unretried-errors")

    assert [e.__name__ for e in A_RETRY_CANNOT_HELP if f"| [`{e.__name__}`](#{e.code}) | " not in text] == []
    assert [e.code for e in A_RETRY_CANNOT_HELP if f"\n### `{e.code}`\n" not in page] == []


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    page = tmp_path / "page.md"
    page.write_text("Before\n\n<!-- generated: exit-statuses -->\nold\n<!-- end -->\n\nAfter\n")
    monkeypatch.setattr(program, "PAGES", (page,))
    return page


def test_the_check_names_a_page_that_is_out_of_date_and_leaves_it(page: Path, capsys: pytest.CaptureFixture[str]):
    before = page.read_text()

    assert program.main(["--check"]) == 1
    assert capsys.readouterr().out == "page.md: out of date; run python -m scripts.docs\n"
    assert page.read_text() == before


def test_a_written_page_is_up_to_date_and_keeps_what_surrounds_the_region(page: Path):
    assert program.main([]) == 0
    assert program.main(["--check"]) == 0
    assert page.read_text().startswith("Before\n\n<!-- generated: exit-statuses -->\n\n| Exit status | Meaning |\n")
    assert page.read_text().endswith("<!-- end -->\n\nAfter\n")
    assert "old" not in page.read_text()
