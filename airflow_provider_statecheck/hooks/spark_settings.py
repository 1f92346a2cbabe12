"""Checks of the settings and the master of Spark, which Spark would report as errors of Java."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_statecheck.checkpoint.masking import remember_secrets, secrets_in_settings
from airflow_provider_statecheck.exceptions import InvalidConfigurationError

_KEY = re.compile(r"[^\s=]+")
_HOST_AND_PORT = r"[^\s/:,\[\]]+:\d+|\[[0-9A-Fa-f:.]+\]:\d+"
_MASTER = re.compile(
    r"local(\[(\*|\d+)(\s*,\s*\d+)?\])?"
    r"|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]"
    rf"|yarn|spark://({_HOST_AND_PORT})(,({_HOST_AND_PORT}))*|k8s://\S+"
)
_REMOTE = re.compile(r"sc://([^\s/;:]+|\[[0-9A-Fa-f:.]+\])(:\d+)?(/\S*)?|local(\[\S+\])?")
_MISSING = "None"
"""Text that a template writes for a missing value."""


def checked_settings(argument: str, given: Any) -> dict[str, Any]:
    """
    Return settings after a check of their names and values; texts do not show the secret ones from now on.

    :param argument: Name of the argument, or description of the place, for errors.
    :param given: Mapping, or ``None`` for no settings.
    :raises InvalidConfigurationError: if a setting has no value, or one that is neither text nor a number.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidConfigurationError(
            f"Expected a mapping as {argument}, found {type(given).__name__}; a template gives one only with "
            f"render_template_as_native_obj=True."
        )
    settings = {name: _checked(argument, name, value) for name, value in given.items()}
    # An error of Spark or of the user's code may quote them.
    remember_secrets(secrets_in_settings(settings))
    return settings


def _checked(argument: str, name: object, value: object) -> object:
    if not isinstance(name, str) or not _KEY.fullmatch(name):
        raise InvalidConfigurationError(
            f"Expected names without spaces and equals signs in {argument}, found {name!r}; correct it.", key=argument
        )
    place = f"{argument}[{name!r}]"
    if value is None or value == _MISSING:
        raise InvalidConfigurationError(
            f"Expected a value for {place}, found {value!r}, which a template writes for a missing value; give one, or "
            f"leave it out.",
            key=name,
        )
    if not isinstance(value, str | int | float):
        # The value may be a secret.
        raise InvalidConfigurationError(
            f"Expected text, a number or a truth value for {place}, found {type(value).__name__}; write it as text.",
            key=name,
        )
    return value


def checked_texts(argument: str, given: Any) -> list[str] | None:
    """
    Return a list of texts after a check of its values.

    :param given: List of texts and numbers, or ``None``.
    :raises InvalidConfigurationError: if the argument is no list, or one of its values is missing.
    """
    if given is None:
        return None
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise InvalidConfigurationError(
            f"Expected a list as {argument}, found {type(given).__name__}; a template gives one only with "
            f"render_template_as_native_obj=True."
        )
    for index, value in enumerate(given):
        if value is None:
            raise InvalidConfigurationError(
                f"Expected a value for {argument}[{index}], found None, which a template gives for a missing value; "
                "give one.",
                key=argument,
            )
    return [str(value) for value in given]


def require_master(master: str, place: str, remedy: str) -> None:
    """
    Require a master that Spark knows.

    :param place: Argument or connection that names the master, for errors.
    :param remedy: What to do, for errors.
    :raises InvalidConfigurationError: if Spark would refuse the master.
    """
    if not _MASTER.fullmatch(master):
        raise InvalidConfigurationError(
            f"Expected a master such as spark://host:7077, k8s://https://host:443, yarn or local[4] in {place}, found "
            f"{master!r}; {remedy}",
            key=place,
        )


def require_remote(remote: str, place: str) -> None:
    """
    Require the address of a Spark Connect server.

    :raises InvalidConfigurationError: if Spark would refuse the address.
    """
    if not _REMOTE.fullmatch(remote):
        # The address may contain a token.
        raise InvalidConfigurationError(
            f"Expected the address of a Spark Connect server such as sc://host:15002 in {place}, found another text; "
            f"correct it.",
            key=place,
        )
