"""The ``egmctl`` command, and ``python -m egmctl``, which is the same program.

Importing the command takes some tenths of a second. Until then it has done nothing, so Ctrl-C ends the process at once,
without a traceback.
"""

import gc
import os
import signal
from typing import NoReturn

INTERRUPTED = 130
"""The value of ``egmctl.errors.ExitCode.INTERRUPTED``, which is not imported yet."""

OBJECTS_UNTIL_COLLECTED = 300_000
"""The number of new objects after which Python looks for circles of garbage; its default is 700. Records refer to
others in one direction only and are freed without it, and the plan of 72 GPUs has a million objects, which it looked
through again and again: a fifth of the CPU time of ``bench --list``. ``topo`` of 4 GPUs makes fewer and takes a tenth
less. Garbage takes at most some 30 MB more."""


def main() -> NoReturn:
    """Run the command with the arguments of this process and end the process."""
    gc.set_threshold(OBJECTS_UNTIL_COLLECTED)
    from egmctl.cli.app import main

    main()


def _end(_number: int, _frame: object) -> None:
    os._exit(INTERRUPTED)


if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end)

if __name__ == "__main__":
    main()
