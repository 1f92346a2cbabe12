"""
Text of a DataFrame's plan that is equal in each attempt.

The text of a plan contains ids from counters of the JVM and random seeds. Ids are replaced by their order of first
occurrence, and random seeds are removed.

For Spark Connect, the digest uses the plan message of the client: it includes the paths of sources and needs no call.
Line numbers, pickled functions and random seeds are normalised in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

from airflow_provider_statecheck.spark.explained_plans import analysed_plan, explained
from airflow_provider_statecheck.spark.snapshots.dataframes import same_place
from airflow_provider_statecheck.spark.snapshots.executor_io import read_snapshot
from airflow_provider_statecheck.spark.versions import is_connect, pickled_command
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


CodeDigest = Callable[[object], str]

_ALL_FIELDS = 2**31 - 1
_LOCAL_SCHEME = re.compile(r"^file:/+")
# An id directly follows its name; a literal such as 'order #12' keeps its number.
_EXPRESSION_ID = re.compile(r"(?<=\S)#(\d+)L?")
_RELATION_ID = re.compile(r"(CTERelation(?:Def|Ref) )(\d+)")
# The name of a DataFrame that is passed to spark.sql.
_VIEW_NAME = re.compile(r"(\b_pyspark_(?:connect_temp_view_)?)([0-9a-f]{32})\b")
_SNAPSHOT_TASKS = re.compile(r"(MapInArrow snapshot:[^\s(]+\([^\n]*\n[^\n]*Range \(0, )\d+")
_SNAPSHOT = "snapshot:"
_PATHS_OF_PARTS = re.compile(r'(^ *paths: "snapshot:[^"\n]*"\n)\1+', re.MULTILINE)
_DROPPED = (
    # PySpark appends a counter to the names of lambda variables.
    (re.compile(r"\blambda (\w+?)_\d+(?=#)"), r"lambda \1"),
    # The number of partitions of a range depends on the machine.
    (re.compile(r"splits=(?:Some\(\d+\)|None)"), "splits"),
    (re.compile(r"\bplan_id=\d+"), "plan_id"),
    (re.compile(r"(RDD)\[\d+\]"), r"\1"),
    (re.compile(r"(?<=[\w$])@[0-9a-f]{5,8}\b"), ""),
    # A random seed has 64 bits; a seed in user code is assumed to be smaller.
    (re.compile(r"\b(randn?)\(-?\d{10,}\)"), r"\1()"),
    (re.compile(r"Some\(-?\d{10,}\)"), "Some(seed)"),
    (re.compile(r"(\bSample [^\n]*, )-?\d{10,}"), r"\1seed"),
)


def plan_text(df: DataFrame, snapshots: Mapping[str, str], code_digest: CodeDigest) -> str:
    """
    Return the normalised plan of a DataFrame.

    :param snapshots: Fingerprints of the snapshots that it may read, by their URIs.
    :param code_digest: Function that returns the digest of a Python function in the plan.
    """
    by_path = {form: snapshots[uri] for uri in sorted(snapshots, key=len, reverse=True) for form in _forms(uri)}
    text = connect_plan_text(df, code_digest) if is_connect(df) else _classic_text(df, by_path, code_digest)
    # The number of tasks that read a snapshot depends on the sizes of its files, and that of its parts on time.
    return _PATHS_OF_PARTS.sub(r"\1", _SNAPSHOT_TASKS.sub(r"\1", _replace_snapshots(text, by_path)))


def stable_text(text: str) -> str:
    """Return the text of a plan without numbers that differ between JVMs."""
    for pattern, replacement in _DROPPED:
        text = pattern.sub(replacement, text)
    text = _renumber(_VIEW_NAME, r"\1", _renumber(_EXPRESSION_ID, r"#", text))
    return _renumber(_RELATION_ID, r"\1", text)


def expression_text(df: DataFrame, expression: str) -> str | None:
    """
    Return the text of an expression of Spark SQL as analyzed for a DataFrame, with the names of its columns.

    The text does not depend on white space, parentheses, or the case of names. ``None`` if Spark has cut it.
    """
    from pyspark.sql import functions as F

    value = df.select(F.expr(expression).alias("value"))
    tree = _connect_tree(value) if is_connect(df) else _tree(cast("Any", value)._jdf.queryExecution().analyzed())
    # The lines below the first are the columns of the DataFrame, and the plans of subqueries.
    text = tree if "subquery#" in tree else tree.partition("\n")[0]
    return None if " more fields" in text else stable_text(_named(text, df.columns))


def _connect_tree(df: DataFrame) -> str:
    return analysed_plan(explained(df), df.schema.simpleString())


def _named(text: str, names: Sequence[str]) -> str:
    """Return the text of a plan with the names of columns in place of their ids; expressions write them in any case."""
    own = {name.lower(): name for name in names} | {name: name for name in names}
    pattern = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    columns = re.compile(rf"(?<!\w)({pattern})#\d+L?(?!\w)", re.IGNORECASE)
    return columns.sub(lambda found: f"`{own.get(found[1], own[found[1].lower()])}`", text)


def udf_text(function: object, return_type: object, eval_type: object, code_digest: CodeDigest) -> str:
    """Return the normalised text of a Python function in a plan."""
    return f"udf {return_type} {eval_type} {code_digest(function)}"


def _renumber(pattern: re.Pattern[str], prefix: str, text: str) -> str:
    order: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        original = found.group(found.re.groups)
        return f"{found.expand(prefix)}{order.setdefault(original, len(order))}"

    return pattern.sub(number, text)


def _classic_text(df: Any, by_path: Mapping[str, str], code_digest: CodeDigest) -> str:
    plan = df._jdf.queryExecution().analyzed()
    plans = [plan, *items(plan.subqueriesAll())]
    sources = [source for each in plans for source in _sources(each, by_path)]
    pattern = _python_udf_pattern(df.sparkSession)
    functions = [text for each in plans for text in _udfs(each, pattern, code_digest)]
    # Before ids are renumbered: a path may contain text that looks like an id.
    tree = _replace_snapshots(_tree(plan), by_path)
    return "\n".join([stable_text(tree), stable_text(df.schema.json()), *sources, *functions])


def _tree(plan: Any) -> str:
    from py4j.protocol import Py4JError

    try:
        return str(plan.treeString(True, False, _ALL_FIELDS, False, False))
    except Py4JError:
        # The last argument is new in Spark 4.2.
        return str(plan.treeString(True, False, _ALL_FIELDS, False))


def items(sequence: Any) -> list[Any]:
    """Return the elements of a Scala sequence."""
    return [sequence.apply(i) for i in range(sequence.length())]


def _sources(plan: Any, by_path: Mapping[str, str]) -> Iterator[str]:
    # The text of a plan does not contain the paths of a relation. Root paths are few, files may be many.
    for leaf in items(plan.collectLeaves()):
        if leaf.getClass().getSimpleName() != "LogicalRelation":
            continue
        relation = leaf.relation()
        if relation.getClass().getSimpleName() == "HadoopFsRelation":
            # The name of a directory may contain any separator of lines.
            roots = relation.location().rootPaths().mkString("\0").split("\0")
            yield "source " + " ".join(_without_parts(_source(comparable(root), by_path) for root in roots))


def _without_parts(sources: Iterable[str]) -> Iterator[str]:
    # The parts of a step have one identity, and their number may change when a damaged one is computed again.
    for source, repeated in groupby(sources):
        yield from (source,) if source.startswith(_SNAPSHOT) else repeated


def _source(path: str, by_path: Mapping[str, str]) -> str:
    for uri, fingerprint in by_path.items():
        if path == uri or path.startswith(f"{uri}/"):
            return f"{_SNAPSHOT}{fingerprint}"
    return path


def comparable(uri: str) -> str:
    """
    Return a URI as plans of Hadoop and of Spark Connect are compared: without a trailing slash, local ones with three.
    """
    # Hadoop writes file:/x instead of file:///x.
    return _LOCAL_SCHEME.sub("file:///", uri).rstrip("/")


def _forms(uri: str) -> Iterator[str]:
    # A plan contains the Hadoop form of a URI, or its redacted form.
    for form in dict.fromkeys([*same_place(uri), redact(uri)]):
        yield comparable(form)


def _replace_snapshots(text: str, by_path: Mapping[str, str]) -> str:
    for uri, fingerprint in by_path.items():
        if uri not in text:
            continue
        # Not if the URI is only the prefix of a longer name.
        text = re.sub(rf"{re.escape(uri)}(?![\w.-])", f"{_SNAPSHOT}{fingerprint}", text)
    return text


def _python_udf_pattern(spark: Any) -> Any:
    return spark._jvm.org.apache.spark.sql.catalyst.trees.TreePattern.PYTHON_UDF()


def _udfs(plan: Any, pattern: Any, code_digest: CodeDigest) -> Iterator[str]:
    if not plan.containsPattern(pattern):
        return
    for expression in items(plan.expressions()):
        for found in containing(expression, pattern):
            yield from _udf_of(found, code_digest)
    for child in items(plan.children()):
        yield from _udfs(child, pattern, code_digest)


def containing(expression: Any, pattern: Any) -> Iterator[Any]:
    """Yield the expressions in a tree that contain a pattern of Catalyst, from the top."""
    if expression.containsPattern(pattern):
        yield expression
        for child in items(expression.children()):
            yield from containing(child, pattern)


def _udf_of(expression: Any, code_digest: CodeDigest) -> Iterator[str]:
    if expression.getClass().getSimpleName() in ("PythonUDF", "PythonUDAF"):
        function, return_type = _function_and_type(expression.func())
        # The package's reader of snapshots is left out; the text of the plan identifies its snapshot.
        if getattr(function, "func", None) is not read_snapshot:
            yield udf_text(function, return_type, expression.evalType(), code_digest)


def _unpickled(command: bytes) -> Any:
    from pyspark.serializers import CPickleSerializer

    # Safe: this process has pickled the function.
    serializer: Any = CPickleSerializer()
    return serializer.loads(command)


def _function_and_type(function: Any) -> tuple[object, object]:
    from pyspark.errors import PySparkRuntimeError

    try:
        command = _unpickled(pickled_command(function))
    except PySparkRuntimeError:
        # A function with much captured data is a broadcast, which only executors can load. Its digest is then constant.
        return None, "broadcast"
    return command if isinstance(command, tuple) and len(command) == 2 else (None, type(command).__name__)


_READER = read_snapshot.__module__.encode()
_PLAN_ID = re.compile(r"(\bplan_ids?: )(\d+)")
# PySpark appends a counter to the names of lambda variables.
_COUNTED_NAME = re.compile(r"_\d+$")
# A random seed has 64 bits; a seed in user code is assumed to be smaller.
_RANDOM_SEED = 10**9
_SEEDED_FUNCTIONS = frozenset({"rand", "randn", "random", "randstr", "shuffle", "uniform", "uuid"})


def connect_plan_text(df: Any, code_digest: CodeDigest) -> str:
    """
    Return the normalised plan of a DataFrame of a Spark Connect session.

    :param code_digest: Function that returns the digest of a Python function in the plan.
    """
    plan = df._plan.to_proto(df.sparkSession.client)
    for message in list(messages(plan)):
        _normalise(message, code_digest)
    return _renumber(_VIEW_NAME, r"\1", _renumber(_PLAN_ID, r"\1", str(plan)))


def messages(message: Any, is_left_out: Callable[[Any], bool] | None = None) -> Iterator[Any]:
    """
    Yield a message of a plan and all messages in it.

    :param is_left_out: Function that returns ``True`` for a message that is left out with all messages in it.
    """
    if is_left_out is not None and is_left_out(message):
        return
    yield message
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for child in _children(field, value):
            yield from messages(child, is_left_out)


def _children(field: Any, value: Any) -> list[Any]:
    if field.message_type.GetOptions().map_entry:
        is_message = field.message_type.fields_by_name["value"].message_type is not None
        return [value[key] for key in sorted(value)] if is_message else []
    return [value] if hasattr(value, "ListFields") else list(value)


def _normalise(message: Any, code_digest: CodeDigest) -> None:
    rule = _RULES.get(message.DESCRIPTOR.name)
    if rule is not None:
        rule(message, code_digest)


def _clear_origin(message: Any, _: CodeDigest) -> None:
    message.ClearField("origin")


def _clear_snapshot_files(message: Any, _: CodeDigest) -> None:
    # The function contains the files of one write; its name identifies the snapshot.
    if _READER in message.func.python_udf.command:
        message.func.python_udf.ClearField("command")
        message.input.ClearField("range")


def _digest_code(message: Any, code_digest: CodeDigest) -> None:
    if not message.command:
        return
    unpickled = _unpickled(message.command)
    message.command = code_digest(unpickled[0] if isinstance(unpickled, tuple) else unpickled).encode()
    message.ClearField("python_ver")


def _clear_rows(message: Any, _: CodeDigest) -> None:
    for name in ("data", "hash", "hashes", "dataHashes"):
        if name in message.DESCRIPTOR.fields_by_name:
            message.ClearField(name)


def _clear_counter(message: Any, _: CodeDigest) -> None:
    names = [_COUNTED_NAME.sub("", name) for name in message.name_parts]
    del message.name_parts[:]
    message.name_parts.extend(names)


def _clear_random_seed(message: Any, _: CodeDigest) -> None:
    if abs(message.seed) >= _RANDOM_SEED:
        message.ClearField("seed")


def _clear_random_argument(message: Any, _: CodeDigest) -> None:
    if message.function_name in _SEEDED_FUNCTIONS:
        for argument in message.arguments:
            if abs(argument.literal.long) >= _RANDOM_SEED:
                argument.literal.ClearField("long")


_RULES: dict[str, Callable[[Any, CodeDigest], None]] = {
    "ExpressionCommon": _clear_origin,
    "RelationCommon": _clear_origin,
    "MapPartitions": _clear_snapshot_files,
    "PythonUDF": _digest_code,
    "PythonUDTF": _digest_code,
    "LocalRelation": _clear_rows,
    "CachedLocalRelation": _clear_rows,
    "ChunkedCachedLocalRelation": _clear_rows,
    "UnresolvedNamedLambdaVariable": _clear_counter,
    "Sample": _clear_random_seed,
    "StatSampleBy": _clear_random_seed,
    "UnresolvedFunction": _clear_random_argument,
}
