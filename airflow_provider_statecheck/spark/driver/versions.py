"""What must be there before a stage starts: one pyspark, one Java."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError

OLDEST_JAVA = 17
_VERSION = re.compile(r'version "(\d+)')


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution, ``None`` if there is none."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def java_version_text() -> str | None:
    """Return what ``java -version`` says, ``None`` without a Java."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        return None
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)  # noqa: S603 - our own Java
    return done.stderr + done.stdout


def imported_pyspark_version() -> str | None:
    """Return the version that the importable package ``pyspark`` claims, ``None`` if there is none."""
    try:
        return str(importlib.import_module("pyspark.version").__version__)
    except ImportError:
        return None


def check_environment(
    *,
    needs_java: bool = True,
    installed: Callable[[str], str | None] = installed_version,
    imported: Callable[[], str | None] = imported_pyspark_version,
    java: Callable[[], str | None] = java_version_text,
) -> None:
    """
    Refuse to start where Spark would fail later and less clearly.

    :param needs_java: Whether the session is a classic one; Spark Connect needs pyspark-client alone and no Java.
    :param installed: Gives the version of an installed distribution.
    :param imported: Gives the version of the importable package.
    :param java: Gives what ``java -version`` says.
    :raises EnvironmentNotReadyError: naming what is missing or does not fit, and how to mend it.
    """
    full, client = installed("pyspark"), installed("pyspark-client")
    _check_present(full, client, needs_java=needs_java)
    _check_equal(full, client, imported())
    # Below spark-submit the Java process was there before Python.
    if needs_java and "PYSPARK_GATEWAY_PORT" not in os.environ:
        _check_java(java())


def _check_present(full: str | None, client: str | None, *, needs_java: bool) -> None:
    if full is None and (needs_java or client is None):
        raise EnvironmentNotReadyError(
            "Expected the package pyspark, found none; run pip install 'airflow-provider-statecheck[pyspark]'."
        )


def _check_equal(full: str | None, client: str | None, imported: str | None) -> None:
    found = {name: v for name, v in (("pyspark", full), ("pyspark-client", client)) if v is not None}
    versions = set(found.values())
    if versions == {imported}:
        return
    # Both write the package pyspark; with unequal ones every Python UDF fails with an unreadable error. The client is
    # published later, so of two versions the older one is the one that both have.
    wanted = min(versions, key=_version_key)
    raise EnvironmentNotReadyError(
        f"Expected pyspark and pyspark-client of one version, found {' and '.join(map(' '.join, found.items()))} "
        f"installed and {imported or 'nothing'} on import; run pip install --force-reinstall --no-deps "
        f"{' '.join(f'{name}=={wanted}' for name in found)}."
    )


def _version_key(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))


def _check_java(text: str | None) -> None:
    found = _VERSION.search(text or "")
    if found is None:
        raise EnvironmentNotReadyError(
            f"Expected Java {OLDEST_JAVA} or newer in JAVA_HOME or on the path, found none; install one, "
            f"for example with apt-get install openjdk-{OLDEST_JAVA}-jre-headless."
        )
    if int(found.group(1)) < OLDEST_JAVA:
        raise EnvironmentNotReadyError(
            f"Expected Java {OLDEST_JAVA} or newer, found Java {found.group(1)}; set JAVA_HOME to a newer one."
        )
