"""Every command that a page names exists and takes the arguments that it is given."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from argparse import ArgumentParser, _SubParsersAction
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from packaging.requirements import Requirement
from starlette.routing import BaseRoute, Match

from airflow_provider_statecheck.configuration import SECTION, reject_unused_keys, state_backend_settings
from airflow_provider_statecheck.gateway.verbs import MOUNT_PATH
from airflow_provider_statecheck.get_provider_info import get_provider_info
from airflow_provider_statecheck.state.backends import backend_of_stage
from tests.docs.pages import PAGES, ROOT, Block, all_blocks, code_spans, name_of

LANGUAGES = ("bash", "console", "sh")
_ASSIGNMENT = re.compile(r"(?P<name>[A-Z_][A-Z0-9_]*)=(?P<value>.*)")
_OPTION = re.compile(r"\[(?P<section>\w+)\] (?P<option>\w+)")
COMPOSE = ROOT / "docker" / "compose.yaml"
STARTED_BY_SERVICES = (
    "airflow api-server",
    "org.apache.spark.deploy.SparkSubmit",
    "org.apache.spark.executor.CoarseGrainedExecutorBackend",
)
"""Commands that the compose file does not name: what ``docker/serve.py`` becomes, a driver's JVM, an executor's."""
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def commands_of(block: Block) -> Iterator[list[str]]:
    """Return the words of each command; what a prompt of a ``console`` block does not precede is output."""
    for line in block.code.replace("\\\n", " ").splitlines():
        if block.language == "console" and not line.startswith("$ "):
            continue
        words = shlex.split(line.removeprefix("$ "), comments=True)
        if words:
            yield words


COMMANDS = [(block.name, words) for block in all_blocks(*LANGUAGES) if not block.excuse for words in commands_of(block)]


@cache
def airflow_parser() -> ArgumentParser:
    from airflow.cli.cli_parser import get_parser

    return get_parser()


def check_airflow(arguments: list[str]) -> None:
    airflow_parser().parse_args(arguments)


def check_make(arguments: list[str]) -> None:
    for argument in arguments:
        if not _ASSIGNMENT.fullmatch(argument):
            subprocess.run(["make", "--dry-run", argument], cwd=ROOT, capture_output=True, check=True)


def check_pip(arguments: list[str]) -> None:
    assert arguments[0] == "install"
    wanted = [Requirement(word) for word in arguments[1:] if not word.startswith("-")]
    assert wanted
    for requirement in wanted:
        if requirement.name == _PROJECT["name"]:
            assert requirement.extras <= set(_PROJECT["optional-dependencies"])


def check_export(arguments: list[str]) -> None:
    for argument in arguments:
        found = _ASSIGNMENT.fullmatch(argument)
        assert found
        check_variable(found["name"])


def check_variable(name: str) -> None:
    """Let pass what is no option of Airflow's, and options that there are."""
    if name.startswith("AIRFLOW__"):
        _, section, option = name.split("__")
        check_option(section.lower(), option.lower())


def check_option(section: str, option: str) -> None:
    from airflow.configuration import conf

    ours = get_provider_info()["config"].get(section, {}).get("options", {})
    assert option in ours or (section, option) in _declared(conf), f"[{section}] {option} is no option"


def check_flinks_keys(settings: dict[str, str]) -> None:
    """Let pass the keys that act, those of the state backend with values that it takes."""
    reject_unused_keys(settings)
    backend_of_stage(None, state_backend_settings(settings))


def _declared(conf: object) -> set[tuple[str, str]]:
    described = getattr(conf, "configuration_description")  # noqa: B009 - of no declared type
    return {(section, option) for section, of in described.items() for option in of["options"]}


def check_installed(program: str) -> Callable[[list[str]], None]:
    def check(arguments: list[str]) -> None:
        assert program in {each.name for each in entry_points(group="console_scripts")}

    return check


def check_spark_submit(arguments: list[str]) -> None:
    """Let pass a script with the shipped package; ``tests/packaging`` submits such scripts."""
    option, package, script = arguments
    assert (option, Path(package).suffix, Path(script).suffix) == ("--py-files", ".zip", ".py")


def check_uv(arguments: list[str]) -> None:
    """Let pass a build of the package; ``tests/packaging`` builds its wheel."""
    assert Path(sys.executable).with_name("uv").exists()
    assert arguments[:2] == ["build", "--out-dir"]


def check_docker(arguments: list[str]) -> None:
    """Let pass commands of Compose on a file that there is, for a service that it has."""
    given = compose_parser().parse_args(arguments)
    services = services_of(ROOT / given.file)
    assert given.service is None or given.service in services, f"{given.file} has no service {given.service!r}"
    if given.words:
        assert given.words[0] in IN_CONTAINERS, f"no test knows how to check {given.words[0]!r} in a container"
        IN_CONTAINERS[given.words[0]](given.words[1:])


