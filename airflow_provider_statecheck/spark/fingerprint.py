"""
Fingerprint of a step, which changes with the code and the inputs of the step.

The digest of a function covers all user code that it reaches: the globals, closures, attributes and imports that it
uses, except for the standard library and installed packages. Plain values are not part of it: a run id in a closure
would change the digest in each attempt. The caller chooses values to include.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import importlib
import importlib.util
import inspect
import json
import site
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.codec import require
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.plan_digest import plan_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMAT_VERSION = 1


def step_fingerprint(
    build: Callable[..., Any] | DataFrame,
    *,
    version: str | None,
    snapshots: Mapping[str, str],
    salt: str = "",
) -> str:
    """
    Return a digest that changes with the code and the inputs of a step.

    The fingerprint of a callable covers its code with constants and literal defaults, the code of user functions,
    methods and UDFs that it reaches, and the plans of captured DataFrames. That of a DataFrame covers its analyzed
    plan, its schema, the code of its Python UDFs and the paths that it reads. A snapshot is represented by its
    fingerprint, not by its location, and by its lineage if it has replaced another snapshot of its step.

    Not covered are comments, blank lines, docstrings, line numbers and file names; installed packages; the rows of
    sources and of local data; views that a callable reads by name; the plan before Spark's own ``localCheckpoint``
    or ``checkpoint``; and plain values that a callable captures by a closure, global or attribute, because a run id
    or a date would change the fingerprint in each attempt. Use ``version`` for such values if they matter, and for
    changed packages.

    Equal code has equal fingerprints in all processes with the same minor version of Python and version of Spark.

    :param build: Builder of the step, or its DataFrame.
    :param version: Version of the step that the user has set.
    :param snapshots: Fingerprints of the snapshots that the step may read, by their URIs.
    :param salt: Further text that the fingerprint depends on.
    """
    from pyspark.sql import DataFrame

    if isinstance(build, DataFrame):
        kind, body = "plan", plan_text(build, snapshots, _udf_code)
    elif callable(build):
        kind, body = "code", code_digest(build, partial(described, snapshots))
    else:
        raise InvalidConfigurationError(
            f"Expected a function or a DataFrame for a step, found {type(build).__name__}; wrap it: lambda: ..."
        )
    require("version", version, lambda each: bool(json.dumps(each)), "text, such as str(day)")
    document = json.dumps([FORMAT_VERSION, version, salt, kind, body])
    return hashlib.sha256(document.encode()).hexdigest()


def combined_fingerprint(*parts: str) -> str:
    """Return the fingerprint of a step with several parts, such as a loop."""
    return hashlib.sha256(json.dumps([FORMAT_VERSION, "combined", *parts]).encode()).hexdigest()


def described(snapshots: Mapping[str, str], value: object) -> str | None:
    """Return the text of a captured DataFrame or of a UDF's signature, ``None`` for anything else."""
    from pyspark.sql import DataFrame

    if isinstance(value, DataFrame):
        text = plan_text(value, snapshots, _udf_code)
        return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return_type = _udf_return_type(value)
    return None if return_type is None else f"udf {return_type}"


def _udf_code(function: object) -> str:
    # Without a description of values: a pickled function cannot capture a DataFrame.
    return code_digest(function)


def _udf_return_type(value: object) -> str | None:
    from pyspark.sql.udf import UserDefinedFunction

    # The code of a UDF is visited by its wrapped function.
    original = vars(value).get("_unwrapped") if hasattr(value, "__dict__") else None
    if not isinstance(original, UserDefinedFunction):
        return None
    return f"{original.returnType.simpleString()} {original.evalType}"


Describe = Callable[[object], str | None]
"""Function that returns the text of a value that is part of the digest, and ``None`` for other values."""


def no_text(value: object) -> None:
    """Describe no value: the digest is then of code alone."""


_OWN_PACKAGE = "airflow_provider_statecheck"
_MISSING = object()


