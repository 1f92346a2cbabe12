"""Triggers of deferred tasks."""
