"""The decorator of overriding methods, for clusters whose Python lacks ``typing_extensions``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import override as override
else:

    def override(method: Any) -> Any:
        """Mark a method as overriding one of a base class, as ``typing.override`` of Python 3.12 does."""
        return method
