"""The program of a child process: run by its path, it loads the package it lies in and serves one target.

The parent's ``egmctl`` may come from a wheel, an editable install or a checkout that only the parent's import path
knows. So the child takes its own place as the answer, for this one import only: neither the current folder nor the
package's surroundings are on its import path afterwards, and no file there can pass for a library. Kept small,
because a script is compiled anew at each start.
"""

import os
import sys


def main() -> None:
    """Load the package, and serve the target named on the command line."""
    if sys.version_info < (3, 11):
        # This folder, which -P keeps away in later versions.
        del sys.path[0]
    usual, sys.path[:] = sys.path[:], [os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))]
    import egmctl  # noqa: F401

    sys.path[:] = usual
    from egmctl.launch.serve import serve

    target, *numbers = sys.argv[1:]
    serve(target, *map(int, numbers))


if __name__ == "__main__":
    main()
