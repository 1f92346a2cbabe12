"""Which Arrow types hold every value of another without a difference."""

from __future__ import annotations

from typing import Any

_FLOAT_BITS = {16: 11, 32: 24, 64: 53}
"""How many bits a whole number may have to be exact."""


def is_widening(old: Any, new: Any) -> bool:
    """Tell whether every value of an Arrow type is also one of another, and equal."""
    import pyarrow.types as pat

    if pat.is_integer(old):
        return _holds_integers(old, new)
    if pat.is_floating(old):
        return bool(pat.is_floating(new)) and new.bit_width > old.bit_width
    if pat.is_decimal(old):
        return _holds_decimals(new, old.precision - old.scale, old.scale)
    pairs = ((pat.is_string, pat.is_large_string), (pat.is_binary, pat.is_large_binary))
    return any(narrow(old) and wide(new) for narrow, wide in pairs)


def _holds_integers(old: Any, new: Any) -> bool:
    import pyarrow.types as pat

    signed = pat.is_signed_integer(old)
    bits = old.bit_width - signed
    if pat.is_integer(new):
        new_signed = pat.is_signed_integer(new)
        return (new_signed or not signed) and new.bit_width - new_signed > bits
    if pat.is_floating(new):
        return bool(_FLOAT_BITS[new.bit_width] >= bits)
    return _holds_decimals(new, len(str(2**bits)), 0)


def _holds_decimals(new: Any, whole_digits: int, scale: int) -> bool:
    import pyarrow.types as pat

    return bool(pat.is_decimal(new)) and new.scale >= scale and new.precision - new.scale >= whole_digits
