"""
The text of a Spark Connect plan that is equal in every process for equal code.

Asking the server would cost a call and lose the paths: what the client is going to send has all of it, and more. It
names the lines of the code that made it, pickles functions as they lie in their file, and draws seeds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from airflow_provider_statecheck.spark.snapshots.executor_reader import read_snapshot

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
    message.command = code_digest(_unpickled(message.command)).encode()
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


def _unpickled(command: bytes) -> object:
    from pyspark.serializers import CPickleSerializer

    # These bytes were pickled by this very process a moment ago.
    serializer: Any = CPickleSerializer()
    made = serializer.loads(command)
    return made[0] if isinstance(made, tuple) else made


def _renumbered(text: str) -> str:
    order: dict[str, int] = {}
    return _PLAN_ID.sub(lambda found: f"{found[1]}{order.setdefault(found[2], len(order))}", text)
