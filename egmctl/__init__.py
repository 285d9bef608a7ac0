"""Diagnostics and benchmarks for nodes with NVIDIA GPUs, above all for Extended GPU Memory (EGM)."""

__version__ = "0.1.0"
