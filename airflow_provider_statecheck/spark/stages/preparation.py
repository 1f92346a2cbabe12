"""Preparation on the driver: user code, session settings and state types."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import site
import sys
import sysconfig
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.states.key_groups import MAX_PARALLELISM_BOUND, require_parallelism
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.driver.session import runs_in_this_process
from airflow_provider_statecheck.spark.stages.executor.task_control import OperatorTask, TaskPlace
from airflow_provider_statecheck.spark.stages.executor.vertex_task import FunctionChain
from airflow_provider_statecheck.spark.stages.planning import PlannedOperator
from airflow_provider_statecheck.state.schemas import OperatorSchemas, StateSchema, report, require_compatible
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def probe_schemas(
    operators: Sequence[PlannedOperator], *, storage: CheckpointStorage, logical_date: datetime | None
) -> dict[str, OperatorSchemas]:
    """
    Return the states of functions by the uid of their operators.

    Functions are copied as they are for Spark's tasks, then ``initialize_state``, ``open`` and ``close`` are called.

    :raises InvalidConfigurationError: for a function that cannot be sent to a task.
    """
    from airflow_provider_statecheck.state.backends.hash_state_backend import MemoryStateBackend

    place = TaskPlace(
        job_id="0" * 32,
        subtask=0,
        parallelism=1,
        max_parallelism=1,
        epoch=0,
        now_ms=0,
        logical_date=logical_date,
        state_backend=MemoryStateBackend(),
    )
    found: dict[str, OperatorSchemas] = {}
    for operator in operators:
        chain = FunctionChain([_task(operator)], place, storage)
        try:
            chain.open()
            found.update(chain.schemas())
        finally:
            chain.close()
    return found


def _task(operator: PlannedOperator) -> OperatorTask:
    return OperatorTask(
        uid=operator.uid,
        operator_id=operator.operator_id,
        node=_as_sent(operator),
        input_schema=operator.input_schema,
        output_schema=operator.output_schema,
        key_serializer=operator.key_serializer,
    )


def _as_sent(operator: PlannedOperator) -> Any:
    from pyspark import cloudpickle

    try:
        return cloudpickle.loads(cloudpickle.dumps(operator.node))  # type: ignore[no-untyped-call]
    except Exception as error:
        raise InvalidConfigurationError(
            f"Expected the function {operator.uid!r} to be one that can be sent to Spark's tasks, found one that cannot be "
            f"pickled: {error}. Open connections and files in open()."
        ) from error


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


log = logging.getLogger(__name__)


def carried_schemas(
    restored: Mapping[str, OperatorSchemas], today: Mapping[str, OperatorSchemas]
) -> dict[str, OperatorSchemas]:
    """
    Compare the types of restored state with those of today, before anything is read, and return what is saved with it.

    :param restored: By the uid of the operator.
    :param today: By the uid of the operator.
    :raises StateMigrationError: if an operator cannot go on with its state, naming the state and both types.
    """
    return {uid: _carried(uid, restored.get(uid), new) for uid, new in today.items()}


def _carried(uid: str, old: OperatorSchemas | None, new: OperatorSchemas) -> OperatorSchemas:
    if old is None:
        return new
    found = require_compatible(old, new, uid)
    if found:
        log.info("State of %s is restored:\n%s", uid, report(found))
    return replace(new, keyed=_with_kept(old.keyed, new.keyed), operator=_with_kept(old.operator, new.operator))


def _with_kept(old: Iterable[StateSchema], new: tuple[StateSchema, ...]) -> tuple[StateSchema, ...]:
    names = {state.name for state in new}
    return (*new, *(state for state in old if state.name not in names))


_ROWS_PER_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
_SPARKS_DEFAULT = "10000"
_WANTED = "65536"


@contextmanager
def stage_settings_applied(spark: SparkSession) -> Iterator[None]:
    """
    Let Spark send rows to Python in larger batches, unless somebody chose their size, and undo that afterwards.

    Batches of Spark's default size cost as much for their making as for their content.
    """
    before = spark.conf.get(_ROWS_PER_BATCH, _SPARKS_DEFAULT)
    if before != _SPARKS_DEFAULT:
        yield
        return
    spark.conf.set(_ROWS_PER_BATCH, _WANTED)
    try:
        yield
    except BaseException:
        # A session that was lost has nothing to undo, and must not hide why the stage failed.
        with suppress(Exception):
            spark.conf.set(_ROWS_PER_BATCH, before)
        raise
    spark.conf.set(_ROWS_PER_BATCH, before)


_ROOM = 4
"""So many times its parallelism an operator may come to need."""


def max_parallelism_advice(parallelism: int, max_parallelism: int) -> str | None:
    """
    Return a warning for the first run of an operator with few key groups; ``None`` where there is nothing to warn of.

    :raises InvalidConfigurationError: for a parallelism out of bounds.
    """
    require_parallelism(parallelism, max_parallelism)
    wanted = recommended_max_parallelism(parallelism)
    if max_parallelism >= min(_ROOM * parallelism, MAX_PARALLELISM_BOUND):
        return None
    return (
        f"max_parallelism={max_parallelism} is less than {_ROOM} times the parallelism of {parallelism}: it bounds every "
        f"later parallelism, and few key groups spread keys unevenly. Set max_parallelism={wanted} before there is state; "
        f"later it takes `airflow statecheck rescale` on a savepoint."
    )


def recommended_max_parallelism(parallelism: int) -> int:
    """
    Return a number of key groups with room to grow: a power of two, at least four times the parallelism.

    :raises InvalidConfigurationError: for a parallelism out of bounds.
    """
    require_parallelism(parallelism)
    return min(1 << (_ROOM * parallelism - 1).bit_length(), MAX_PARALLELISM_BOUND)
