"""The journal of a run: all results so far, on disk before the next step begins.

If the command is killed or the node panics, only the current step is lost. :mod:`egmctl.journal.events` writes the
journal, finds earlier ones and reads their first lines. :mod:`egmctl.journal.read` reads it as the report of a run that
ended there.
"""
