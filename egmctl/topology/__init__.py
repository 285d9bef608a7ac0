"""Topology derived from a node's facts: link classes, EGM routes and the platform. Pure functions of a ``Machine``."""
