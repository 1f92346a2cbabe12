"""
What a job specification of a service gets, and the few ways in which it gets it.

A specification gets the URI of the mailbox, this package, and for a stage its application, and nothing else. What a
user has set stays as it is; what an earlier call added is replaced, so a retry may pass a specification of its first
try. Nothing here changes its arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.driver.application import MAILBOX_ARGUMENT, MAILBOX_PROPERTY, STAGE_APPLICATION
from airflow_provider_statecheck.storage.uris import redact

MAILBOX_PARAMETER = MAILBOX_ARGUMENT.removeprefix("--")
"""Name of the mailbox where parameters are pairs, as of notebooks; a service that writes ``--`` before it is right."""
_OF_THIS_PACKAGE = "airflow_provider_statecheck-"
_ARCHIVES = (".zip", ".whl")
_OTHER_LANGUAGES = {".jar": "a JAR", ".scala": "a Scala script", ".r": "an R script", ".sql": "a SQL script"}
_OF_HADOOP = {"s3": "s3a", "gcs": "gs"}
_OF_AMAZON = {"s3a": "s3"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Additions:
    """What the Airflow operator adds to the specification of a job."""

    mailbox: str
    """URI of the mailbox, which is no secret."""
    package: str | None = None
    """URI of this package as a zip file; ``None`` if it is installed on the cluster."""
    wheel: str | None = None
    """URI of this package as a wheel, for a service that installs it; ``None`` if it is installed on the cluster."""
    application: str | None = None
    """URI of the application that runs a stage; ``None`` if the specification names a script of its own."""
    arguments: tuple[str, ...] = ()
    """Arguments of that application: the location of the stage."""


def of_hadoop(additions: Additions) -> Additions:
    """Return additions whose files have the schemes of stock Spark: ``s3a`` for S3, ``gs`` for Google's storage."""
    return _with_schemes(additions, _OF_HADOOP)


def of_amazon(additions: Additions) -> Additions:
    """Return additions whose files have the scheme of Amazon's own runtimes: ``s3``."""
    return _with_schemes(additions, _OF_AMAZON)


