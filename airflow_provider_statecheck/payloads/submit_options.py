"""
Options of ``spark-submit``, as a list of words or as one text.

Several services take them: they are split into options, an application and its arguments, and only the options of the
mailbox and of Python files are touched. Of several options ``--py-files`` Spark reads the last one, and instead of the
property ``spark.submit.pyFiles``; so the package is added to what Spark would read.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence

from airflow_provider_statecheck.payloads.additions import (
    Additions,
    application_of,
    with_joined_file,
)
from airflow_provider_statecheck.spark.driver.application import MAILBOX_PROPERTY

PYTHON_FILES = "spark.submit.pyFiles"
_FILES = "--py-files"
_CONF = ("--conf", "-c")
_SWITCHES = ("--supervise", "--verbose", "-v", "--load-spark-defaults", "--version", "--help", "-h", "--usage-error")
"""Options without a value."""
_WORD = re.compile(r"""(?:\{\{.*?\}\}|[^\s"']|"[^"]*"|'[^']*'|["'])+""")
"""A word with its quotes and templates; a quote that is never closed belongs to its word."""

Option = tuple[str, ...]
"""An option with its value as one or two words."""


def command_with(words: Sequence[str], additions: Additions, place: str) -> list[str]:
    """
    Return the words after ``spark-submit`` with additions.

    :param place: Where they are, for messages.
    :raises InvalidConfigurationError: if the application is missing, or not in Python.
    """
    length = _length(words)
    options, found = list(_options(words[:length])), [str(each) for each in words[length:]]
    file, arguments = application_of(found[0] if found else None, found[1:], additions, place)
    return [
        *_joined(_with_additions(options, additions, None, str)),
        file,
        *(found[1:] if arguments is None else arguments),
    ]


def application_in(words: Sequence[str]) -> str | None:
    """Return the application among the words after ``spark-submit``, ``None`` if there are options alone."""
    length = _length(words)
    return str(words[length]) if length < len(words) else None


def text_with(text: str | None, additions: Additions, inherited: str | None = None) -> str:
    """
    Return a text of options with additions; it keeps its quotes, and has one space between words.

    :param inherited: Python files that are set elsewhere, and that ``--py-files`` in the text would replace.
    """
    options = list(_options(_WORD.findall(text or "")))
    return " ".join(_joined(_with_additions(options, additions, inherited, shlex.quote)))


def _length(words: Sequence[str]) -> int:
    """Return the number of words of options before the application."""
    length = 0
    for option in _options(words):
        if not option[0].startswith("-"):
            break
        length += len(option)
    return length


def _options(words: Sequence[str]) -> Iterator[Option]:
    """Return the options, and other words, such as a template with several options, as they are."""
    place = 0
    while place < len(words):
        word = str(words[place])
        has_value = word.startswith("-") and word not in _SWITCHES and not (word.startswith("--") and "=" in word)
        length = 2 if has_value else 1
        yield tuple(str(each) for each in words[place : place + length])
        place += length


def _with_additions(
    options: list[Option], additions: Additions, inherited: str | None, quoted: Callable[[str], str]
) -> list[Option]:
    kept = [option for option in options if not _sets(option, MAILBOX_PROPERTY)]
    package = additions.package
    with_files = kept if package is None else _with_package(kept, package, inherited, quoted)
    return [*with_files, ("--conf", quoted(f"{MAILBOX_PROPERTY}={additions.mailbox}"))]


def _with_package(
    options: list[Option], package: str, inherited: str | None, quoted: Callable[[str], str]
) -> list[Option]:
    place = _last(options, [_name(each) == _FILES for each in options])
    if place is not None:
        return _replaced(options, place, (_FILES, quoted(with_joined_file(_value(options[place]), package))))
    place = _last(options, [_sets(each, PYTHON_FILES) for each in options])
    if place is not None:
        files = with_joined_file(_value(options[place]).partition("=")[2], package)
        return _replaced(options, place, ("--conf", quoted(f"{PYTHON_FILES}={files}")))
    return [*options, (_FILES, quoted(with_joined_file(inherited, package)))]


def _last(options: list[Option], fits: list[bool]) -> int | None:
    return next((place for place in reversed(range(len(options))) if fits[place]), None)


def _replaced(options: list[Option], place: int, option: Option) -> list[Option]:
    return [*options[:place], option, *options[place + 1 :]]


def _sets(option: Option, name: str) -> bool:
    return _name(option) in _CONF and _value(option).startswith(f"{name}=")


def _name(option: Option) -> str:
    return option[0] if len(option) > 1 else option[0].partition("=")[0]


def _value(option: Option) -> str:
    return (option[1] if len(option) > 1 else option[0].partition("=")[2]).strip("\"'")


def _joined(options: list[Option]) -> list[str]:
    return [word for option in options for word in option]
