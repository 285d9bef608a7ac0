"""The data that the packages hand to each other: frozen dataclasses, no I/O."""
