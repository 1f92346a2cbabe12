"""
Preparation of a stage on the driver.

Makes user code available to Spark tasks, finds the types of the state of all functions, and checks them against a
restored checkpoint before any data is read.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import sys
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.states.handles import MAX_PARALLELISM_BOUND, require_parallelism
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, SourceChangedError
from airflow_provider_statecheck.spark.driver.session import runs_in_this_process
from airflow_provider_statecheck.spark.fingerprint import is_user_file
from airflow_provider_statecheck.spark.stages.executor.aggregate_run import STATE_NAME
from airflow_provider_statecheck.spark.stages.executor.node_run import NodeTask, SubtaskContext
from airflow_provider_statecheck.spark.stages.executor.vertex_task import FunctionChain
from airflow_provider_statecheck.spark.stages.planning import PlannedNode, PlannedVertex
from airflow_provider_statecheck.spark.tables.schemas import conflicts
from airflow_provider_statecheck.state.aggregates import continued, unrecorded
from airflow_provider_statecheck.state.functions.task_owned import in_memory
from airflow_provider_statecheck.state.keyed.queryable_names import TaskKvStateRegistry
from airflow_provider_statecheck.state.schema_evolution import (
    OperatorSchemas,
    StateSchema,
    as_written,
    report,
    require_compatible,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

# Available in every Python of Spark, even if only through Spark's own search path.
_AVAILABLE_PACKAGES = ("__main__", "airflow_provider_statecheck", "pyspark", "py4j")

_ROWS_PER_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
_DEFAULT_BATCH_ROWS = "10000"
_LARGE_BATCH_ROWS = "65536"
_UNION_PARTITIONING = "spark.sql.unionOutputPartitioning"
"""Earlier versions of Spark, which never merge partitions in a union, ignore it."""

_HEADROOM = 4
"""Factor by which the parallelism of a function may grow later."""


def probe_schemas(
    functions: Sequence[PlannedNode], *, storage: CheckpointStorage, logical_date: datetime | None
) -> dict[str, OperatorSchemas]:
    """
    Return the state types of functions, by their uids.

    Opens a copy of each function, pickled as for Spark tasks, with a state backend that writes no files and closes it
    again.

    :raises InvalidConfigurationError: if a function cannot be pickled.
    """
    from airflow_provider_statecheck.state.backends import MemoryStateBackend

    context = SubtaskContext(
        job_id="0" * 32,
        subtask=0,
        parallelism=1,
        max_parallelism=1,
        now_ms=0,
        logical_date=logical_date,
        state_backend=MemoryStateBackend(),
    )
    found: dict[str, OperatorSchemas] = {}
    names, own = TaskKvStateRegistry(), in_memory(storage)
    for function in functions:
        chain = FunctionChain([NodeTask.of(function, node=_pickled_copy(function))], context, storage, own, names)
        try:
            chain.open()
            found.update(chain.schemas())
        finally:
            chain.close()
    _warn_of_conflicts(names)
    return found


def _warn_of_conflicts(names: TaskKvStateRegistry) -> None:
    for name, states in names.conflicts().items():
        log.warning(
            "The queryable name %r has several states in this stage: %s; queries reach only one of them, so give each "
            "its own queryable_name.",
            name,
            ", ".join(f"{each.state!r} of {each.operator!r}" for each in states),
        )


def _pickled_copy(function: PlannedNode) -> Any:
    from pyspark import cloudpickle

    try:
        return cloudpickle.loads(cloudpickle.dumps(function.node))  # type: ignore[no-untyped-call]
    except Exception as error:
        raise InvalidConfigurationError(
            f"Expected a function {function.uid!r} that can be pickled for Spark tasks, found: {error}. Open "
            "connections and files in open()."
        ) from error


def make_importable(spark: SparkSession, objects: Iterable[object]) -> None:
    """
    Make the modules of user code available to Spark tasks.

    If Spark runs in this process, its tasks get the same search path, and modules that are not on it, such as a Dag
    file, are pickled by value. Otherwise all loaded modules from the same directories as the user's modules are pickled
    by value, except installed ones.

    :param objects: Functions and other user objects that tasks need.
    """
    modules = list(_modules_of(objects))
    if runs_in_this_process(spark):
        _share_search_path(spark)
        _pickle_by_value(module for module in modules if not _is_on_search_path(module))
    else:
        roots = {_root_of(module) for module in modules}
        loaded = [module for module in list(sys.modules.values()) if _is_user_module(module)]
        _pickle_by_value(module for module in loaded if _root_of(module) in roots)


def _modules_of(objects: Iterable[object]) -> Iterator[ModuleType]:
    for user_object in objects:
        called = user_object.func if isinstance(user_object, functools.partial) else user_object
        kind = called if hasattr(called, "__qualname__") else type(called)
        module = sys.modules.get(str(getattr(kind, "__module__", "")))
        if module is not None and _is_user_module(module):
            yield module


def _is_user_module(module: Any) -> bool:
    file = getattr(module, "__file__", None)
    if not isinstance(module, ModuleType) or file is None:
        return False
    return module.__name__.partition(".")[0] not in _AVAILABLE_PACKAGES and _is_users(file)


def _root_of(module: ModuleType) -> Path:
    """Return the most specific directory of the search path that contains a module, by default its own directory."""
    file = Path(str(module.__file__)).resolve()
    above = [root for path in sys.path if path and file.is_relative_to(root := Path(path).resolve())]
    return max(above, key=lambda root: len(root.parts), default=file.parent)


def _is_on_search_path(module: ModuleType) -> bool:
    # Airflow loads Dag files under generated names, which cannot be imported.
    return PathFinder.find_spec(module.__name__.partition(".")[0]) is not None


def _share_search_path(spark: SparkSession) -> None:
    environment = spark.sparkContext.environment
    known = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    missing = [path for path in sys.path if path and path not in known and _is_users(path)]
    environment["PYTHONPATH"] = os.pathsep.join([*known, *missing])


def _pickle_by_value(modules: Iterable[ModuleType]) -> None:
    from pyspark import cloudpickle

    for module in modules:
        _resolve_annotations(module)
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _resolve_annotations(module: ModuleType) -> None:
    # Tasks cannot resolve annotations that are strings without the module, but state may have types of its classes.
    for kind in vars(module).values():
        if isinstance(kind, type) and kind.__module__ == module.__name__:
            # Names that are imported only for type checking remain strings.
            with contextlib.suppress(NameError):
                hints = typing.get_type_hints(kind, include_extras=True)
                kind.__annotations__ = {name: hints[name] for name in inspect.get_annotations(kind)}


def _is_users(path: str) -> bool:
    return is_user_file(path) and is_user_file(str(Path(path).resolve()))


def with_former_names(
    planned: Sequence[PlannedVertex], restored: Mapping[str, OperatorSchemas]
) -> tuple[PlannedVertex, ...]:
    """
    Return the vertices with the names under which restored state has their aggregates.

    :param restored: Types of restored keyed state, by the uids of the functions.
    :raises StateMigrationError: if the state does not have an aggregate for all earlier input.
    """
    return tuple(
        replace(vertex, functions=tuple(_with_former_names(each, restored.get(each.uid)) for each in vertex.functions))
        for vertex in planned
    )


def _with_former_names(function: PlannedNode, restored: OperatorSchemas | None) -> PlannedNode:
    if not function.aggregates or restored is None:
        return function
    values = [state.value for state in restored.keyed if state.name == STATE_NAME]
    found = restored.aggregates or tuple(each for value in values for each in unrecorded(value))
    return replace(function, aggregates=continued(found, function.aggregates, function.uid))


def merged_schemas(
    restored: Mapping[str, OperatorSchemas], current: Mapping[str, OperatorSchemas]
) -> dict[str, OperatorSchemas]:
    """
    Check restored state types against current ones; return the types for the next checkpoint.

    :param restored: Restored types, by the uids of the functions.
    :param current: Current types, by the uids of the functions.
    :raises StateMigrationError: if the restored state of a function cannot be migrated to its current types.
    """
    return {uid: _merge(uid, restored.get(uid), new) for uid, new in current.items()}


def _merge(uid: str, old: OperatorSchemas | None, new: OperatorSchemas) -> OperatorSchemas:
    if old is None:
        return new
    found = require_compatible(old, new, uid)
    if found:
        log.info("Restored the state of %s:\n%s", uid, report(found))
    written = as_written(old.keyed, new.keyed)
    keyed, operator = _with_unregistered(old.keyed, written), _with_unregistered(old.operator, new.operator)
    return replace(new, keyed=keyed, operator=operator)


def _with_unregistered(old: Iterable[StateSchema], new: tuple[StateSchema, ...]) -> tuple[StateSchema, ...]:
    # Restored state that the function has not registered is retained.
    names = {state.name for state in new}
    return (*new, *(state for state in old if state.name not in names))


def require_same_output(before: Sequence[PlannedVertex], now: Sequence[PlannedVertex], sink: object) -> None:
    """
    Require the output that a sink was opened for, from a plan for wider input.

    :param sink: The sink; ``None`` for a stage without one.
    :raises SourceChangedError: if a column of the output has become wider.
    """
    ours, theirs = now[-1].output_schema, before[-1].output_schema
    found = [] if sink is None or ours is None else conflicts(ours, theirs)
    if found:
        raise SourceChangedError(
            f"Expected the output of the stage in the types with which its sink was opened, found: {'; '.join(found)}, "
            "because the input became wider; cast the columns of all splits to the wider types, and start over."
        )


@contextmanager
def stage_settings_applied(spark: SparkSession) -> Iterator[None]:
    """
    Set what the jobs of a stage need in its session, until the end of a ``with`` block.

    Arrow batches are larger, unless the user has changed their size: with Spark's default, the overhead of a batch
    equals the cost of its content. The partitions of a union are those of its parts, one after the other: Spark
    would otherwise merge those that are partitioned alike, and a task would see the rows of several increments.
    """
    with _setting(spark, _UNION_PARTITIONING, "false"):
        if spark.conf.get(_ROWS_PER_BATCH, _DEFAULT_BATCH_ROWS) != _DEFAULT_BATCH_ROWS:
            yield
            return
        with _setting(spark, _ROWS_PER_BATCH, _LARGE_BATCH_ROWS):
            yield


@contextmanager
def _setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name, None)
    spark.conf.set(name, value)
    try:
        yield
    except BaseException:
        # A lost session needs no reset, and its error must not replace that of the stage.
        with suppress(Exception):
            _reset(spark, name, before)
        raise
    _reset(spark, name, before)


def _reset(spark: SparkSession, name: str, before: str | None) -> None:
    if before is None:
        spark.conf.unset(name)
    else:
        spark.conf.set(name, before)


def subtasks_within(slots: int, bounds: Iterable[int | None]) -> int:
    """
    Return the default number of subtasks: one for each task slot, as far as there are key groups.

    :param slots: Number of tasks that Spark runs concurrently.
    :param bounds: Numbers of key groups that are known: that of the stage, and that of its restored state.
    """
    key_groups = min((bound for bound in bounds if bound is not None), default=MAX_PARALLELISM_BOUND)
    if slots > key_groups:
        log.warning(
            "The stage runs with parallelism=%s, one subtask for each key group, although Spark has %s task slots. "
            "For more, run `airflow statecheck rescale` on a savepoint, or set a higher max_parallelism before there "
            "is state.",
            key_groups,
            slots,
        )
    return min(slots, key_groups)


def max_parallelism_advice(parallelism: int, max_parallelism: int) -> str | None:
    """
    Return a warning for a new function with few key groups; ``None`` if there are enough.

    :raises InvalidConfigurationError: if a parallelism is out of range.
    """
    require_parallelism(parallelism, max_parallelism)
    if max_parallelism >= min(_HEADROOM * parallelism, MAX_PARALLELISM_BOUND):
        return None
    # A power of two.
    wanted = min(1 << (_HEADROOM * parallelism - 1).bit_length(), MAX_PARALLELISM_BOUND)
    return (
        f"max_parallelism={max_parallelism} is less than {_HEADROOM} times the parallelism of {parallelism}: it bounds "
        f"every later parallelism, and few key groups distribute keys unevenly. Set max_parallelism={wanted} before "
        "there is state; later, run `airflow statecheck rescale` on a savepoint."
    )
