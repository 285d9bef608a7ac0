"""Events that two processes share: one records, the other one's host or stream waits.

Only events without timing can be shared (CUDA driver API, cuEventCreate). What waits for an event that was never
recorded, or whose recording has been reached, does not wait: the processes have to tell each other by other means that
there is a new recording.
"""

from __future__ import annotations

import ctypes

from egmctl.driver.cuda import bindings, call
from egmctl.gpu.context import Context
from egmctl.gpu.release import ReleaseStack
from egmctl.gpu.timing import Stream

HANDLE_BYTES = 64
"""Of CUipcEventHandle (cuda.h)."""


class SharedEvent:
    """An event of this process' GPU that other processes can open.

    Attributes
    ----------
    handle
        What they need: bytes to send.
    """

    def __init__(self, context: Context) -> None:
        cuda = bindings()
        context.make_current()
        self._context = context
        flags = cuda.CUevent_flags
        with ReleaseStack() as undo:
            self._event = call("cuEventCreate", flags.CU_EVENT_INTERPROCESS | flags.CU_EVENT_DISABLE_TIMING)
            undo.callback(call, "cuEventDestroy", self._event)
            # The bindings show no fields of this structure: its bytes are taken as they lie.
            self.handle = ctypes.string_at(call("cuIpcGetEventHandle", self._event).getPtr(), HANDLE_BYTES)
            self._undo = undo.pop_all()

    def record(self, stream: Stream) -> None:
        """Have the event remember when a stream of its GPU comes to this place."""
        self._context.make_current()
        call("cuEventRecord", self._event, stream.handle)

    def close(self) -> None:
        """Destroy the event; those who opened it have closed it: what they did with it then would be undefined."""
        self._context.make_current()
        self._undo.close()


class ImportedEvent:
    """Another process' event.

    Parameters
    ----------
    context
        The GPU whose streams wait for it here.
    handle
        The owner's.
    """

    def __init__(self, context: Context, handle: bytes) -> None:
        if len(handle) != HANDLE_BYTES:
            raise ValueError(f"a handle of {len(handle)} bytes, not {HANDLE_BYTES}")
        structure = bindings().CUipcEventHandle()
        ctypes.memmove(structure.getPtr(), handle, HANDLE_BYTES)
        context.make_current()
        self._context = context
        self._event = call("cuIpcOpenEventHandle", structure)

    def hold(self, stream: Stream) -> None:
        """Let nothing queued on a stream from now on run before the latest recording has been reached."""
        self._context.make_current()
        call("cuStreamWaitEvent", stream.handle, self._event, 0)

    def synchronize(self) -> None:
        """Wait until the latest recording has been reached."""
        self._context.make_current()
        call("cuEventSynchronize", self._event)

    def close(self) -> None:
        """Let go of the event."""
        self._context.make_current()
        call("cuEventDestroy", self._event)
