"""The meaning of a node's facts for topology: link classes, EGM routes, platform. Pure functions of a ``Machine``."""
