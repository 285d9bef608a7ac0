"""Benchmarks: the cases, the plan of the cases that can run here, and the processes that run them."""
