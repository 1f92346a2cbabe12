"""Spark driver of a stage: environment checks, session, worker thread and handover."""
