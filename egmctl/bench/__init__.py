"""Measurements: which there are, which can run here, and running them in a worker process."""
