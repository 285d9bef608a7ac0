"""Reads a node into a :class:`egmctl.model.machine.Machine`. Nothing here judges what it reads."""
