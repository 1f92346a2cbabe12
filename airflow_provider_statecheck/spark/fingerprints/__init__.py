"""Whether a step would compute today what it computed before."""
