"""The journal of a run: what was found so far, on disk before the next step begins.

A command that is killed, or a node that panics, then costs the step that was under way. :mod:`egmctl.journal.write`
keeps it, :mod:`egmctl.journal.read` makes the report of it that a run which ended there would have given.
"""
