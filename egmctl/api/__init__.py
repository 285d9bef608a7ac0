"""The library behind the commands: each name is public as ``egmctl.NAME`` (docs/library.md).

The commands parse, call this, and show what it returns. Parameters are the options of the same name, in their language.
"""
