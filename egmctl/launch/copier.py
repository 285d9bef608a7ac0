"""Pass on what a program writes to standard error, and keep its beginning and its end. A standalone script, no module.

::

    python -I -S copier.py FOLDER BYTES < STANDARD_ERROR_OF_THE_PROGRAM

It writes each byte at once to its own standard error, and the first and the last ``BYTES`` to files ``0``, ``1``, ...
of the folder. It is a process of its own, so that a child of the program that outlives it never writes into a closed
pipe. It ends when no process has the other end open any more; Ctrl-C in the terminal is for the program.
"""

import contextlib
import os
import signal
import sys


def main() -> int:
    """Copy standard input to standard error and to the files."""
    folder, limit = sys.argv[1], int(sys.argv[2])
    for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(stop, signal.SIG_IGN)
    number = size = 0
    file = _file(folder, number)
    # A terminal whose other side nobody has open fails with EIO.
    while part := _read():
        rest = memoryview(part)
        try:
            while rest:
                rest = rest[os.write(2, rest) :]
        except OSError:
            # Without a reader, the program gets SIGPIPE as it would without this process.
            return 1
        with contextlib.suppress(OSError):
            os.write(file, part)
            size += len(part)
            if size >= limit:
                os.close(file)
                number, size = number + 1, 0
                file = _file(folder, number)
                if number > 2:
                    os.unlink(os.path.join(folder, str(number - 2)))
    return 0


def _read() -> bytes:
    try:
        return os.read(0, 1 << 16)
    except OSError:
        return b""


def _file(folder: str, number: int) -> int:
    return os.open(os.path.join(folder, str(number)), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


if __name__ == "__main__":
    sys.exit(main())
