"""Load the package that contains this file, and serve one target. This is the script of every child process.

The parent's ``egmctl`` may come from a wheel, an editable install or a checkout that only the parent's import path
contains. So the child imports the package from the location of this file, and for this import only: afterwards neither
the current folder nor the folder of the package is on its import path, so no file there can shadow a library. The
script is short because Python compiles it at each start.
"""

import os
import sys


def main() -> None:
    """Load the package and serve the target that the command line names."""
    if sys.version_info < (3, 11):
        # Remove this folder; later versions do not add it, because of -P.
        del sys.path[0]
    usual, sys.path[:] = sys.path[:], [os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))]
    import egmctl  # noqa: F401

    sys.path[:] = usual
    from egmctl.launch.serve import serve_target

    target, *numbers = sys.argv[1:]
    serve_target(target, *map(int, numbers))


if __name__ == "__main__":
    main()