def code_digest(root: object, describe: Describe = no_text) -> str:
    """
    Return the digest of a callable's code.

    :param root: A function, method, partial or callable object.
    :param describe: Function that returns the text of a captured value to include, and ``None`` for other values.
    """
    walk = _CodeWalk(describe)
    walk.start(root)
    return _sha256("\n".join(sorted(walk.edges)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeFragment:
    """Code that is no function of its own, such as the body of a loop."""

    text: str
    """Text of the code, equal for equal code."""
    values: Mapping[str, object]
    """Values of the names that it uses."""
    attribute_names: frozenset[str]
    imported_modules: frozenset[str]


def fragments_digest(fragments: Iterable[CodeFragment], describe: Describe = no_text) -> str:
    """
    Return the digest of fragments of code and of the user code that they reach.

    :param describe: Function that returns the text of a value to include, and ``None`` for other values.
    """
    walk = _CodeWalk(describe)
    for fragment in fragments:
        walk.start_fragment(fragment)
    return _sha256("\n".join(sorted(walk.edges)))


class _CodeWalk:
    """
    Collects the references between functions as edges: referrer, name, target.

    Each function is represented by the digest of its own code. The set of edges is independent of the order of the walk
    and finite for recursive functions.
    """

    def __init__(self, describe: Describe) -> None:
        self.edges: set[str] = set()
        self._describe = describe
        # Holds references to the values: the id of a collected temporary could be reused.
        self._seen: dict[tuple[int, int, str], tuple[object, object]] = {}

    def start(self, root: object) -> None:
        """Visit the root, which is part of the digest even if it is in an installed package."""
        self._visit("", "", root, frozenset({"__call__"}), is_root=True)

    def start_fragment(self, fragment: CodeFragment) -> None:
        """Visit what a fragment uses."""
        own = _sha256(fragment.text)
        self._add("", "", own)
        for name in sorted(fragment.values):
            self._visit(own, name, fragment.values[name], fragment.attribute_names)
        for name in sorted(fragment.imported_modules):
            self._visit(own, name, _user_module(name), fragment.attribute_names)

    def _visit(
        self, referrer: str, name: str, value: object, attributes: frozenset[str], *, is_root: bool = False
    ) -> None:
        described = self._describe(value)
        if described is not None:
            self._add(referrer, name, described)
        wrapped = inspect.getattr_static(value, "__wrapped__", None)
        if wrapped is not None and not self._is_seen(value, wrapped, referrer):
            self._visit(referrer, f"{name}.__wrapped__", wrapped, attributes, is_root=is_root)
        if isinstance(value, functools.partial):
            self._visit_partial(referrer, name, value, attributes, is_root=is_root)
        elif isinstance(value, MethodType):
            self._visit_function(referrer, name, value.__func__, value.__self__, is_root=is_root)
        elif isinstance(value, FunctionType):
            self._visit_function(referrer, name, value, None, is_root=is_root)
        elif isinstance(value, (list, tuple, set, frozenset, dict)):
            self._visit_items(referrer, name, value, attributes)
        elif is_root or _is_user_namespace(value):
            self._visit_members(referrer, name, value, attributes | _implicit_members(value))

    def _visit_partial(
        self,
        referrer: str,
        name: str,
        value: functools.partial[Any],
        attributes: frozenset[str],
        *,
        is_root: bool,
    ) -> None:
        self._visit(referrer, f"{name}.func", value.func, attributes, is_root=is_root)
        self._visit_items(referrer, f"{name}.args", value.args, attributes)
        self._visit_items(referrer, f"{name}.keywords", value.keywords, attributes)

    def _visit_items(self, referrer: str, name: str, items: object, attributes: frozenset[str]) -> None:
        if self._is_seen(items, None, referrer):
            return
        for key, item in _entries(items):
            if not is_constant(item):
                self._visit(referrer, f"{name}[{key}]", item, attributes)

    def _visit_function(
        self, referrer: str, name: str, function: object, owner: object, *, is_root: bool = False
    ) -> None:
        if not isinstance(function, FunctionType) or not (is_root or _is_user_function(function)):
            return
        own = _own_digest(function)
        self._add(referrer, name, own)
        if not self._is_seen(function, owner, ""):
            self._visit_references(own, function, owner)

    def _visit_references(self, own: str, function: FunctionType, owner: object) -> None:
        references = references_of(function.__code__)
        for name, value in _captured(function):
            self._visit(own, name, value, references.attribute_names)
        for name in sorted(references.global_names & function.__globals__.keys()):
            self._visit(own, name, function.__globals__[name], references.attribute_names)
        for name in sorted(references.imported_modules):
            self._visit(own, name, _user_module(name), references.attribute_names)
        if owner is not None and _is_user_namespace(owner):
            self._visit_members(own, "self", owner, references.attribute_names)

    def _visit_members(self, referrer: str, name: str, owner: object, attributes: frozenset[str]) -> None:
        if self._is_seen(owner, None, referrer):
            return
        for attribute in sorted(attributes):
            member = _member(owner, attribute)
            if member is not _MISSING:
                self._visit_member(referrer, f"{name}.{attribute}", member, owner, attributes)

    def _visit_member(
        self,
        referrer: str,
        name: str,
        member: object,
        owner: object,
        attributes: frozenset[str],
    ) -> None:
        function = _function_of(member)
        if isinstance(function, FunctionType) and not isinstance(owner, ModuleType):
            self._visit_function(referrer, name, function, owner)
        else:
            self._visit(referrer, name, member, attributes)

    def _add(self, referrer: str, name: str, target: str) -> None:
        self.edges.add(f"{referrer} {name!r} {target}")

    def _is_seen(self, value: object, owner: object, referrer: str) -> bool:
        key = (id(value), id(owner), referrer)
        if key in self._seen:
            return True
        self._seen[key] = (value, owner)
        return False


def _own_digest(function: FunctionType) -> str:
    defaults = [*(function.__defaults__ or ()), *sorted((function.__kwdefaults__ or {}).items())]
    texts = [constant_text(value) if is_constant(value) else "" for value in defaults]
    return _sha256("\n".join([code_text(function.__code__), *texts]))


def _captured(function: FunctionType) -> Iterator[tuple[str, object]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield name, _content(cell)
    for position, value in enumerate(function.__defaults__ or ()):
        yield f"default {position}", value
    for name, value in sorted((function.__kwdefaults__ or {}).items()):
        yield f"default {name}", value


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # The variable is not assigned yet.
        return None


def _entries(items: object) -> Iterator[tuple[str, object]]:
    if isinstance(items, dict):
        yield from ((repr(key) if is_constant(key) else "", item) for key, item in items.items())
    elif isinstance(items, (list, tuple)):
        yield from ((str(position), item) for position, item in enumerate(items))
    elif isinstance(items, (set, frozenset)):
        yield from (("", item) for item in items)


def _member(owner: object, attribute: str) -> object:
    found = inspect.getattr_static(owner, attribute, _MISSING)
    if found is _MISSING and isinstance(owner, ModuleType) and hasattr(owner, "__path__"):
        # A submodule is an attribute only after its import; the digest must not depend on earlier imports.
        return _user_module(f"{owner.__name__}.{attribute}") or _MISSING
    return found


def _function_of(member: object) -> object:
    if isinstance(member, (staticmethod, classmethod)):
        return member.__func__
    if isinstance(member, property):
        return member.fget
    if isinstance(member, functools.cached_property):
        return member.func
    return member


def _implicit_members(owner: object) -> frozenset[str]:
    """Return the special methods of a user's class, which Python calls without a name in the caller's code."""
    if isinstance(owner, ModuleType):
        return frozenset()
    cls = owner if isinstance(owner, type) else type(owner)
    return frozenset(
        name
        for base in cls.__mro__
        if _is_user_module_name(base.__module__)
        for name, value in vars(base).items()
        if name.startswith("__") and isinstance(value, (FunctionType, staticmethod, classmethod))
    )


def _is_user_namespace(value: object) -> bool:
    if isinstance(value, ModuleType):
        return _is_user_module_name(value.__name__)
    cls = value if isinstance(value, type) else type(value)
    return _is_user_module_name(cls.__module__)


def _is_user_function(function: FunctionType) -> bool:
    return is_user_code(function.__code__, function.__globals__)


def is_user_code(code: CodeType, global_names: Mapping[str, object]) -> bool:
    """Return whether code belongs neither to the standard library nor to an installed package nor to this one."""
    return is_user_file(code.co_filename) and not _is_own_package(str(global_names.get("__name__")))


@functools.cache
def _is_user_module_name(name: str) -> bool:
    if _is_own_package(name):
        return False
    module = sys.modules.get(name)
    if module is None or name == "__main__":
        return True
    if name in sys.builtin_module_names:
        return False
    paths = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
    return all(is_user_file(path) for path in paths if path is not None)


def _is_own_package(name: str) -> bool:
    return name == _OWN_PACKAGE or name.startswith(f"{_OWN_PACKAGE}.")


@functools.cache
def is_user_file(path: str) -> bool:
    """Return whether a file or directory belongs neither to the standard library nor to an installed package."""
    # sys.prefix is no criterion: an image may store its Dags below it.
    parts = PurePath(path).parts
    return not (
        path.startswith("<frozen")
        or "site-packages" in parts
        or "dist-packages" in parts
        or any(PurePath(path).is_relative_to(root) for root in _library_roots())
    )


@functools.cache
def _library_roots() -> tuple[str, ...]:
    installed = [path for name, path in sysconfig.get_paths().items() if name.endswith(("lib", "stdlib"))]
    return tuple({*installed, *site.getsitepackages(), site.getusersitepackages()})


def _user_module(name: str) -> ModuleType | None:
    """
    Return a user module that a function imports, ``None`` for other modules.

    The module is imported here; otherwise the digest would depend on earlier imports of this process.
    """
    top = name.partition(".")[0]
    with suppress(Exception):
        spec = importlib.util.find_spec(top)
        origins = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
        if any(o is not None for o in origins) and all(is_user_file(o) for o in origins if o is not None):
            return importlib.import_module(name)
    return None


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


_GLOBAL_LOADS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_ATTRIBUTE_LOADS = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"})
# Instructions for line tracing and inline caches, without a meaning of their own.
_FILLERS = frozenset({"NOP", "CACHE"})
# Flag of functions with a docstring, since Python 3.13.
_HAS_DOCSTRING = 0x4000000


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeReferences:
    """Names in a code object that refer to other code."""

    global_names: frozenset[str]
    attribute_names: frozenset[str]
    imported_modules: frozenset[str]


def code_text(code: CodeType) -> str:
    """
    Return a text of a code object's instructions, which is equal for equal code in all processes of a Python version.

    Constants are written at their loads, not as a table with indexes, which a new docstring would shift.
    """
    return "\n".join(_code_lines(code))


def constant_text(value: object) -> str:
    """Return a constant as text; sets are sorted, because their order differs between processes."""
    if isinstance(value, CodeType):
        return f"code {hashlib.sha256(code_text(value).encode(errors='surrogatepass')).hexdigest()}"
    if isinstance(value, tuple):
        return f"({','.join(constant_text(item) for item in value)})"
    if isinstance(value, (set, frozenset)):
        return f"{{{','.join(sorted(constant_text(item) for item in value))}}}"
    return f"{type(value).__name__} {value!r}"


def is_constant(value: object) -> bool:
    """Return whether a value is a literal, or a tuple or frozenset of literals."""
    if isinstance(value, (tuple, frozenset)):
        return all(is_constant(item) for item in value)
    return value is None or value is ... or isinstance(value, (bool, int, float, complex, str, bytes))


def references_of(code: CodeType) -> CodeReferences:
    """Return the names that a code object and its nested code objects use."""
    instructions = list(_all_instructions(code))
    return CodeReferences(
        global_names=_operand_names(instructions, _GLOBAL_LOADS),
        attribute_names=_operand_names(instructions, _ATTRIBUTE_LOADS),
        imported_modules=_operand_names(instructions, frozenset({"IMPORT_NAME"})),
    )


def _code_lines(code: CodeType) -> Iterator[str]:
    yield f"{code.co_argcount} {code.co_posonlyargcount} {code.co_kwonlyargcount} {code.co_flags & ~_HAS_DOCSTRING}"
    yield f"{code.co_varnames} {code.co_cellvars} {code.co_freevars}"
    for instruction in dis.get_instructions(code):
        if instruction.opname not in _FILLERS:
            yield f"{instruction.opname} {_operand(instruction)}"
    # Since Python 3.11, the ranges of try and with blocks are not among the instructions.
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


def _operand_names(instructions: list[Any], operations: frozenset[str]) -> frozenset[str]:
    return frozenset(i.argval for i in instructions if i.opname in operations and isinstance(i.argval, str))
