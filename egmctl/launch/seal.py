"""What a child gives up before it looks at what others have made: to run any code that it has not loaded yet.

Python imports at odd moments. An exception that nobody caught is printed with the lines of the source files, which are
opened then; the first two lines of a file may name a codec, and a codec is a module. A warning opens files too. Who
can put a file where one of these is looked for has code run. Why this matters: docs/decisions/0007-another-root.md.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import warnings

EXIT_CODE = 70
"""Of a sealed child that ends by an exception which it could not tell its parent (sysexits.h, EX_SOFTWARE)."""


def seal() -> None:
    """Import nothing and print nothing from now on. It cannot be undone."""
    faulthandler.disable()
    warnings.simplefilter("ignore")
    sys.excepthook = _end
    sys.unraisablehook = _nothing
    for place in (sys.meta_path, sys.path, sys.path_hooks, sys.path_importer_cache):
        place.clear()


def _end(*_: object) -> None:
    os._exit(EXIT_CODE)


def _nothing(_: object) -> None:
    pass
