"""Flink's interfaces for programs that checkpoint several operators of their own: reached through ``StatecheckHook`` only."""
