"""Asks many nodes at once: what to run there, the running through ClusterShell, and what the answers have in common.

Only ``nodes`` and ``run`` import ClusterShell (extra ``fleet``); the rest is pure functions of answers.
"""
