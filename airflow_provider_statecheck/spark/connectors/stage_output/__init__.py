"""Output of another stage."""
