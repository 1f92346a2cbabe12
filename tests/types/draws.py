"""Random values of types, and random nests of types."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from tests.types.cases import TypeCase

_LETTERS = "aZ09 ,;\"'\\\n\t%{}äß日😀\u00a0"


def _whole(bits: int) -> Callable[[random.Random], str]:
    # The smallest number of all is no literal with a sign.
    return lambda chance: str(chance.randrange(1 - 2 ** (bits - 1), 2 ** (bits - 1)))


def _text(chance: random.Random) -> str:
    text = "".join(chance.choices(_LETTERS, k=chance.randint(0, 12)))
    return f"decode(X'{text.encode().hex()}', 'UTF-8')"


def _moment(chance: random.Random) -> str:
    return f"timestamp_micros({chance.randrange(-62_100_000_000_000_000, 250_000_000_000_000_000)}L)"


_VALUES: dict[str, Callable[[random.Random], str]] = {
    "tinyint": _whole(8),
    "smallint": _whole(16),
    "int": _whole(32),
    "bigint": _whole(64),
    "float": lambda chance: f"{chance.uniform(-1e9, 1e9)!r}D",
    "double": lambda chance: f"{chance.uniform(-1e300, 1e300)!r}D",
    "decimal(10,2)": lambda chance: f"{chance.randrange(-(10**10), 10**10)}BD / 100",
    "decimal(38,0)": lambda chance: f"{chance.randrange(-(10**38) + 1, 10**38)}BD",
    "string": _text,
    "binary": lambda chance: f"X'{chance.randbytes(chance.randint(0, 9)).hex()}'",
    "date": lambda chance: f"date_add(date'1970-01-01', {chance.randrange(-719_162, 2_932_896)})",
    "timestamp": _moment,
    "timestamp_ntz": _moment,
}


def varied(chance: random.Random, case: TypeCase) -> TypeCase:
    """Return a type with further, random values."""
    make = _VALUES.get(case.name)
    values = () if make is None else tuple(f"cast({make(chance)} as {case.name})" for _ in range(4))
    return replace(case, values=(*case.values, *values))


def nested(chance: random.Random, case: TypeCase) -> TypeCase:
    """Return an array, a map or a struct of a type."""
    kind = chance.choice(sorted(_NESTS))
    values = tuple(_NESTS[kind](chance, case.values) for _ in range(3))
    return TypeCase(f"{kind} of {case.name}", values)


def _one_of(chance: random.Random, values: tuple[str, ...]) -> str:
    # Null has the type of the values.
    value = chance.choice(values)
    return value if chance.random() < 0.7 else f"if(false, {value}, null)"


_NESTS: dict[str, Callable[[random.Random, tuple[str, ...]], str]] = {
    "array": lambda chance, values: f"array({', '.join(_one_of(chance, values) for _ in range(chance.randint(1, 3)))})",
    "map": lambda chance, values: f"map('a', {_one_of(chance, values)}, 'ß', {_one_of(chance, values)})",
    "struct": lambda chance, values: f"named_struct('a b', {_one_of(chance, values)}, 'c', {_one_of(chance, values)})",
}
