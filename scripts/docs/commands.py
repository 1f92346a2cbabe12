"""Commands of ``airflow statecheck``, from their argparse definitions."""

from __future__ import annotations

import re
from argparse import SUPPRESS, Action, ArgumentParser
from collections.abc import Iterable, Iterator

from airflow.cli.cli_config import ActionCommand, CLICommand, GroupCommand

from airflow_provider_statecheck.cli.definition import get_statecheck_commands
from scripts.docs.tables import code, table

_EXIT_STATUS = re.compile(r"(?P<status>\d+) (?P<meaning>[^;.]+)[;.]")
_DEFAULT_IN_HELP = re.compile(r"\s*\(default: (?P<default>[^)]*)\)$")
_ALLOWED_IN_HELP = re.compile(r"\s*Allowed values: .*$")


def commands() -> dict[str, ActionCommand]:
    """Return the commands by their names below ``airflow statecheck``, such as ``state get``."""
    return {" ".join(words[1:]): command for words, command in _named(get_statecheck_commands())}


def _named(found: Iterable[CLICommand], group: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], ActionCommand]]:
    for each in found:
        if isinstance(each, GroupCommand):
            yield from _named(each.subcommands, (*group, each.name))
        else:
            yield (*group, each.name), each


def command_reference(name: str) -> str:
    """Return the description, the usage and the arguments of a command."""
    command = commands()[name]
    actions = _actions(command)
    usage = f"```text\n{_usage(name, actions)}\n```"
    return "\n\n".join([f"{command.help}.", usage, table(("Argument", "Default", "Meaning"), map(_row, actions))])


def exit_statuses_table() -> str:
    """Return the table of the exit statuses of all commands."""
    (epilog,) = {command.epilog or "" for command in commands().values()}
    found = _EXIT_STATUS.finditer(" ".join(epilog.split()))
    rows = ((status["status"], status["meaning"][:1].upper() + status["meaning"][1:]) for status in found)
    return table(("Exit status", "Meaning"), rows)


def _actions(command: ActionCommand) -> list[Action]:
    """Return the arguments, positional ones first."""
    parser = ArgumentParser(add_help=False)
    for arg in command.args:
        arg.add_to_parser(parser)
    return sorted(parser._actions, key=lambda action: bool(action.option_strings))


def _usage(name: str, actions: list[Action]) -> str:
    required = [f"{action.option_strings[-1]} {_placeholder(action)}" for action in actions if _is_required(action)]
    positional = [_positional(action) for action in actions if not action.option_strings]
    return " ".join(["airflow statecheck", name, *required, "[OPTIONS]", *positional])


def _is_required(action: Action) -> bool:
    return bool(action.option_strings) and action.required


def _positional(action: Action) -> str:
    suffix = " ..." if action.nargs in ("*", "+") else ""
    shown = f"{_placeholder(action)}{suffix}"
    return f"[{shown}]" if action.nargs in ("*", "?") else shown


def _row(action: Action) -> tuple[str, str, str]:
    return _argument(action), _default(action), _meaning(action)


def _argument(action: Action) -> str:
    if not action.option_strings:
        return code(_placeholder(action))
    *short, flag = action.option_strings
    value = f" {_placeholder(action)}" if action.nargs != 0 else ""
    return ", ".join(map(code, [*short, flag + value]))


def _placeholder(action: Action) -> str:
    return action.metavar if isinstance(action.metavar, str) and "(" not in action.metavar else action.dest.upper()


def _default(action: Action) -> str:
    if action.required and action.nargs != "*":
        return "required"
    stated = _DEFAULT_IN_HELP.search(action.help or "")
    if stated:
        return code(stated["default"])
    return "" if action.nargs == 0 or action.default in (None, SUPPRESS, [], "") else code(action.default)


def _meaning(action: Action) -> str:
    sentences = [_ALLOWED_IN_HELP.sub("", _DEFAULT_IN_HELP.sub("", action.help or "")).removesuffix(".")]
    if action.choices:
        sentences.append(f"One of {_listed(action)}")
    return "".join(f"{sentence}. " for sentence in sentences)


def _listed(action: Action) -> str:
    return ", ".join(code(choice) for choice in action.choices or ())
