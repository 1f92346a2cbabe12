"""Makes the user's functions known to Spark's tasks, which have other search paths than the driver."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import site
import sys
import sysconfig
import typing
from collections.abc import Iterable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.spark.driver.sessions import runs_in_this_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# They are there already, also where they are not installed but on Spark's own search path.
_NOT_OF_USERS = ("__main__", "airflow_provider_statecheck", "pyspark", "py4j")


def make_importable(spark: SparkSession, parts: Iterable[object]) -> None:
    """
    Let tasks use what only the driver has modules for.

    Where Spark runs in this process its tasks get the same search path, and what cannot be found on it, such as a Dag's
    own file, is sent with them. Elsewhere all modules are sent that lie beside those of the parts, unless they are
    installed.

    :param parts: Functions and other objects of the user's that tasks get.
    """
    modules = list(_modules_of(parts))
    if runs_in_this_process(spark):
        _share_search_path(spark)
        _send_by_value(module for module in modules if not _is_found(module))
    else:
        roots = {_root_of(module) for module in modules}
        _send_by_value(module for module in _loaded() if _root_of(module) in roots)


def _modules_of(parts: Iterable[object]) -> Iterator[ModuleType]:
    for part in parts:
        called = part.func if isinstance(part, functools.partial) else part
        kind = called if hasattr(called, "__qualname__") else type(called)
        module = sys.modules.get(str(getattr(kind, "__module__", "")))
        if module is not None and _is_of_user(module):
            yield module


def _loaded() -> Iterator[ModuleType]:
    return (module for module in list(sys.modules.values()) if _is_of_user(module))


def _is_of_user(module: Any) -> bool:
    file = getattr(module, "__file__", None)
    name = str(getattr(module, "__name__", "")).partition(".")[0]
    return isinstance(module, ModuleType) and file is not None and name not in _NOT_OF_USERS and not _is_installed(file)


def _root_of(module: ModuleType) -> Path:
    """Return the directory on the search path from which a module came, its own where there is none."""
    file = Path(str(module.__file__)).resolve()
    above = [root for path in sys.path if path and file.is_relative_to(root := Path(path).resolve())]
    return max(above, key=lambda root: len(root.parts), default=file.parent)


def _is_found(module: ModuleType) -> bool:
    # Airflow gives a Dag's file a name of its own, under which it is loaded but cannot be found.
    return PathFinder.find_spec(module.__name__.partition(".")[0]) is not None


def _share_search_path(spark: SparkSession) -> None:
    environment = spark.sparkContext.environment
    known = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    missing = [path for path in sys.path if path and path not in known and not _is_installed(path)]
    environment["PYTHONPATH"] = os.pathsep.join([*known, *missing])


def _send_by_value(modules: Iterable[ModuleType]) -> None:
    from pyspark import cloudpickle

    for module in modules:
        _resolve_annotations(module)
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _resolve_annotations(module: ModuleType) -> None:
    # The names in annotations that are texts mean nothing where the module is not, and state may be of such a class.
    for kind in vars(module).values():
        if isinstance(kind, type) and kind.__module__ == module.__name__:
            # A name that type checkers alone know stays a text.
            with contextlib.suppress(NameError):
                hints = typing.get_type_hints(kind, include_extras=True)
                kind.__annotations__ = {name: hints[name] for name in inspect.get_annotations(kind)}


def _is_installed(path: str) -> bool:
    resolved = Path(path).resolve()
    return any(resolved.is_relative_to(root) for root in _installed_roots())


@functools.cache
def _installed_roots() -> frozenset[Path]:
    paths = [sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")]
    return frozenset(Path(path).resolve() for path in (*paths, *site.getsitepackages(), site.getusersitepackages()))
