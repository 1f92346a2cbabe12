"""
Digest of a DataFrame's plan, for classic Spark and Spark Connect.

Spark numbers what it resolves by counters of the whole JVM, and draws seeds that nobody asked for. Such numbers are
replaced here by the order of their first appearance, or dropped.

Asking the server would cost a call and lose the paths: what the client is going to send has all of it, and more. It
names the lines of the code that made it, pickles functions as they lie in their file, and draws seeds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.spark.driver.session import is_connect
from airflow_provider_statecheck.spark.snapshots.executor_io import read_snapshot
from airflow_provider_statecheck.spark.snapshots.hadoop_filesystems import same_place
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


CodeDigest = Callable[[object], str]

_READER = read_snapshot.__module__.encode()
_PLAN_ID = re.compile(r"(\bplan_ids?: )(\d+)")
# Python gives lambda variables names from a counter.
_COUNTED_NAME = re.compile(r"_\d+$")
# A seed that was drawn is a random 64 bit number, one that somebody wrote is short.
_DRAWN_SEED = 10**9
_SEEDED_FUNCTIONS = frozenset({"rand", "randn", "random", "randstr", "shuffle", "uniform", "uuid"})


def connect_plan_text(df: Any, code_digest: CodeDigest) -> str:
    """
    Return what a DataFrame of a Spark Connect session computes.

    :param df: The DataFrame.
    :param code_digest: Gives the digest of a Python function in the plan.
    """
    plan = df._plan.to_proto(df.sparkSession.client)
    for message in list(_messages(plan)):
        _normalise(message, code_digest)
    return _renumbered(str(plan))


def _messages(message: Any) -> Iterator[Any]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for child in _children(field, value):
            yield from _messages(child)


def _children(field: Any, value: Any) -> list[Any]:
    if field.message_type.GetOptions().map_entry:
        is_message = field.message_type.fields_by_name["value"].message_type is not None
        return [value[key] for key in sorted(value)] if is_message else []
    return [value] if hasattr(value, "ListFields") else list(value)


def _normalise(message: Any, code_digest: CodeDigest) -> None:
    rule = _RULES.get(message.DESCRIPTOR.name)
    if rule is not None:
        rule(message, code_digest)


def _forget_origin(message: Any, _: CodeDigest) -> None:
    message.ClearField("origin")


def _forget_files(message: Any, _: CodeDigest) -> None:
    # The function has the files of one write in it; its name says which snapshot it reads.
    if _READER in message.func.python_udf.command:
        message.func.python_udf.ClearField("command")
        message.input.ClearField("range")


def _digest_code(message: Any, code_digest: CodeDigest) -> None:
    if not message.command:
        return
    message.command = code_digest(_connect_plan_unpickled(message.command)).encode()
    message.ClearField("python_ver")


def _forget_rows(message: Any, _: CodeDigest) -> None:
    for name in ("data", "hash", "hashes", "dataHashes"):
        if name in message.DESCRIPTOR.fields_by_name:
            message.ClearField(name)


def _forget_counter(message: Any, _: CodeDigest) -> None:
    names = [_COUNTED_NAME.sub("", name) for name in message.name_parts]
    del message.name_parts[:]
    message.name_parts.extend(names)


def _forget_drawn_seed(message: Any, _: CodeDigest) -> None:
    if abs(message.seed) >= _DRAWN_SEED:
        message.ClearField("seed")


def _forget_drawn_argument(message: Any, _: CodeDigest) -> None:
    if message.function_name in _SEEDED_FUNCTIONS:
        for argument in message.arguments:
            if abs(argument.literal.long) >= _DRAWN_SEED:
                argument.literal.ClearField("long")


_RULES: dict[str, Callable[[Any, CodeDigest], None]] = {
    "ExpressionCommon": _forget_origin,
    "RelationCommon": _forget_origin,
    "MapPartitions": _forget_files,
    "PythonUDF": _digest_code,
    "PythonUDTF": _digest_code,
    "LocalRelation": _forget_rows,
    "CachedLocalRelation": _forget_rows,
    "ChunkedCachedLocalRelation": _forget_rows,
    "UnresolvedNamedLambdaVariable": _forget_counter,
    "Sample": _forget_drawn_seed,
    "StatSampleBy": _forget_drawn_seed,
    "UnresolvedFunction": _forget_drawn_argument,
}


def _connect_plan_unpickled(command: bytes) -> object:
    from pyspark.serializers import CPickleSerializer

    # These bytes were pickled by this very process a moment ago.
    serializer: Any = CPickleSerializer()
    made = serializer.loads(command)
    return made[0] if isinstance(made, tuple) else made


def _renumbered(text: str) -> str:
    order: dict[str, int] = {}
    return _PLAN_ID.sub(lambda found: f"{found[1]}{order.setdefault(found[2], len(order))}", text)


_ALL_FIELDS = 2**31 - 1
_LOCAL_SCHEME = re.compile(r"^file:/+")
# An id stands right behind what it belongs to: a literal such as 'order #12' keeps its number.
_EXPRESSION_ID = re.compile(r"(?<=\S)#(\d+)L?")
_RELATION_ID = re.compile(r"(CTERelation(?:Def|Ref) )(\d+)")
_SNAPSHOT_TASKS = re.compile(r"(MapInArrow snapshot:[^\s(]+\([^\n]*\n[^\n]*Range \(0, )\d+")
_DROPPED = (
    # Python gives lambda variables names from a counter.
    (re.compile(r"\blambda (\w+?)_\d+(?=#)"), r"lambda \1"),
    # How many partitions a range gets follows the machine.
    (re.compile(r"splits=(?:Some\(\d+\)|None)"), "splits"),
    (re.compile(r"\bplan_id=\d+"), "plan_id"),
    (re.compile(r"(RDD)\[\d+\]"), r"\1"),
    (re.compile(r"(?<=[\w$])@[0-9a-f]{5,8}\b"), ""),
    # A seed that Spark drew is a random 64 bit number, one that somebody wrote is short.
    (re.compile(r"\b(randn?)\(-?\d{10,}\)"), r"\1()"),
    (re.compile(r"Some\(-?\d{10,}\)"), "Some(seed)"),
    (re.compile(r"(\bSample [^\n]*, )-?\d{10,}"), r"\1seed"),
)


def plan_text(df: DataFrame, snapshots: Mapping[str, str], code_digest: CodeDigest) -> str:
    """
    Return what a DataFrame computes.

    :param df: The DataFrame.
    :param snapshots: The fingerprint of each snapshot it may read, by the URI of the snapshot.
    :param code_digest: Gives the digest of a Python function in the plan.
    """
    known = {form: snapshots[uri] for uri in sorted(snapshots, key=len, reverse=True) for form in _forms(uri)}
    text = connect_plan_text(df, code_digest) if is_connect(df) else _classic_text(df, known, code_digest)
    # Into how many tasks a snapshot is shared out follows the sizes of its files.
    return _SNAPSHOT_TASKS.sub(r"\1", _replace_snapshots(text, known))


def stable_text(text: str) -> str:
    """Return the text of a plan without numbers that differ from one JVM to the next."""
    for pattern, replacement in _DROPPED:
        text = pattern.sub(replacement, text)
    text = _renumber(_EXPRESSION_ID, r"#", text)
    return _renumber(_RELATION_ID, r"\1", text)


def udf_text(function: object, return_type: object, eval_type: object, code_digest: CodeDigest) -> str:
    """Return what a Python function in a plan computes."""
    return f"udf {return_type} {eval_type} {code_digest(function)}"


def _renumber(pattern: re.Pattern[str], prefix: str, text: str) -> str:
    order: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        original = found.group(found.re.groups)
        return f"{found.expand(prefix)}{order.setdefault(original, len(order))}"

    return pattern.sub(number, text)


def _classic_text(df: Any, known: Mapping[str, str], code_digest: CodeDigest) -> str:
    plan = df._jdf.queryExecution().analyzed()
    plans = [plan, *_items(plan.subqueriesAll())]
    sources = [source for each in plans for source in _sources(each, known)]
    pattern = _python_udf_pattern(df.sparkSession)
    functions = [text for each in plans for text in _udfs(each, pattern, code_digest)]
    # Before anything in it is renumbered: a path may hold what looks like such a number.
    tree = _replace_snapshots(_tree(plan), known)
    return "\n".join([stable_text(tree), stable_text(df.schema.json()), *sources, *functions])


def _tree(plan: Any) -> str:
    from py4j.protocol import Py4JError

    try:
        return str(plan.treeString(True, False, _ALL_FIELDS, False, False))
    except Py4JError:
        # Before Spark 4.2 the last switch was not there.
        return str(plan.treeString(True, False, _ALL_FIELDS, False))


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(i) for i in range(sequence.length())]


def _sources(plan: Any, known: Mapping[str, str]) -> Iterator[str]:
    # The plan's text does not say which files a relation reads. Their number may be large, that of roots is small.
    for leaf in _items(plan.collectLeaves()):
        if leaf.getClass().getSimpleName() != "LogicalRelation":
            continue
        relation = leaf.relation()
        if relation.getClass().getSimpleName() == "HadoopFsRelation":
            roots = relation.location().rootPaths().mkString("\n").splitlines()
            yield "source " + " ".join(_source(_comparable(root), known) for root in roots)


def _source(path: str, known: Mapping[str, str]) -> str:
    for uri, fingerprint in known.items():
        if path == uri or path.startswith(f"{uri}/"):
            return f"snapshot:{fingerprint}"
    return path


def _comparable(uri: str) -> str:
    # Hadoop writes file:/x for what everybody else calls file:///x.
    return _LOCAL_SCHEME.sub("file:///", uri).rstrip("/")


def _forms(uri: str) -> Iterator[str]:
    # A plan has Spark's name of a place, or what may be shown of it.
    for form in dict.fromkeys([*same_place(uri), redact(uri)]):
        yield _comparable(form)


def _replace_snapshots(text: str, known: Mapping[str, str]) -> str:
    for uri, fingerprint in known.items():
        # Not where it only begins the name of a neighbour.
        text = re.sub(rf"{re.escape(uri)}(?![\w.-])", f"snapshot:{fingerprint}", text)
    return text


def _python_udf_pattern(spark: Any) -> Any:
    return spark._jvm.org.apache.spark.sql.catalyst.trees.TreePattern.PYTHON_UDF()


def _udfs(plan: Any, pattern: Any, code_digest: CodeDigest) -> Iterator[str]:
    if not plan.containsPattern(pattern):
        return
    for expression in _items(plan.expressions()):
        yield from _udfs_of_expression(expression, pattern, code_digest)
    for child in _items(plan.children()):
        yield from _udfs(child, pattern, code_digest)


def _udfs_of_expression(expression: Any, pattern: Any, code_digest: CodeDigest) -> Iterator[str]:
    if not expression.containsPattern(pattern):
        return
    if expression.getClass().getSimpleName() in ("PythonUDF", "PythonUDAF"):
        function, return_type = _unpickled(expression.func())
        # The plan's text names the snapshot that such a function reads; how this package reads it does not count.
        if getattr(function, "func", None) is not read_snapshot:
            yield udf_text(function, return_type, expression.evalType(), code_digest)
    for child in _items(expression.children()):
        yield from _udfs_of_expression(child, pattern, code_digest)


def _unpickled(function: Any) -> tuple[object, object]:
    from pyspark.errors import PySparkRuntimeError
    from pyspark.serializers import CPickleSerializer

    # These bytes were pickled by this very process when the function was put into the plan.
    serializer: Any = CPickleSerializer()
    try:
        command = serializer.loads(bytes(function.command().unsafeArray()))
    except PySparkRuntimeError:
        # A function with much data behind it travels as a broadcast, which only an executor can load; then only its
        # place in the plan counts.
        return None, "broadcast"
    return command if isinstance(command, tuple) and len(command) == 2 else (None, type(command).__name__)
