"""Steps that are computed in parts: inputs, plans and their execution."""
