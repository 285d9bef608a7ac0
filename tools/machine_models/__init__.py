"""Machines that nobody here has, put together from public documents: the sources of ``profiles/machines/``."""
