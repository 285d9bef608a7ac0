"""Models of machines, based on public documents: the sources of ``profiles/machines/``."""
