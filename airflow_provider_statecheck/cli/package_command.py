"""Command that writes what drivers and executors need on a cluster without Airflow."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from airflow_provider_statecheck.checkpoint.ids import is_uri
from airflow_provider_statecheck.checkpoint.masking import require_no_credentials
from airflow_provider_statecheck.cli.output import Exit, command, print_rows
from airflow_provider_statecheck.hooks.connection import pointer_storage_opener
from airflow_provider_statecheck.spark.driver.packages import requirements_file
from airflow_provider_statecheck.spark.driver.shipped_files import ShippedFile, package_file, publish


@command
def package(args: Namespace) -> Exit:
    """Write this package as a zip file, and the requirements file of drivers and executors."""
    files = {"package": package_file(), "requirements": requirements_file()}
    if is_uri(args.directory):
        require_no_credentials("DIRECTORY", args.directory)
        storage = pointer_storage_opener(args.storage_conn_id, args.directory)(args.directory)
        written = {use: publish(storage, storage.base_uri, name, data) for use, (name, data) in files.items()}
    else:
        folder = Path(args.directory)
        written = {use: str(ShippedFile.written(folder / name, data).path) for use, (name, data) in files.items()}
    print_rows([{"file": use, "path": path} for use, path in written.items()], args.output)
    return Exit.DONE
