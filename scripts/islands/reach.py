"""
What live code makes live.

* A name that live code evaluates, or writes in a text as ``package.module:name``, makes its definition live, and with
  it what its module runs at import. A name that only says a type makes protocols and typed dictionaries live.
* A method of a live class is live if live code uses an attribute of its name, if it overrides a live method, or if a
  class of another library or the language may call it. This holds for protocols too: a method that users must write,
  and nothing calls, is dead.
* A public method of a class that users get is live if a page of the documentation names it. They get the roots, the
  types in the signatures of what they get, and the base classes and subclasses of these.
"""

from __future__ import annotations

import builtins
import io
from collections import defaultdict
from collections.abc import Iterable, Iterator

from scripts.islands.code import Definition, Kind
from scripts.islands.names import Names

# Other libraries call these methods of any object that they use as a file.
_OF_FILES = frozenset(dir(io.RawIOBase))
_ENUMS = ("Enum", "IntEnum", "StrEnum", "Flag", "IntFlag")
# These base classes call no method that has an ordinary name.
_CALLING_NOTHING = frozenset((*dir(builtins), *_ENUMS, "ABC", "Generic", "NamedTuple", "Protocol", "TypedDict"))


class Reach:
    """
    Collects the live definitions.

    Call ``start_from`` and ``hand_to_users`` for the roots, and then ``spread`` once.

    :param attributes: Attributes that templates use.
    :param documented: Names on pages of the documentation.
    """

    def __init__(self, names: Names, attributes: Iterable[str] = (), documented: Iterable[str] = ()) -> None:
        self.live: set[Definition] = set()
        self._names = names
        self._attributes = set(attributes)
        self._documented = frozenset(documented)
        self._of_users: set[Definition] = set()
        self._unread: list[Definition] = []
        self._given: list[Definition] = []
        self._classes = _Classes(names)

    def start_from(self, definitions: Iterable[Definition]) -> None:
        """Make definitions live that another program calls."""
        for definition in definitions:
            if definition not in self.live:
                self.live.add(definition)
                self._unread.append(definition)

    def hand_to_users(self, definitions: Iterable[Definition]) -> None:
        """Make definitions live that users call or implement."""
        found = list(definitions)
        self.start_from(found)
        self._give(found)

    def spread(self) -> None:
        """Make live what live definitions need, until nothing is added."""
        while self._unread or self._given:
            while self._given:
                self._hand_on(self._given.pop())
            if self._unread:
                self._read(self._unread.pop())

    def _read(self, definition: Definition) -> None:
        self._import(definition)
        self._follow(definition)
        self._call_methods(definition)
        if definition in self._of_users or self._classes.above(definition) & self._of_users:
            self._of_users.add(definition)
            self._given.append(definition)

    def _import(self, definition: Definition) -> None:
        module = definition.module
        special = (each for name, each in module.definitions.items() if name.startswith("__"))
        self.start_from([*self._bodies(module.name), *special])

    def _bodies(self, full_name: str) -> Iterator[Definition]:
        """Yield what runs at the import of a module or of a name in it."""
        for name in (full_name, full_name.rpartition(".")[0]):
            if name in self._names.modules:
                yield self._names.modules[name].body

    def _follow(self, definition: Definition) -> None:
        module, mentioned = definition.module, definition.mentions()
        for name in mentioned.names:
            self.start_from(self._names.meant(module, name))
        for name in mentioned.types:
            self.start_from(each for each in self._names.meant(module, name) if each.describes_values)
        for name in mentioned.imports:
            self.start_from(self._bodies(name))
        for text in mentioned.texts:
            self.start_from(self._names.in_text(text))
        if "globals" in mentioned.names:
            self.start_from(each for name, each in module.definitions.items() if name and "." not in name)
        self._use(mentioned.attributes)

    def _use(self, attributes: Iterable[str]) -> None:
        for attribute in set(attributes) - self._attributes:
            self._attributes.add(attribute)
            self.start_from(each for each in self._classes.methods[attribute] if each.owner in self.live)

    def _call_methods(self, definition: Definition) -> None:
        """Make live what becomes callable with a live class or method."""
        if definition.kind is Kind.CLASS:
            self.start_from(each for each in definition.methods.values() if self._may_be_called(definition, each))
        elif definition.owner:
            below = self._classes.below[definition.owner] & self.live
            overriding = (each.methods.get(definition.own_name) for each in below)
            self.start_from(each for each in overriding if each)

    def _may_be_called(self, owner: Definition, method: Definition) -> bool:
        name = method.own_name
        is_special = name.startswith("_") and name.endswith("_")
        if is_special or name in _OF_FILES or name in self._attributes:
            return True
        overridden = {base.methods.get(name) for base in self._classes.above(owner)}
        return bool(overridden & self.live) or owner in self._classes.called_from_elsewhere

    def _give(self, definitions: Iterable[Definition]) -> None:
        new = set(definitions) - self._of_users
        self._of_users |= new
        self._given += new

    def _hand_on(self, definition: Definition) -> None:
        """Give users what they get with a definition of theirs, as soon as it is live."""
        self._give(self._classes.below[definition] & self.live)
        if definition not in self.live:
            return
        self._give(self._classes.above(definition))
        for name in definition.types_for_users():
            self._give(self._names.meant(definition.module, name))
        shown = [each for name, each in definition.methods.items() if name in self._documented]
        self.start_from(shown)
        self._give(shown)


class _Classes:
    """
    The classes of a code base.

    ``methods`` has all methods by their own names, ``below`` the subclasses of each class, and
    ``called_from_elsewhere`` the classes whose methods a base class outside of the code base may call.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._above: dict[Definition, set[Definition]] = {}
        self.methods: defaultdict[str, list[Definition]] = defaultdict(list)
        self.below: defaultdict[Definition, set[Definition]] = defaultdict(set)
        self.called_from_elsewhere: set[Definition] = set()
        for module in names.modules.values():
            for definition in module.definitions.values():
                self._add(definition)

    def _add(self, definition: Definition) -> None:
        if definition.kind is Kind.METHOD:
            self.methods[definition.own_name].append(definition)
        for base in self.above(definition):
            self.below[base].add(definition)

    def above(self, definition: Definition) -> set[Definition]:
        """Return the base classes of a class and their base classes, as far as they are in the code base."""
        if definition not in self._above:
            self._above[definition] = set()
            for base in definition.bases:
                self._above[definition] |= self._base(definition, base)
        return self._above[definition]

    def _base(self, definition: Definition, base: str) -> set[Definition]:
        found = self._names.meant(definition.module, base) - {definition}
        if not found and base.rpartition(".")[2] not in _CALLING_NOTHING:
            self.called_from_elsewhere.add(definition)
        for each in list(found):
            found |= self.above(each)
            if each in self.called_from_elsewhere:
                self.called_from_elsewhere.add(definition)
        return found