@cache
def compose_parser() -> ArgumentParser:
    """Return what reads the commands that the pages show; Compose itself takes more."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("compose", choices=["compose"])
    parser.add_argument("--file", required=True)
    commands = parser.add_subparsers(required=True)
    parser.set_defaults(service=None, words=[])
    up, down = commands.add_parser("up"), commands.add_parser("down")
    for option in ("--build", "--detach", "--wait"):
        up.add_argument(option, action="store_true")
    down.add_argument("--volumes", action="store_true")
    commands.add_parser("ps")
    commands.add_parser("logs").add_argument("service")
    execute = commands.add_parser("exec")
    execute.add_argument("service")
    execute.add_argument("words", nargs="...")
    return parser


@cache
def services_of(file: Path) -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load(file.read_text())["services"]
    return services


def check_pkill(arguments: list[str]) -> None:
    """Let pass what ends a service of the compose file, or what one of them starts."""
    *options, pattern = arguments
    assert options == ["-9", "-f"]
    commands = [" ".join(service["command"]) for service in services_of(COMPOSE).values()]
    found = [command for command in (*commands, *STARTED_BY_SERVICES) if re.search(pattern, command)]
    assert found, f"nothing has {pattern!r} in its command"


def check_kill(arguments: list[str]) -> None:
    assert arguments[0] == "-9"
    assert all(argument.removeprefix("-").isdigit() for argument in arguments[1:])


def check_supervisorctl(arguments: list[str]) -> None:
    check_installed("supervisorctl")(arguments)
    option, server, *words, service = arguments
    assert (option, server) == ("--serverurl", "unix://$PWD/.stack/supervisor.sock")
    assert words == ["signal", "KILL"]
    assert service in services_of(COMPOSE)


def check_make_secrets(arguments: list[str]) -> None:
    assert os.access(COMPOSE.with_name("make_secrets"), os.X_OK)
    used = {str(Path(secret["file"]).parent) for secret in yaml.safe_load(COMPOSE.read_text())["secrets"].values()}
    assert {str(COMPOSE.parent.relative_to(ROOT) / folder) for folder in used} == set(arguments)


def check_python(arguments: list[str]) -> None:
    first, *others = arguments
    if first == "-c":
        compile(others[0], "<command>", "exec")
    elif first == "-m":
        assert find_spec(others[0]), f"there is no module {others[0]}"
    elif first not in {block.file for block in all_blocks("python")}:
        assert (ROOT / first).is_file()


def check_pytest(arguments: list[str]) -> None:
    paths = [argument.partition("::")[0] for argument in arguments if "/" in argument]
    assert [path for path in paths if not (ROOT / path).exists() and not path.startswith("tests/my")] == []


@cache
def api_routes() -> list[BaseRoute]:
    """Return the routes of the API on Airflow's api-server."""
    from airflow_provider_statecheck.api.airflow_app import create_airflow_app
    from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

    return create_airflow_app(CheckpointStorage.open).routes


def check_curl(arguments: list[str]) -> None:
    """Let pass requests for which the API has a route."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--fail", action="store_true")
    parser.add_argument("--header", choices=["Authorization: Bearer $TOKEN", "Authorization: Bearer $AIRFLOW_TOKEN"])
    parser.add_argument("--json", type=json.loads)
    parser.add_argument("url", type=urlsplit)
    given = parser.parse_args(arguments)
    assert given.url.path.startswith(MOUNT_PATH)
    path, method = given.url.path.removeprefix(MOUNT_PATH), "GET" if given.json is None else "POST"
    scope = {"type": "http", "method": method, "path": path}
    assert any(route.matches(scope)[0] is Match.FULL for route in api_routes()), f"no route for {method} {path}"


PROGRAMS: dict[str, Callable[[list[str]], None]] = {
    "airflow": check_airflow,
    "make": check_make,
    "pip": check_pip,
    "export": check_export,
    "curl": check_curl,
    "docker": check_docker,
    "echo": lambda _: None,
    "mkdir": lambda _: None,
    "kill": check_kill,
    "make_secrets": check_make_secrets,
    "pytest": check_pytest,
    "python": check_python,
    "spark-submit": check_spark_submit,
    "supervisorctl": check_supervisorctl,
    "uv": check_uv,
    "pre-commit": check_installed("pre-commit"),
}
IN_CONTAINERS: dict[str, Callable[[list[str]], None]] = {
    "airflow": check_airflow,
    "pkill": check_pkill,
    "python": check_python,
}


@pytest.mark.airflow
@pytest.mark.parametrize(("name", "words"), COMMANDS, ids=[f"{name} {words[0]}" for name, words in COMMANDS])
def test_a_command_exists_and_takes_its_arguments(name: str, words: list[str]) -> None:
    while found := _ASSIGNMENT.fullmatch(words[0]):
        check_variable(found["name"])
        words = words[1:]
    program = Path(words[0]).name
    assert program in PROGRAMS, f"{name} uses {program!r}, of which no test knows how to check it"
    PROGRAMS[program](words[1:])


def has_command(parser: ArgumentParser, words: list[str]) -> bool:
    """Tell whether the words are a command, whose arguments may be left out, or a group of commands."""
    groups = [action.choices for action in parser._actions if isinstance(action, _SubParsersAction)]
    if not groups or not words:
        return True
    return words[0] in groups[0] and has_command(groups[0][words[0]], words[1:])


@pytest.mark.airflow
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_commands_in_a_text_exist(page: Path) -> None:
    spans = [shlex.split(span) for span in code_spans(page) if span.startswith(("airflow ", "make "))]

    assert [words for words in spans if words[0] == "airflow" and not has_command(airflow_parser(), words[1:])] == []
    for words in spans:
        if words[0] == "make":
            check_make(words[1:])


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_options_in_a_text_exist(page: Path) -> None:
    for span in code_spans(page):
        if found := _OPTION.fullmatch(span):
            check_option(found["section"], found["option"])


def test_the_options_of_ini_blocks_exist() -> None:
    for block in all_blocks("ini"):
        parser = configparser.ConfigParser(interpolation=None)
        parser.read_string(block.code)
        assert parser.sections(), block.name
        for section in parser.sections():
            options = dict(parser[section])
            if section == SECTION:
                check_flinks_keys({key: options.pop(key) for key in list(options) if "." in key})
            for option in options:
                check_option(section, option)
