"""Columns that the library adds to the user's while data is on its way between tasks."""

from __future__ import annotations

KEY_GROUP = "__statecheck_key_group"
"""The key group of a row's key."""
CONTROL = "__statecheck_control"
"""A message to the driver in place of data; null in rows of data."""
EMPTY_MESSAGE = b""
"""Says nothing; it is sent so that a subtask runs."""
