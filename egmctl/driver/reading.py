"""One record under collection in a child process, as plain JSON data.

The children that read NVML and CUDA hand JSON to their parent, which decodes it strictly. They collect it without
the model's classes, whose import would cost as much time as everything they read.
"""

from __future__ import annotations

from typing import Any

NOT_SUPPORTED = "not-supported"
NO_PERMISSION = "no-permission"
DRIVER_TOO_OLD = "driver-too-old"
MISSING_LIBRARY = "missing-library"
TIMED_OUT = "timed-out"
NOT_PRESENT = "not-present"
FAILED = "failed"
"""Words of :class:`egmctl.model.machine.Reason`."""


class Unavailable(Exception):
    """A value cannot be read.

    Parameters
    ----------
    reason
        The reason's word.
    detail
        The call and what it answered.
    name
        The library's own name for the error, e.g. ``NVML_ERROR_NOT_SUPPORTED``; ``None`` where it gave none.
    number
        What the call returned.
    """

    def __init__(self, reason: str, detail: str, name: str | None = None, number: int | None = None) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.name = name
        self.number = number

    def json(self) -> dict[str, str]:
        """Return the ``Unread`` record."""
        return {"reason": self.reason, "detail": self.detail}


class Reading:
    """Values by field name; each that is missing is null and has its reason.

    Parameters
    ----------
    **values
        What is known from the start.
    """

    def __init__(self, **values: Any) -> None:
        self.values: dict[str, Any] = values
        self.unread: dict[str, dict[str, str]] = {}

    def miss(self, names: str, why: Unavailable) -> None:
        """Make fields (named with spaces between) null for one reason."""
        for name in names.split():
            self.values[name] = None
            self.unread[name] = why.json()

    def json(self) -> dict[str, Any]:
        """Return the record."""
        return {**self.values, "unread": self.unread} if self.unread else self.values
