"""Rows on stdout, as a table for people or as data for programs."""

from __future__ import annotations

import json
import re
import sys
from datetime import datetime
from typing import Any

from airflow_provider_statecheck.checkpoint.units import readable_size
from airflow_provider_statecheck.storage.uris import redact

Row = dict[str, Any]

_PASSWORD = re.compile(r"://[^/\s@]*:[^\s@]*@")


def print_rows(rows: list[Row], output: str) -> None:
    """
    Print rows.

    :param rows: Each with the same keys; a key that ends in ``bytes`` has a number of bytes.
    :param output: ``table``, ``plain``, ``json`` or ``yaml``.
    """
    if output == "json":
        sys.stdout.write(json.dumps([_data(row) for row in rows], indent=2) + "\n")
    elif output == "yaml":
        _print_yaml([_data(row) for row in rows])
    else:
        _print_table([{key: _text(key, value) for key, value in row.items()} for row in rows], output)


def shown(uri: str) -> str:
    """Return a URI to be shown and used again: a password in it is left out, the name of a container stays."""
    return redact(uri) if _PASSWORD.search(uri) else uri


def _print_yaml(rows: list[Row]) -> None:
    from airflow.utils import yaml

    yaml.safe_dump(rows, sys.stdout, sort_keys=False, allow_unicode=True)


def _print_table(rows: list[dict[str, str]], output: str) -> None:
    from airflow.cli.simple_table import AirflowConsole

    # Names are the users' own: features[eu] is no markup, and :x: no picture.
    AirflowConsole(markup=False, emoji=False, highlight=False).print_as(data=rows, output=output)


def _data(row: Row) -> Row:
    return {key: value.isoformat() if isinstance(value, datetime) else value for key, value in row.items()}


def _text(key: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    if isinstance(value, list):
        return "\n".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.1f}"
    return readable_size(value) if key.endswith("bytes") else str(value)
