"""Scopes of step names: each item of a loop is a scope."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_statecheck.exceptions import DuplicateNameError, InvalidConfigurationError

Scope = tuple[tuple[str, str], ...]
StepKey = tuple[Scope, str]

_MAX_NAME = 200


class ScopedNames:
    """
    Names of steps and loops that were used in this try.

    A second use of a name in one scope is an error: it would return the data of the first step.
    """

    def __init__(self) -> None:
        self.current: Scope = ()
        self._used: set[StepKey] = set()

    def claim(self, name: object) -> StepKey:
        """
        Register a name in the current scope and return its key.

        :raises InvalidConfigurationError: for a name that is not 1 to 200 characters of text.
        :raises DuplicateNameError: if the name is already used.
        """
        if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME:
            raise InvalidConfigurationError(
                f"Expected the name of a step to be text of 1 to {_MAX_NAME} characters, found {name!r}; rename the step."
            )
        step = (self.current, name)
        if step in self._used:
            raise DuplicateNameError(f"The name {describe(step)!r} is used twice; give each step a unique name.")
        self._used.add(step)
        return step

    @contextmanager
    def inside(self, name: str, item_key: str) -> Iterator[Scope]:
        """Make an item the current scope; its names are released at the end."""
        outer = self.current
        inner = (*outer, (name, item_key))
        self.current = inner
        try:
            yield inner
        finally:
            self.current = outer
            self._used = {step for step in self._used if step[0][: len(inner)] != inner}


def describe(step: StepKey) -> str:
    """Return a step's name with its items, such as ``days[2026-01-01]/sessions``."""
    scope, name = step
    return "/".join([*(f"{loop}[{item}]" for loop, item in scope), name])
