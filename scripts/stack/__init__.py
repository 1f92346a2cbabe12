"""The services of ``docker/compose.yaml`` as plain processes: ``python -m scripts.stack up | status | logs | down``."""
