"""A declared stage as vertices: what runs in one Spark task without a shuffle in between, as Flink chains operators."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.stages.nodes import AggregateNode, KeyNode, MapNode, ProcessNode
from airflow_provider_statecheck.spark.stages.stage import Stage

FunctionNode = MapNode | ProcessNode | AggregateNode


@dataclass(frozen=True, slots=True)
class Vertex:
    """Functions that follow each other in one Spark task."""

    key: KeyNode | None
    """What brought the elements together; ``None`` in front of the first key."""
    functions: tuple[FunctionNode, ...]


def vertices_of(stage: Stage) -> tuple[Vertex, ...]:
    """
    Cut a stage where elements are shuffled.

    :raises InvalidConfigurationError: for a stage without a source, or whose parts do not fit.
    """
    if stage.input is None or not (stage.nodes or stage.output):
        raise InvalidConfigurationError(
            "Expected a stage with a source and a function or a sink, found a part of it; complete the declaration."
        )
    vertices = [Vertex(None, ())]
    for node in stage.nodes:
        if isinstance(node, KeyNode):
            vertices.append(Vertex(node, ()))
        else:
            last = vertices[-1]
            vertices[-1] = Vertex(last.key, (*last.functions, node))
    _require_fitting(vertices)
    _require_outputs(stage)
    is_needless = not vertices[0].functions and len(vertices) > 1
    return tuple(vertices[1:] if is_needless else vertices)


def _require_fitting(vertices: list[Vertex]) -> None:
    for vertex in vertices:
        if vertex.key is not None and not vertex.functions:
            raise InvalidConfigurationError(
                f"Expected a function behind key_by{vertex.key.columns}, found none; add process, aggregate or map."
            )
        for position, node in enumerate(vertex.functions):
            if not isinstance(node, MapNode) and (vertex.key is None or position > 0):
                raise InvalidConfigurationError(
                    f"Expected key_by right before the function {node.uid!r} with keyed state, found none there."
                )


def _require_outputs(stage: Stage) -> None:
    for position, node in enumerate(stage.nodes):
        is_read = position + 1 < len(stage.nodes) or stage.output is not None
        if isinstance(node, ProcessNode) and node.output is None and is_read:
            raise InvalidConfigurationError(
                f"Expected the columns of what {node.uid!r} gives, because something reads it, found none; give output=, "
                f"such as output='account string, balance double'."
            )
