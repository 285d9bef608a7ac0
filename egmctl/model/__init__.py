"""The data that the rooms hand to each other: frozen dataclasses, no I/O."""
