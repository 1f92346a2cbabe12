"""Services of ``docker/compose.yaml`` as local processes: ``python -m scripts.stack up | status | logs | down``."""