def with_values(spec: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a specification with other values; it keeps its own value where the other is ``None``."""
    return {**spec, **{name: value for name, value in values.items() if value is not None}}


def with_property(properties: Any, additions: Additions, place: str) -> dict[str, Any]:
    """
    Return the properties of Spark with the mailbox.

    :param place: Where they are, for messages.
    :raises InvalidConfigurationError: if they are not a mapping.
    """
    return {**mapping(properties, place), MAILBOX_PROPERTY: additions.mailbox}


def with_argument(arguments: Any, additions: Additions, place: str) -> list[Any]:
    """
    Return the arguments of an application with the mailbox as the last one.

    :param place: Where they are, for messages.
    :raises InvalidConfigurationError: if they are not a list.
    """
    kept = [each for each in listed(arguments, place) if not str(each).startswith(f"{MAILBOX_ARGUMENT}=")]
    return [*kept, f"{MAILBOX_ARGUMENT}={additions.mailbox}"]


def with_parameter(parameters: Any, additions: Additions, place: str) -> dict[str, Any]:
    """
    Return named parameters with the mailbox.

    :param place: Where they are, for messages.
    :raises InvalidConfigurationError: if they are not a mapping.
    """
    return {**mapping(parameters, place), MAILBOX_PARAMETER: additions.mailbox}


def with_file(files: Any, package: str | None, place: str) -> list[Any] | None:
    """
    Return a list of Python files with this package as the last one; ``None`` if there is nothing to add.

    :param place: Where they are, for messages.
    :raises InvalidConfigurationError: if they are not a list.
    """
    if package is None:
        return None
    return [*(each for each in listed(files, place) if not is_this_package(str(each))), package]


def with_joined_file(files: str | None, package: str) -> str:
    """Return a comma-separated list of files with this package as the last one."""
    kept = [each for each in (files or "").split(",") if each and not is_this_package(each)]
    return ",".join([*kept, package])


def is_this_package(uri: str) -> bool:
    """Return whether a file has the name of this package, of any version."""
    name = uri.strip().rpartition("/")[2]
    return name.startswith(_OF_THIS_PACKAGE) and name.endswith(_ARCHIVES)


def application_of(file: Any, arguments: Any, additions: Additions, place: str) -> tuple[Any, list[Any] | None]:
    """
    Return the application of a job and its arguments: those of the specification, or those of the stage.

    :param file: Application that the specification names.
    :param place: Where it is, for messages.
    :return: ``None`` as arguments for those that the specification has.
    :raises InvalidConfigurationError: if there is no application, or two, or one that is not in Python.
    """
    if additions.application is None:
        _require_python(file, place)
        return file, None
    is_own = _is_of_stage(file)
    if file and not is_own:
        raise InvalidConfigurationError(
            f"Expected no application in {place} next to a stage, whose application is part of this package, found "
            f"{redact(str(file))!r}; remove it, or leave stage out."
        )
    if not is_own and listed(arguments, place):
        raise InvalidConfigurationError(
            f"Expected no arguments of an application in {place} next to a stage, found some; give them to the stage "
            "where it is made, or leave stage out."
        )
    return additions.application, list(additions.arguments)


def is_fit(file: Any, additions: Additions) -> bool:
    """Return whether an application, or its absence, takes additions: a Python script, or the place of a stage."""
    if additions.application is not None:
        return not file or _is_of_stage(file)
    return bool(file) and _other_language(file) is None


def mapping(value: Any, place: str) -> Mapping[str, Any]:
    """
    Return a mapping in a specification, empty for ``None``.

    :raises InvalidConfigurationError: if it is something else, such as a template that was not rendered.
    """
    if value is None or isinstance(value, Mapping):
        return value or {}
    raise InvalidConfigurationError(
        f"Expected a mapping in {place}, found {_kind(value)}; correct the job's specification."
    )


def listed(value: Any, place: str) -> Sequence[Any]:
    """
    Return a list in a specification, empty for ``None``.

    :raises InvalidConfigurationError: if it is something else, such as a template that was not rendered.
    """
    if value is None or (isinstance(value, Sequence) and not isinstance(value, str | bytes)):
        return value or ()
    raise InvalidConfigurationError(
        f"Expected a list in {place}, found {_kind(value)}; correct the job's specification."
    )


def unfit_job(found: str, expected: str = "a job that runs a Python application on Spark") -> InvalidConfigurationError:
    """
    Return the error of a job that cannot take checkpoints.

    :param found: What the specification has.
    """
    return InvalidConfigurationError(
        f"Expected {expected}, found {found}, which has no place for checkpoints; write it for PySpark, or run it with "
        "the operator of Airflow's provider."
    )


def only(found: Sequence[int], names: Sequence[str], what: str) -> int:
    """
    Return the place of the only Python application among several parts of a job.

    :param found: Places of those that run one.
    :param names: What each part is, by place.
    :param what: Name of a part.
    :raises InvalidConfigurationError: if there is none, or more than one.
    """
    if not found:
        raise unfit_job(" and ".join(names) or f"no {what}")
    if len(found) > 1:
        raise InvalidConfigurationError(
            f"Expected one {what} that runs a Python application, because an operator takes the checkpoints of one "
            f"driver, found {len(found)}; give each a task of its own in the Dag."
        )
    return found[0]


def _require_python(file: Any, place: str) -> None:
    if not file:
        raise InvalidConfigurationError(
            f"Expected a Python application in {place}, found none; name a script, or a stage with stage."
        )
    kind = _other_language(file)
    if kind is not None:
        raise unfit_job(f"{kind} in {place}")


def _other_language(file: Any) -> str | None:
    text = str(file).lower()
    return next((kind for suffix, kind in _OTHER_LANGUAGES.items() if text.endswith(suffix)), None)


def _is_of_stage(file: Any) -> bool:
    return str(file or "").rpartition("/")[2] == STAGE_APPLICATION


def _with_schemes(additions: Additions, schemes: Mapping[str, str]) -> Additions:
    def changed(uri: str | None) -> str | None:
        scheme, separator, rest = (uri or "").partition("://")
        return uri and f"{schemes.get(scheme, scheme)}{separator}{rest}"

    return replace(additions, package=changed(additions.package), application=changed(additions.application))


def _kind(value: Any) -> str:
    return "text" if isinstance(value, str | bytes) else f"a value of type {type(value).__name__}"
