"""Tests of state backends."""
