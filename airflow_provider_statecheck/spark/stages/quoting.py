"""Names of columns as Spark reads them."""

from __future__ import annotations


def quoted(name: str) -> str:
    """Return the name of a column so that Spark takes it as it is, whatever is in it."""
    return f"`{name.replace('`', '``')}`"
