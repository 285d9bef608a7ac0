"""The library behind the commands: each name is public as ``egmctl.NAME`` (docs/library.md).

The commands parse arguments, call this package and show its results. Parameters have the names and the syntax of the
commands' options.
"""
