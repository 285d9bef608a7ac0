"""What a test has a child of the launcher do before it is the child: it must run in the child, by name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def join_cgroup(arguments: dict[str, Any]) -> None:
    """Move the calling process into the cgroup ``directory``."""
    Path(arguments["directory"], "cgroup.procs").write_text(str(os.getpid()))
