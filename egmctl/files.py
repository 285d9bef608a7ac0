"""Writes files whole: a reader, or a crash in the middle, never sees a part of one."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from egmctl.errors import EgmctlError
from egmctl.units import printable


def write_whole(path: Path, content: bytes) -> None:
    """Put a file in its place, over an earlier one, whose permissions it keeps; a link's target is replaced.

    Raises
    ------
    EgmctlError
        If that fails; an earlier file is as it was then.
    """
    target = path.resolve()
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        try:
            with temporary.open("xb") as file:
                if target.exists():
                    os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise EgmctlError(f"cannot write {printable(str(path))}: {error.strerror}") from error
