"""Fingerprints of steps: digests of their code, plans and inputs."""
