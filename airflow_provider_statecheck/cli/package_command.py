"""Command that writes what drivers and executors need on a cluster without Airflow."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from airflow_provider_statecheck.checkpoint.ids import is_uri
from airflow_provider_statecheck.cli.output import Exit, command, print_rows
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.driver.readiness import write_requirements
from airflow_provider_statecheck.spark.driver.shipped_files import write_package
from airflow_provider_statecheck.storage.uris import redact


@command
def package(args: Namespace) -> Exit:
    """Write this package as a zip file, and the requirements file of drivers and executors."""
    if is_uri(args.directory):
        raise InvalidConfigurationError(
            f"Expected a directory of this machine, found {redact(args.directory)}; write the files to a local "
            "directory and copy them there."
        )
    folder = Path(args.directory)
    files = {"package": write_package(folder), "requirements": write_requirements(folder)}
    print_rows([{"file": name, "path": str(file.path)} for name, file in files.items()], args.output)
    return Exit.DONE
