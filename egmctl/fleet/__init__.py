"""Runs a command on many nodes at once through ClusterShell, judges each node's answer, and groups equal nodes.

Only ``nodes`` and ``run`` import ClusterShell (extra ``fleet``) themselves.
"""
