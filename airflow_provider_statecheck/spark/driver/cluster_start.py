"""
The start of a driver in cluster mode.

The worker loads the files of the driver from a directory that others may be able to write to. The task therefore gives
Python its program on the command line, which no other job can change: it verifies each file, and runs only a copy of
its own. Executors receive that copy from the driver.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from airflow_provider_statecheck.spark.driver.application import STAGE_APPLICATION

if TYPE_CHECKING:
    from airflow_provider_statecheck.spark.driver.shipped_files import ShippedFile

# The worker has copied the launcher to the driver's working directory before Java starts.
_PROGRAM = """
import hashlib, os, sys, tempfile
def content(path, digest):
    data = b''
    if os.path.isfile(path):
        with open(path, 'rb') as file: data = file.read(1 << 28)
    if hashlib.sha256(data).hexdigest() != digest:
        sys.exit(f'Expected the file {path} as the task wrote it, found other content, which was not run; let only the '
                 'user of the task write to package_dir, and submit again.')
    return data
_, launcher, launcher_digest, package, package_digest, *given = sys.argv
content(os.path.basename(launcher), launcher_digest)
if package:
    own = os.path.join(tempfile.mkdtemp(prefix='statecheck-'), os.path.basename(package))
    with open(own, 'wb') as file: file.write(content(package, package_digest))
    sys.path.insert(0, own)
from airflow_provider_statecheck.spark.driver.cluster_start import run
run(launcher, own if package else '', given)
"""


def arguments_of_python(
    launcher: ShippedFile, package: ShippedFile | None, application: str, application_args: Sequence[str]
) -> list[str]:
    """
    Return the arguments with which Python verifies the files of this package and runs an application.

    :param launcher: Jar that the worker copies for the driver.
    :param package: This package; ``None`` if it is installed on the cluster.
    :param application: Path of the script, or :data:`STAGE_APPLICATION`.
    """
    shipped = ("", "") if package is None else (str(package.path), package.digest)
    return [_PROGRAM, str(launcher.path), launcher.digest, *shipped, application, *application_args]


def run(launcher: str, package: str, given: Sequence[str]) -> None:
    """
    Give the executors the verified package, and run the application in ``__main__``.

    :param launcher: Path of the launcher, which executors must not load from its directory.
    :param package: Path of the verified copy of this package; empty if it is installed.
    :param given: The application and its arguments.
    """
    _settle_files(launcher, package)
    sys.argv = list(given)
    if given[0] == STAGE_APPLICATION:
        from airflow_provider_statecheck.spark.stages.stage_run import main

        main()
    else:
        run_script(given[0])


def _settle_files(launcher: str, package: str) -> None:
    from pyspark import SparkContext

    SparkContext._ensure_initialized()
    properties = SparkContext._jvm.java.lang.System  # type: ignore[union-attr]
    # spark-submit lists the application's jar; each executor would load what is then at its path.
    _change(properties, "spark.jars", without=Path(launcher).name)
    if package:
        _change(properties, "spark.files", added=package)
        _change(properties, "spark.submit.pyFiles", added=package)


def _change(properties: Any, name: str, *, without: str = "", added: str = "") -> None:
    listed = [path for path in (properties.getProperty(name) or "").split(",") if path]
    kept = [path for path in listed if not without or Path(path).name != without]
    properties.setProperty(name, ",".join([*kept, *filter(None, [added])]))


def run_script(application: str) -> None:
    """Run a Python file as the main program, with the modules of its folder."""
    parts = urlsplit(application)
    path = unquote(parts.path) if parts.scheme else application
    # Python does the same for a script on its command line, unless PYTHONSAFEPATH is set.
    sys.path[:] = [each or str(Path(path).parent) for each in sys.path]
    main = sys.modules["__main__"]
    main.__file__ = path
    exec(compile(Path(path).read_bytes(), path, "exec"), vars(main))  # noqa: S102
