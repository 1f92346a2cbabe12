"""User functions of stateful stages, and their contexts."""
