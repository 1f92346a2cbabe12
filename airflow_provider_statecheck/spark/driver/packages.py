"""
Packages that a driver needs: the check at its start, and the requirements file of clusters.

The names and version ranges of the file are those with which this distribution was built. Spark itself belongs to the
cluster.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from typing import NamedTuple

from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError
from airflow_provider_statecheck.spark.driver.shipped_files import DISTRIBUTION

OF_EVERY_DRIVER = ("fsspec", "pyarrow", "pyspark")
OF_HTTP = ("httpx",)
"""For a driver that reaches the coordinator over HTTP."""
OF_STAGES = ("numpy", "pandas")
"""State is assigned to key groups with NumPy, and Spark needs pandas to plan a function over Arrow tables."""
OF_EXECUTOR_SNAPSHOTS = ("pandas",)
"""For snapshots that Python on executors writes; Spark plans this function with pandas, too."""
OF_METADATA = ("sqlalchemy",)
"""For the rows of a script with a metadata database of its own."""
_OF_SPARK = "pyspark"
_USES = {
    "Applications and stages that an Airflow operator submits": OF_HTTP,
    "Stages, on drivers and executors; snapshots that executors write need pandas on the driver": OF_STAGES,
    "Scripts with metadata=": OF_METADATA,
}
_EXTRAS = ("s3", "gcs", "azure", "delta", "iceberg")
"""Extras for storages, sources and sinks."""
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?P<range>[^;]*)(;.*extra == ['\"](?P<extra>[\w-]+)['\"])?")


def check_driver_packages(
    *more: str, is_installed: Callable[[str], bool] = lambda name: importlib.util.find_spec(name) is not None
) -> None:
    """
    Check that the packages of a driver are installed.

    :param more: Packages that this driver needs in addition, such as :data:`OF_STAGES`.
    :param is_installed: Function that returns whether a package can be imported.
    :raises EnvironmentNotReadyError: if a package is missing.
    """
    needed = (*OF_EVERY_DRIVER, *more)
    missing = [name for name in needed if not is_installed(name)]
    if missing:
        raise EnvironmentNotReadyError(
            f"Expected the packages {', '.join(needed)} in the driver's Python {sys.executable}, found no "
            f"{', no '.join(missing)}; run pip install {' '.join(missing)} there, or install the requirements file "
            "that 'airflow statecheck package' writes."
        )


def requirements_file() -> tuple[str, bytes]:
    """Return the name and the content of the requirements file of drivers and executors."""
    name = f"{DISTRIBUTION}-{metadata.version(DISTRIBUTION)}-requirements.txt"
    return name, "".join(f"{line}\n" for line in _lines()).encode()


class _Requirement(NamedTuple):
    name: str
    text: str
    extra: str | None


def _requirements() -> Iterator[_Requirement]:
    for text in metadata.requires(DISTRIBUTION) or ():
        found = _REQUIREMENT.match(text)
        if found is not None:
            yield _Requirement(found["name"], f"{found['name']}{found['range']}".strip(), found["extra"])


def _lines() -> Iterator[str]:
    declared = list(_requirements())
    spark = next(each.text for each in declared if each.name == _OF_SPARK)
    yield f"# Packages of drivers and executors for {DISTRIBUTION} {metadata.version(DISTRIBUTION)}."
    yield f"# The cluster has {spark}. Remove the mark from what your jobs use."
    yield from _named(declared, set(OF_EVERY_DRIVER) - {_OF_SPARK})
    for use, names in _USES.items():
        yield f"# {use}:"
        yield from _marked(_named(declared, names))
    for extra in _EXTRAS:
        yield f"# The extra {extra}:"
        yield from _marked(each.text for each in declared if each.extra == extra)


def _named(declared: Iterable[_Requirement], names: Iterable[str]) -> Iterator[str]:
    return (each.text for each in declared if each.extra is None and each.name in names)


def _marked(lines: Iterable[str]) -> Iterator[str]:
    return (f"# {line}" for line in lines)
