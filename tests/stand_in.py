"""Stands in for ``egmctl`` where another program starts it: asks tests/command_server.py for a fork, ends as that does.

``python -I -S tests/stand_in.py ADDRESS usual|little WORDS...`` starts in a tenth of the time of a real one. The fork
has this process' environment, folder, CPUs and standard streams, and gets the signals that this process gets.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    address, size, *arguments = sys.argv[1:]
    request = {
        "arguments": arguments,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "little": size == "little",
        "cpus": list(os.sched_getaffinity(0)),
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(f"\0{address}")
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda number, _: server.send(json.dumps(number).encode()))
        socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
        code = json.loads(server.recv(64))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
