"""The ``egmctl`` command, and ``python -m egmctl``, which is the same program.

Loading the command takes some tenths of a second. Until it is loaded it has done nothing, so a Ctrl-C ends it at once,
without a traceback.
"""

import os
import signal
from typing import NoReturn

INTERRUPTED = 130
"""As ``egmctl.errors.ExitCode`` has it, which is not loaded yet."""


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
