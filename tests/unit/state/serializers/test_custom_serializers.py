"""Serializers of the user's own."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from types import GenericAlias
from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.state.serializers.custom_serializer import migrate_each
from airflow_provider_statecheck.state.serializers.resolve import restored_serializer, serializer_of
from airflow_provider_statecheck.state.serializers.serializer import Compatibility, Outcome, SerializerSnapshot


class Sketch:
    def __init__(self, words):
        self.words = list(words)

    def __eq__(self, other):
        return self.words == other.words

    __hash__ = None  # type: ignore[assignment]


class SketchSerializer:
    class_id = "sketch"

    def __init__(self, version=1, separator=","):
        self.version = version
        self.separator = separator

    def serialize(self, value):
        return self.separator.join(value.words).encode()

    def deserialize(self, data):
        return Sketch(data.decode().split(self.separator))

    def config(self):
        return {"separator": self.separator}


class Evolving(SketchSerializer):
    """Reads what earlier versions wrote with another separator."""

    def resolve_compatibility(self, old):
        assert old.class_id == "sketch"
        before, now = old.config["separator"].encode(), self.separator.encode()
        if before == now:
            return Compatibility(outcome=Outcome.COMPATIBLE_AS_IS)
        if old.version == self.version:
            return Compatibility(
                outcome=Outcome.COMPATIBLE_WITH_RECONFIGURED_SERIALIZER,
                serializer=Evolving(self.version, before.decode()),
            )
        migrate = migrate_each(lambda data: data.replace(before, now))
        return Compatibility(outcome=Outcome.COMPATIBLE_AFTER_MIGRATION, migrate=migrate)


class Plain:
    class_id = "plain"
    version = 1

    def serialize(self, value):
        return value

    def deserialize(self, data):
        return data


@dataclass
class Holder:
    name: str
    sketches: list[Any]


def test_a_value_is_a_column_of_the_bytes_that_the_serializer_makes() -> None:
    serializer = serializer_of(SketchSerializer())
    array = serializer.to_arrow([Sketch(["a", "b"]), None])
    assert array.to_pylist() == [b"a,b", None]
    assert array.type == serializer.arrow_type
    assert serializer.from_arrow(array) == [Sketch(["a", "b"]), None]


def test_it_can_be_part_of_another_type() -> None:
    serializer = serializer_of(GenericAlias(list, SketchSerializer()))
    assert serializer.from_arrow(serializer.to_arrow([[Sketch(["a"])]])) == [[Sketch(["a"])]]


def test_a_copy_goes_by_way_of_the_bytes() -> None:
    value = Sketch(["a"])
    copy = serializer_of(SketchSerializer()).copy(value)
    copy.words.append("b")
    assert value == Sketch(["a"])


def test_its_snapshot_has_its_id_its_version_and_its_config_and_no_code() -> None:
    snapshot = serializer_of(SketchSerializer(3, ";")).snapshot()
    assert snapshot == SerializerSnapshot(class_id="custom:sketch", version=3, config={"separator": ";"})
    assert json.loads(json.dumps(snapshot.config)) == snapshot.config
    assert serializer_of(Plain()).snapshot().config == {}


@pytest.mark.parametrize(
    "old",
    [SketchSerializer(), SketchSerializer(2), SketchSerializer(1, ";"), Plain()],
    ids=["same", "version", "config", "class"],
)
def test_without_a_word_of_its_own_only_the_same_version_and_config_are_compatible(old: Any) -> None:
    verdict = serializer_of(SketchSerializer()).resolve_compatibility(serializer_of(old).snapshot())
    is_same = serializer_of(old).snapshot() == serializer_of(SketchSerializer()).snapshot()
    assert verdict.outcome is (Outcome.COMPATIBLE_AS_IS if is_same else Outcome.INCOMPATIBLE)
    assert bool(verdict.reason) is not is_same


def test_its_own_verdict_counts() -> None:
    old = serializer_of(SketchSerializer(1, ";"))
    verdict = serializer_of(Evolving(2)).resolve_compatibility(old.snapshot())
    assert verdict.outcome is Outcome.COMPATIBLE_AFTER_MIGRATION
    assert verdict.migrate is not None
    migrated = verdict.migrate(old.to_arrow([Sketch(["a", "b"]), None]))
    assert migrated.to_pylist() == [b"a,b", None]


def test_its_own_reconfigured_serializer_is_used() -> None:
    for wrap, value in ((lambda of: of, Sketch(["a", "b"])), (lambda of: GenericAlias(list, of), [Sketch(["a", "b"])])):
        old = serializer_of(wrap(SketchSerializer(2, ";")))
        verdict = serializer_of(wrap(Evolving(2))).resolve_compatibility(old.snapshot())
        assert verdict.outcome is Outcome.COMPATIBLE_WITH_RECONFIGURED_SERIALIZER
        assert verdict.serializer.from_arrow(old.to_arrow([value])) == [value]


def test_bytes_are_carried_on_without_the_serializer() -> None:
    serializer = serializer_of(SketchSerializer())
    restored = restored_serializer(serializer.snapshot())
    array = serializer.to_arrow([Sketch(["a"]), None])
    assert restored.from_arrow(array) == [b"a", None]
    assert restored.to_arrow([b"a", None]).equals(array)
    assert restored.snapshot() == serializer.snapshot()


def test_an_id_of_the_user_is_none_of_ours() -> None:
    class Record(Plain):
        class_id = "record"

    assert serializer_of(Record()).resolve_compatibility(serializer_of(tuple[int, int]).snapshot()).outcome is (
        Outcome.INCOMPATIBLE
    )


@pytest.mark.parametrize(("class_id", "version"), [("", 1), (None, 1), ("a", "1"), ("a", True)])
def test_it_needs_an_id_and_a_version(class_id: Any, version: Any) -> None:
    custom = Plain()
    custom.class_id, custom.version = class_id, version
    with pytest.raises(InvalidConfigurationError, match="class_id"):
        serializer_of(custom)


def test_an_adapter_can_be_sent_to_an_executor() -> None:
    serializer = pickle.loads(pickle.dumps(serializer_of(SketchSerializer(4))))
    assert serializer.snapshot().version == 4
