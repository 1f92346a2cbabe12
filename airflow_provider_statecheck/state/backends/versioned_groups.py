"""Cells in memory by namespace, key group and key, of which versions can be kept without copying."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Group = dict[Any, Any]
"""The cells of one key group and namespace, by key."""
Version = dict[str, dict[int, Group]]
"""The key groups of each namespace; nobody changes them any more."""


class VersionedGroups:
    """
    Key groups of which each is copied at its first change after a version was taken.

    What may be changed in place is in ``writable`` too, so that neither reading nor writing has to ask for versions.

    :param copy_group: Gives a group that shares nothing with another one that could be changed.
    """

    __slots__ = ("_copy_group", "readable", "writable")

    def __init__(self, copy_group: Callable[[Group], Group]) -> None:
        self._copy_group = copy_group
        self.readable: Version = {}
        self.writable: Version = {}

    def own(self, namespace: str, key_group: int) -> Group:
        """Return a group that may be changed, which is made if it is not there."""
        groups = self.readable.setdefault(namespace, {})
        owned = self.writable.setdefault(namespace, {})
        if key_group not in owned:
            groups[key_group] = owned[key_group] = self._copy_group(groups.get(key_group, {}))
        return owned[key_group]

    def drop(self, namespace: str, key_group: int) -> None:
        """Forget a group, which is empty."""
        for groups in (self.readable, self.writable):
            del groups[namespace][key_group]
            if not groups[namespace]:
                del groups[namespace]

    def version(self) -> Version:
        """Return the groups as they are now; later changes go to copies of them."""
        self.writable.clear()
        return {namespace: dict(groups) for namespace, groups in self.readable.items()}

    def keys(self, namespace: str) -> Iterator[Any]:
        """Return the keys of a namespace as they are now."""
        return iter([key for group in self.readable.get(namespace, {}).values() for key in group])

    def __len__(self) -> int:
        """Return how many keys there are in all namespaces."""
        return sum(len(group) for groups in self.readable.values() for group in groups.values())
