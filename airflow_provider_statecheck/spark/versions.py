"""What must be there before a stage starts: one pyspark, one Java."""

from __future__ import annotations

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


def check_environment(
    *,
    installed: Callable[[str], str | None] = installed_version,
    java: Callable[[], str | None] = java_version_text,
) -> None:
    """
    Refuse to start where Spark would fail later and less clearly.

    :param installed: Gives the version of an installed distribution.
    :param java: Gives what ``java -version`` says.
    :raises EnvironmentNotReadyError: naming what is missing or does not fit, and how to mend it.
    """
    _check_pyspark(installed("pyspark"), installed("pyspark-client"))
    _check_java(java())


def _check_pyspark(full: str | None, client: str | None) -> None:
    if full is None:
        raise EnvironmentNotReadyError(
            "Expected the package pyspark, found none; run pip install 'airflow-provider-statecheck[pyspark]'."
        )
    if client is not None and client != full:
        # Both write the package pyspark; with unequal ones every Python UDF fails with an unreadable error.
        raise EnvironmentNotReadyError(
            f"Expected pyspark and pyspark-client of one version, found {full} and {client}; "
            f"run pip install --force-reinstall --no-deps pyspark-client=={client} pyspark=={client}."
        )


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
