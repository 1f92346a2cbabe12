"""Test utilities for users and extensions: in-memory stores, fault injection and contract test suites."""
