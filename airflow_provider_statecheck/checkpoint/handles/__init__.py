"""Names for state on storage: pointers in rows, and a store of them that is fenced by the operator's epoch."""
