"""What a code object does and what it refers to, told without line numbers, file names, comments and docstrings."""

from __future__ import annotations

import dis
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

_GLOBAL_LOADS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_ATTRIBUTE_LOADS = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"})
# Filler that the compiler puts in for line tracing and for its own caches.
_FILLERS = frozenset({"NOP", "CACHE"})
# Set since Python 3.13 on functions that have a docstring.
_HAS_DOCSTRING = 0x4000000


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeReferences:
    """The names by which a code object reaches other code."""

    global_names: frozenset[str]
    attribute_names: frozenset[str]
    imported_modules: frozenset[str]


def code_text(code: CodeType) -> str:
    """
    Return what a code object does, as text that is equal for equal code in every process of one Python version.

    Constants stand where they are loaded and not in a table, so that an added docstring moves nothing.
    """
    return "\n".join(_lines(code))


def constant_text(value: object) -> str:
    """Return a constant as text; the order of a set differs between processes, so it is sorted."""
    if isinstance(value, CodeType):
        return f"code {hashlib.sha256(code_text(value).encode(errors='surrogatepass')).hexdigest()}"
    if isinstance(value, tuple):
        return f"({','.join(constant_text(item) for item in value)})"
    if isinstance(value, (set, frozenset)):
        return f"{{{','.join(sorted(constant_text(item) for item in value))}}}"
    return f"{type(value).__name__} {value!r}"


def is_constant(value: object) -> bool:
    """Say whether a value is one that could be written in source as a literal."""
    if isinstance(value, (tuple, frozenset)):
        return all(is_constant(item) for item in value)
    return value is None or value is ... or isinstance(value, (bool, int, float, complex, str, bytes))


def references_of(code: CodeType) -> CodeReferences:
    """Return the names that a code object and those nested in it use."""
    instructions = list(_all_instructions(code))
    return CodeReferences(
        global_names=_names(instructions, _GLOBAL_LOADS),
        attribute_names=_names(instructions, _ATTRIBUTE_LOADS),
        imported_modules=_names(instructions, frozenset({"IMPORT_NAME"})),
    )


def _lines(code: CodeType) -> Iterator[str]:
    yield f"{code.co_argcount} {code.co_posonlyargcount} {code.co_kwonlyargcount} {code.co_flags & ~_HAS_DOCSTRING}"
    yield f"{code.co_varnames} {code.co_cellvars} {code.co_freevars}"
    for instruction in dis.get_instructions(code):
        if instruction.opname not in _FILLERS:
            yield f"{instruction.opname} {_operand(instruction)}"
    # Since Python 3.11 what try and with cover is not among the instructions.
    yield getattr(code, "co_exceptiontable", b"").hex()


def _operand(instruction: dis.Instruction) -> str:
    if instruction.opcode in dis.hasconst:
        return constant_text(instruction.argval)
    return instruction.argrepr


def _all_instructions(code: CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _all_instructions(constant)


def _names(instructions: list[Any], operations: frozenset[str]) -> frozenset[str]:
    return frozenset(i.argval for i in instructions if i.opname in operations and isinstance(i.argval, str))
