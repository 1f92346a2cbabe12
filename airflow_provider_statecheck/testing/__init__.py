"""Test utilities: in-memory stores, fault injection and contract test suites."""
