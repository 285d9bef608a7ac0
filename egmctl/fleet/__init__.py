"""Runs a command on many nodes at once, judges each node's answer, and groups equal nodes.

Only ``nodes`` imports ClusterShell (extra ``fleet``) itself.
"""
