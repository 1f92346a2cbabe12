"""Asking before something is taken away for good."""

from __future__ import annotations

import sys
from collections.abc import Callable

from airflow_provider_statecheck.exceptions import InvalidConfigurationError


def is_confirmed(show: Callable[[], object], question: str) -> bool:
    """
    Show what would be done and ask.

    :param show: Prints what would be done and changes nothing.
    :param question: Such as ``Remove that?``
    :raises InvalidConfigurationError: where nobody can be asked.
    """
    if not sys.stdin.isatty():
        raise InvalidConfigurationError("Expected --yes or --dry-run where nobody can be asked, found neither.")
    show()
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
