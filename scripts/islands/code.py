"""The definitions of a code base, as its syntax trees contain them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from scripts.islands.mentions import (
    Function,
    Mentions,
    dotted,
    imported_names,
    is_for_type_checkers,
    mentions_of,
    types_in_signature,
)

_BLOCKS = (ast.If, ast.Try, ast.ExceptHandler, ast.With, ast.For, ast.While)
_DESCRIBING_VALUES = ("Protocol", "TypedDict")


class Kind(StrEnum):
    """Kinds of definitions."""

    BODY = "body"
    """The statements of a module that define nothing and run at its import."""
    CONSTANT = "constant"
    FUNCTION = "function"
    CLASS = "class"
    METHOD = "method"


@dataclass(slots=True, eq=False, kw_only=True)
class Definition:
    """A name of a module, or a method, with all statements that define it."""

    module: Module
    name: str
    """The name in the module: ``name``, ``Class.method``, or empty for the body."""
    kind: Kind
    statements: list[ast.AST] = field(default_factory=list)
    owner: Definition | None = None
    """The class of a method."""
    methods: dict[str, Definition] = field(default_factory=dict)
    """The methods of a class by their own names."""

    @property
    def own_name(self) -> str:
        """The name without that of the class."""
        return self.name.rpartition(".")[2]

    @property
    def line(self) -> int:
        """Line of the first statement."""
        return min(getattr(statement, "lineno", 1) for statement in self.statements)

    @property
    def bases(self) -> list[str]:
        """The dotted names of the base classes."""
        return [dotted(base) for each in self.statements if isinstance(each, ast.ClassDef) for base in each.bases]

    @property
    def describes_values(self) -> bool:
        """Whether this is a protocol or a typed dictionary, which annotations use as intended."""
        return any(base.rpartition(".")[2] in _DESCRIBING_VALUES for base in self.bases)

    def mentions(self) -> Mentions:
        """Return what the code mentions; a class consists of all but its methods, whose decorators it runs."""
        code = [part for statement in self.statements for part in _code_of(statement)]
        return mentions_of(code, self.module.package)

    def types_for_users(self) -> set[str]:
        """Return the names of the types that users of this definition pass or get."""
        if self.kind is Kind.CLASS:
            return self.mentions().types
        return set().union(*(types_in_signature(each, self.module.package) for each in self.statements))


@dataclass(slots=True, eq=False, kw_only=True)
class Module:
    """A parsed file."""

    name: str
    path: Path
    definitions: dict[str, Definition] = field(default_factory=dict)
    aliases: dict[str, set[str]] = field(default_factory=dict)
    """The dotted names that each name may stand for by an import, at any place in the file."""

    @property
    def body(self) -> Definition:
        """What runs at the import and defines nothing."""
        return self.definitions[""]

    @property
    def parent(self) -> str:
        """The name of the package that contains this module."""
        return self.name.rpartition(".")[0]

    @property
    def package(self) -> str:
        """The name of the package to which relative imports refer."""
        return self.name if self.path.stem == "__init__" else self.parent

    def define(self, name: str, kind: Kind, statement: ast.AST) -> Definition:
        """Add a statement to the definition of a name."""
        found = self.definitions.setdefault(name, Definition(module=self, name=name, kind=kind))
        found.statements.append(statement)
        return found


def read_modules(folders: Iterable[Path]) -> dict[str, Module]:
    """Return the modules of folders below the current one by their dotted names."""
    paths = (path for folder in folders for path in sorted(folder.rglob("*.py")))
    return {module.name: module for module in map(_read, paths)}


def _read(path: Path) -> Module:
    name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    module, tree = Module(name=name, path=path), ast.parse(path.read_text(encoding="utf-8"), str(path))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for bound, origin in imported_names(node, module.package).items():
                module.aliases.setdefault(bound, set()).add(origin)
    module.definitions[""] = Definition(module=module, name="", kind=Kind.BODY)
    _define_all(module, tree.body)
    return module


def _define_all(module: Module, statements: Iterable[ast.AST]) -> None:
    for statement in statements:
        match statement:
            case ast.If() if is_for_type_checkers(statement):
                _define_all(module, statement.orelse)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                module.define(statement.name, Kind.FUNCTION, statement)
            case ast.ClassDef():
                _define_class(module, statement)
            case _ if isinstance(statement, _BLOCKS):
                _define_all(module, ast.iter_child_nodes(statement))
            case _:
                _define_assigned(module, statement)


def _define_class(module: Module, node: ast.ClassDef) -> None:
    owner = module.define(node.name, Kind.CLASS, node)
    for statement in node.body:
        if isinstance(statement, Function):
            method = module.define(f"{node.name}.{statement.name}", Kind.METHOD, statement)
            method.owner = owner
            owner.methods[statement.name] = method


def _define_assigned(module: Module, statement: ast.AST) -> None:
    """Define the names that a statement assigns, or add it to the body if it assigns none."""
    match statement:
        case ast.Assign(targets=targets):
            nodes = [node for target in targets for node in ast.walk(target)]
        case ast.AnnAssign(target=target):
            nodes = list(ast.walk(target))
        case _:
            nodes = []
    names = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    for name in names:
        module.define(name, Kind.CONSTANT, statement)
    if not names:
        module.define("", Kind.BODY, statement)


def _code_of(statement: ast.AST) -> Iterator[ast.AST]:
    """Yield a statement, or the parts of a class without its methods."""
    if not isinstance(statement, ast.ClassDef):
        yield statement
        return
    # The arguments of a generic base say types.
    yield from (base.value if isinstance(base, ast.Subscript) else base for base in statement.bases)
    yield from (*statement.keywords, *statement.decorator_list)
    for each in statement.body:
        yield from each.decorator_list if isinstance(each, Function) else (each,)
