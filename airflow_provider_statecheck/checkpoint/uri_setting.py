"""Directories in settings: a URI whose scheme is said and which is more than the root of its filesystem."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from airflow_provider_statecheck.exceptions import InvalidConfigurationError

_CREDENTIALS = re.compile(r"//.*@")


def parse_directory(key: str, value: Any) -> str:
    """
    Read the URI of a directory.

    :param key: Name of the setting, for the error.
    :raises InvalidConfigurationError: for a URI without a scheme, or one of a root; credentials in it are not shown.
    """
    uri = str(value)
    if not _is_below_a_root(uri):
        shown = _CREDENTIALS.sub("//***@", uri.partition("?")[0])
        raise InvalidConfigurationError(
            f"Expected {key} to be the URI of a directory below the root, such as file:///data/checkpoints, found {shown!r}.",
            key=key,
            value=shown,
        )
    return uri


def _is_below_a_root(uri: str) -> bool:
    try:
        parts = urlsplit(uri)
    except ValueError:
        return False
    return bool(parts.scheme) and "://" in uri and bool(parts.path.strip("/"))
