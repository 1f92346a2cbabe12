"""Parameters of tests of which ``make test`` runs some, and ``make soak`` the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def rest_in_soak(values: Iterable[Any], *kept: Any) -> list[Any]:
    """Return values as parameters, tuples as several; those that are not kept are left to the long tests."""
    return [_parameter(value, is_kept=value in kept) for value in values]


def every_nth(values: Iterable[Any], n: int) -> list[Any]:
    """Return values as parameters, tuples as several; all but every n-th one are left to the long tests."""
    return [_parameter(value, is_kept=i % n == 0) for i, value in enumerate(values)]


def _parameter(value: Any, *, is_kept: bool) -> Any:
    arguments = value if isinstance(value, tuple) else (value,)
    return pytest.param(*arguments, marks=() if is_kept else pytest.mark.soak)
