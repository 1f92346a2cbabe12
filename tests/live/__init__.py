import pytest

pytest.register_assert_rewrite("tests.live.cases", "tests.live.runs", "tests.live.rest")
