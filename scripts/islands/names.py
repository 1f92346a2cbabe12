"""Which definitions a name stands for."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scripts.islands.code import Definition, Kind, Module


class Names:
    """
    Finds the definitions of names, through imports and re-exports.

    :param modules: All modules of the code base by their names.
    :param package: The name of the package.
    """

    def __init__(self, modules: dict[str, Module], package: str) -> None:
        self.modules = modules
        self._in_text = re.compile(rf"\b{re.escape(package)}(?:[.:]\w+)+")

    def meant(self, module: Module, name: str, *, passed: frozenset[str] = frozenset()) -> set[Definition]:
        """
        Return what a dotted name in the code of a module stands for.

        :param passed: Full names on the way to this one, which a cycle of re-exports would reach again.
        """
        first, dot, rest = name.partition(".")
        found = {module.definitions[each] for each in (first, name) if each and each in module.definitions}
        for origin in module.aliases.get(first, ()):
            found |= self.find(origin + dot + rest, passed=passed)
        return found

    def find(self, full_name: str, *, passed: frozenset[str] = frozenset()) -> set[Definition]:
        """Return the definitions with a full name; for a module its body."""
        found = {module.body} if (module := self.modules.get(full_name)) else set()
        prefix, _, rest = full_name.rpartition(".")
        while prefix and prefix not in self.modules:
            prefix, _, before = prefix.rpartition(".")
            rest = f"{before}.{rest}"
        if prefix and full_name not in passed:
            found |= self.meant(self.modules[prefix], rest, passed=passed | {full_name})
        return found

    def in_text(self, text: str) -> Iterator[Definition]:
        """Yield what a text names as ``package.module:name`` or ``package.module.name``, for a module its names."""
        for full_name in self._in_text.findall(text):
            for found in self.find(full_name.replace(":", ".")):
                if found.kind is Kind.BODY:
                    yield from (each for name, each in found.module.definitions.items() if is_public_name(name))
                else:
                    yield found


def is_public_name(name: str) -> bool:
    """Return whether users may use a name of a module."""
    return bool(name) and "." not in name and not name.startswith("_")
