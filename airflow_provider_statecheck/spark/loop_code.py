"""
Code of a ``for`` loop's body, which is no function: found in the frame that asks for the next item.

The body is part of the digest, and so are the statements of its function that define the values that it reads. Other
statements are not: a new log line before a loop must not repeat the loop. If the source of the running code is not
available, or the items are not consumed by a ``for`` statement, the whole function is part of the digest.
"""

from __future__ import annotations

import ast
import copy
import dis
import functools
import inspect
import linecache
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from types import CodeType, FrameType, FunctionType, ModuleType

from airflow_provider_statecheck.spark.fingerprint import (
    CodeFragment,
    Describe,
    code_text,
    fragments_digest,
    is_user_code,
    references_of,
)

_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
# Methods that change a list, set or dictionary: a call defines the value of the variable as an assignment does.
_CHANGING = frozenset(
    {"add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "remove", "setdefault", "update"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopCode:
    """Digests of the code that works on the items of a loop."""

    code: str
    """Digest of the code alone."""
    with_inputs: str
    """Digest of the code and of the DataFrames that it uses."""
    is_located: bool
    """Whether the body was found; otherwise the code is that of the whole function, and its DataFrames are unknown."""


def loop_code(consumer: FrameType | None, describe: Describe, is_given: Callable[[object], bool]) -> LoopCode:
    """
    Return the digests of the code that consumes a generator.

    :param consumer: Frame that has asked for the first item.
    :param describe: Function that returns the text of a DataFrame, and ``None`` for other values.
    :param is_given: Function that returns whether a value, such as the session, is left out with its definition.
    """
    describe_once = _remembered(describe)
    found = [_fragment(frame, describe_once, is_given) for frame in _consumers(consumer)]
    fragments = [fragment for fragment, _ in found]
    return LoopCode(
        code=fragments_digest(fragments),
        with_inputs=fragments_digest(fragments, describe_once),
        is_located=all(is_located for _, is_located in found),
    )


def _remembered(describe: Describe) -> Describe:
    # The text of a DataFrame takes calls of the JVM. The value is held: the id of a collected one could be reused.
    known: dict[int, tuple[object, str | None]] = {}

    def remembered(value: object) -> str | None:
        if id(value) not in known:
            known[id(value)] = value, describe(value)
        return known[id(value)][1]

    return remembered


def _consumers(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the user's frames from the consumer outwards: a generator passes its items on to its own consumer."""
    while frame is not None:
        if is_user_code(frame.f_code, frame.f_globals):
            yield frame
            if not frame.f_code.co_flags & inspect.CO_GENERATOR:
                return
        frame = frame.f_back


def _fragment(frame: FrameType, describe: Describe, is_given: Callable[[object], bool]) -> tuple[CodeFragment, bool]:
    located = _located(frame)
    if located is None:
        return _whole(frame), False
    return _Slice(*located, frame, describe, is_given).fragment(), True


def _whole(frame: FrameType) -> CodeFragment:
    code, references = frame.f_code, references_of(frame.f_code)
    # Not the other local variables: they may be left over from an earlier item of an enclosing loop.
    arguments = code.co_argcount + code.co_kwonlyargcount
    names = {*code.co_varnames[:arguments], *code.co_freevars}
    return CodeFragment(
        text=code_text(code),
        values=_values(frame.f_globals, references.global_names) | _values(frame.f_locals, names),
        attribute_names=references.attribute_names,
        imported_modules=references.imported_modules,
    )


def _values(variables: Mapping[str, object], names: set[str] | frozenset[str]) -> dict[str, object]:
    return {name: variables[name] for name in names if name in variables}


def _located(frame: FrameType) -> tuple[ast.AST, ast.For] | None:
    """Return the ``for`` statement that a frame executes, with the function around it."""
    position = _position_of_loop(frame)
    if position is None or (tree := _tree(frame)) is None:
        return None
    return _find(tree, tree, position)


def _position_of_loop(frame: FrameType) -> tuple[int | None, ...] | None:
    code, last = frame.f_code, frame.f_lasti
    # Since Python 3.12, the position of a loop that has run a few times is the cache behind its instruction.
    while last > 0 and dis.opname[code.co_code[last]] == "CACHE":
        last -= 2
    if last < 0 or dis.opname[code.co_code[last]] != "FOR_ITER":
        return None
    return next(islice(code.co_positions(), last // 2, None), None)


def _find(node: ast.AST, scope: ast.AST, position: tuple[int | None, ...]) -> tuple[ast.AST, ast.For] | None:
    # The instruction has the position of the statement in Python 3.11, and of the iterated expression since then.
    if isinstance(node, ast.For) and position in (_span(node), _span(node.iter)):
        return scope, node
    inner = node if isinstance(node, _SCOPES) else scope
    return next((found for child in ast.iter_child_nodes(node) if (found := _find(child, inner, position))), None)


def _span(node: ast.stmt | ast.expr) -> tuple[int | None, ...]:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def _tree(frame: FrameType) -> ast.Module | None:
    """Return the source of a frame's module, ``None`` if there is none or it is not that of the running code."""
    code = frame.f_code
    source = "".join(linecache.getlines(code.co_filename, frame.f_globals))
    parsed = _parsed(source, code.co_filename) if source else None
    if parsed is None:
        return None
    # The file may have been edited since its import.
    same_place = [each for each in _codes(parsed[1]) if _place(each) == _place(code)]
    return parsed[0] if code_text(code) in map(code_text, same_place) else None


@functools.lru_cache(maxsize=4)
def _parsed(source: str, filename: str) -> tuple[ast.Module, CodeType] | None:
    try:
        tree = ast.parse(source, filename)
        return tree, compile(tree, filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return None


def _place(code: CodeType) -> tuple[int, str]:
    return code.co_firstlineno, code.co_qualname


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


class _Slice:
    """The body of a loop with the statements around it that define what it reads."""

    def __init__(
        self,
        scope: ast.AST,
        loop: ast.For,
        frame: FrameType,
        describe: Describe,
        is_given: Callable[[object], bool],
    ) -> None:
        self._loop = loop
        self._frame = frame
        self._describe = describe
        self._is_given = is_given
        # A variable that the body assigns may have a value of an earlier item of an enclosing loop.
        self._assigned = set().union(*(_stored(each) for each in (loop.target, *loop.body)))
        self._headers = list(_headers(scope, loop, ()))

    def fragment(self) -> CodeFragment:
        """Return the code of the loop."""
        nodes = [*self._loop.body, *self._definitions()]
        names = set().union(*map(_loaded, nodes)) - self._assigned
        variables = {**self._frame.f_globals, **self._frame.f_locals}
        return CodeFragment(
            text="\n".join(ast.dump(node) for node in nodes),
            values=_values(variables, names),
            attribute_names=frozenset().union(*map(_attributes, nodes)),
            imported_modules=frozenset().union(*map(_modules, nodes)),
        )

    def _definitions(self) -> list[ast.AST]:
        """Return the statements that define what the body reads, in their order, with the conditions around them."""
        needed = set().union(*map(_loaded, self._loop.body))
        chosen: dict[int, ast.AST] = {}
        while True:
            found = [each for each in self._headers if self._defines(each.node, needed) and id(each.node) not in chosen]
            if not found:
                return [each.node for each in self._headers if id(each.node) in chosen]
            for node in (node for each in found for node in (each.node, *each.conditions)):
                chosen[id(node)] = node
                needed |= _loaded(node)

    def _defines(self, node: ast.AST, needed: set[str]) -> bool:
        return any(self._is_data(name) for name in _stored(node) & needed) and not _yields_items(node)

    def _is_data(self, name: str) -> bool:
        # The digest visits functions and DataFrames themselves.
        if name in self._assigned:
            return True
        value = self._frame.f_locals.get(name)
        is_code = isinstance(value, (FunctionType, ModuleType, type))
        return not is_code and not self._is_given(value) and self._describe(value) is None


@dataclass(frozen=True, slots=True)
class _Header:
    """A statement without the blocks in it, and the conditions under which it is executed."""

    node: ast.AST
    conditions: tuple[ast.AST, ...]


def _headers(node: ast.AST, loop: ast.For, conditions: tuple[ast.AST, ...]) -> Iterator[_Header]:
    for block in _BLOCKS:
        for child in getattr(node, block, ()):
            if child is loop:
                continue
            header = _without_blocks(child)
            yield _Header(header, conditions)
            if not isinstance(child, _SCOPES):
                yield from _headers(child, loop, (*conditions, header) if _decides(child, loop) else conditions)


def _decides(node: ast.AST, loop: ast.For) -> bool:
    return isinstance(node, (ast.If, ast.While, ast.Match)) and all(each is not loop for each in ast.walk(node))


def _without_blocks(node: ast.AST) -> ast.AST:
    header = copy.copy(node)
    for block in _BLOCKS:
        if hasattr(node, block):
            setattr(header, block, [])
    return header


def _yields_items(node: ast.AST) -> bool:
    # An item of an enclosing loop is known by its key.
    return isinstance(node, ast.For) and "each" in _attributes(node.iter)


def _loaded(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}


def _attributes(node: ast.AST) -> frozenset[str]:
    imported = (alias.name for each in ast.walk(node) if isinstance(each, ast.ImportFrom) for alias in each.names)
    return frozenset([each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)]).union(imported)


def _modules(node: ast.AST) -> frozenset[str]:
    direct = (alias.name for each in ast.walk(node) if isinstance(each, ast.Import) for alias in each.names)
    return frozenset(
        each.module for each in ast.walk(node) if isinstance(each, ast.ImportFrom) and each.module and not each.level
    ).union(direct)


def _stored(node: ast.AST) -> set[str]:
    return {name for each in ast.walk(node) for name in _stored_by(each)}


def _stored_by(node: ast.AST) -> Iterator[str]:
    """Yield the variable that a part of a statement assigns or changes."""
    if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
        yield from _base(node)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING:
        yield from _base(node.func)
    elif isinstance(node, ast.alias):
        yield (node.asname or node.name).partition(".")[0]
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name


def _base(node: ast.expr) -> Iterator[str]:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id
