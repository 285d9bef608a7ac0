"""The ``egmctl`` command, and ``python -m egmctl``, which is the same program.

Importing the command takes some tenths of a second. Until then it has done nothing, so Ctrl-C ends the process at once,
without a traceback.
"""

import os
import signal
from typing import NoReturn

INTERRUPTED = 130
"""The value of ``egmctl.errors.ExitCode.INTERRUPTED``, which is not imported yet."""


def main() -> NoReturn:
    """Run the command with the arguments of this process and end the process."""
    from egmctl.cli.app import main

    main()


def _end(_number: int, _frame: object) -> None:
    os._exit(INTERRUPTED)


if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end)

if __name__ == "__main__":
    main()
