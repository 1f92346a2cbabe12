import pytest

pytest.register_assert_rewrite("tests.browser.airflow_ui", "tests.live.rest", "tests.packaging.environment")
