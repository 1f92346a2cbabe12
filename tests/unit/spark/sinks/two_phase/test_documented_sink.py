"""The sink that the documentation shows as an example fulfils the contract, with the test that the documentation shows."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.soak

PAGE = Path(__file__).parents[5] / "docs" / "sink-two-phase.md"

# A module, so that the sink can be pickled for tasks.
_page = ModuleType("documented_sink")
sys.modules[_page.__name__] = _page
exec("\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)), _page.__dict__)  # of this repository
TestEventStore: type[Any] = _page.__dict__["TestEventStore"]
