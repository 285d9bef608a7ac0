"""The launcher of all child processes: fact readers, bench workers, IPC ranks and probes.

The command itself never loads a driver library. Code that calls one runs in a child process, whose crash or hang does
not affect the command, its results or the terminal::

    result = launch.run("egmctl.facts.nvml:read", {"gpus": [0]}, timeout_s=30)

    with launch.Child("egmctl.bench.processes.worker:run", {}) as worker:
        worker.channel.send({"case": "..."})
        message, fds = worker.receive(timeout_s=60)
"""

from egmctl.launch.channel import Channel, ChannelClosed, Message, close_all
from egmctl.launch.endings import Endings
from egmctl.launch.process import Child, run, wait_for_any

__all__ = ["Channel", "ChannelClosed", "Child", "Endings", "Message", "close_all", "run", "wait_for_any"]
