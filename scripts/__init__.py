"""Programs of this repository, for people and for the Makefile."""
