"""Proves what ``make dist`` built; see tools/prove_dist.py."""
