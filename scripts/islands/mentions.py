"""What a piece of code mentions: names that it evaluates, names of types, attributes, texts and imports."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef

_NAMES_IN_TEXT = re.compile(r"[A-Za-z_][\w.]*")
_POSITION_OF_TYPE = {"isinstance": 1, "issubclass": 1, "cast": 0}
_TAKING_ATTRIBUTES = ("getattr", "hasattr", "attrgetter", "methodcaller")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mentions:
    """The names in a piece of code."""

    names: set[str] = field(default_factory=set)
    """Dotted names that are evaluated, with all their beginnings."""
    types: set[str] = field(default_factory=set)
    """Dotted names in annotations, class patterns and type arguments of ``isinstance`` and ``cast``."""
    attributes: set[str] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)
    imports: set[str] = field(default_factory=set)
    """Dotted names that import statements load."""


def dotted(node: ast.AST) -> str:
    """Return ``a.b`` for the expressions ``a.b`` and ``a.b[c]``, and an empty text for all others."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return f"{before}.{name}" if (before := dotted(value)) else ""
        case ast.Subscript(value=value):
            return dotted(value)
        case _:
            return ""


def last_name(node: ast.AST) -> str:
    """Return ``b`` for the expression ``a.b``."""
    return dotted(node).rpartition(".")[2]


def is_for_type_checkers(node: ast.If) -> bool:
    """Return whether only type checkers enter a block."""
    return last_name(node.test) == "TYPE_CHECKING"


def imported_names(node: ast.Import | ast.ImportFrom, package: str) -> dict[str, str]:
    """
    Return the dotted names that an import loads, by the names that it binds.

    :param package: The package of the module, for relative imports.
    """
    if isinstance(node, ast.Import):
        tops = {alias.name.partition(".")[0] for alias in node.names if not alias.asname}
        return {top: top for top in tops} | {alias.asname: alias.name for alias in node.names if alias.asname}
    parts = package.split(".")
    above = parts[: len(parts) - node.level + 1] if node.level else []
    origin = ".".join([*above, *([node.module] if node.module else [])])
    return {alias.asname or alias.name: f"{origin}.{alias.name}" for alias in node.names}


def mentions_of(code: Iterable[ast.AST], package: str) -> Mentions:
    """Return what pieces of code in a package mention."""
    reader = _Reader(package)
    for node in code:
        reader.visit(node)
    return reader.found


def types_in_signature(node: ast.AST, package: str) -> set[str]:
    """Return the names of types that users of a function or constant pass or get."""
    reader = _Reader(package)
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            reader.visit(node.args)
            reader.visit_type(node.returns)
        case ast.Assign() | ast.AnnAssign():
            # The value may be an alias of a type.
            reader.visit_type(node.value)
    return reader.found.types


class _Reader(ast.NodeVisitor):
    """Visits code and separates what it evaluates from what only says a type."""

    def __init__(self, package: str) -> None:
        self.found = Mentions()
        self._package = package
        self._is_type = False

    def visit_type(self, node: ast.AST | None) -> None:
        """Visit an expression that says a type."""
        if node is not None:
            self._visit_as(node, is_type=True)

    def _visit_as(self, node: ast.AST, *, is_type: bool) -> None:
        before, self._is_type = self._is_type, is_type
        self.visit(node)
        self._is_type = before

    def _visit_all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    def _name(self, name: str) -> None:
        if name:
            (self.found.types if self._is_type else self.found.names).add(name)

    def visit_Name(self, node: ast.Name) -> None:
        self._name(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._name(dotted(node))
        self.found.attributes.add(node.attr)
        self.visit(node.value)

    def visit_Constant(self, node: ast.Constant) -> None:
        text = _text_of(node)
        if not self._is_type:
            self.found.texts.add(text)
        else:
            self.found.types.update(_NAMES_IN_TEXT.findall(text))

    def visit_Expr(self, node: ast.Expr) -> None:
        # A constant as a statement is a docstring.
        if not isinstance(node.value, ast.Constant):
            self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        if is_for_type_checkers(node):
            self._visit_all(node.orelse)
        else:
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self.found.imports.update(alias.name for alias in node.names)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.found.imports.update(imported_names(node, self._package).values())

    def visit_arg(self, node: ast.arg) -> None:
        self.visit_type(node.annotation)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit_type(node.annotation)
        self._visit_all(each for each in (node.target, node.value) if each)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._visit_function(node)

    def _visit_function(self, node: Function) -> None:
        self._visit_all([*node.decorator_list, node.args, *node.body])
        self.visit_type(node.returns)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        # The arguments of a generic base say types.
        bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
        self._visit_all([*bases, *node.keywords, *node.decorator_list, *node.body])

    def visit_MatchClass(self, node: ast.MatchClass) -> None:
        self.visit_type(node.cls)
        self.found.attributes.update(node.kwd_attrs)
        self._visit_all([*node.patterns, *node.kwd_patterns])

    def visit_Call(self, node: ast.Call) -> None:
        # What is called within an annotation, as an argument of Annotated, runs.
        called = last_name(node.func)
        self._visit_as(node.func, is_type=False)
        for position, argument in enumerate(node.args):
            self._visit_as(argument, is_type=_POSITION_OF_TYPE.get(called) == position)
        for keyword in node.keywords:
            self._visit_as(keyword.value, is_type=False)
        if called in _TAKING_ATTRIBUTES:
            self.found.attributes.update(map(_text_of, node.args))


def _text_of(node: Any) -> str:
    value = node.value if isinstance(node, ast.Constant) else ""
    return value.decode(errors="replace") if isinstance(value, bytes) else value if isinstance(value, str) else ""
