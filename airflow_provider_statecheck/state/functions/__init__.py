"""User functions of stateful stages, and the contexts that they are given."""
