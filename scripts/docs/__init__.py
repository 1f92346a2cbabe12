"""Configuration of Sphinx, and the generated parts of the documentation."""
