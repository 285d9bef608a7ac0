"""Tests the files that ``make dist`` built; see tools/prove_dist.py."""
