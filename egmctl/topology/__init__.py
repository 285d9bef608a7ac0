"""What a node's facts mean for topology: link classes, EGM routes, platform. Pure functions of a ``Machine``."""
