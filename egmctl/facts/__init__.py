"""Read a node into a :class:`egmctl.model.machine.Machine`, without judging the values."""
