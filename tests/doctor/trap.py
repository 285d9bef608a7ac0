"""A process whose root directory is a trap: what is read there fails, and who prints why would run its code.

Python prints the lines of a traceback from the source files, at their paths, and takes a codec that it does not know
from the folder of its library. Who changes into this root directory first finds both here, and so does who is
careless enough to import something afterwards.
"""

from __future__ import annotations

import contextlib
import encodings
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.conftest import ROOT
from tests.doctor import confined
from tests.doctor.cgroups import mounted

_CODE = """
import os
_file = os.open("/said/it", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
os.write(_file, f"{__name__} ran as {os.getuid()}; ".encode())
os.close(_file)
"""
_IMPORTED_BY_PRINTERS = ("traceback", "linecache", "tokenize", "textwrap", "contextlib", "_colorize")


class Trap(NamedTuple):
    """A process in its trap."""

    pid: int
    root: Path

    def said(self) -> str:
        """Return what the code in it has to say; nothing where nobody ran it."""
        place = self.root / "said/it"
        return place.read_text() if place.exists() else ""


@contextlib.contextmanager
def trap(uid: int, build: Callable[[Path], None] | None = None) -> Iterator[Trap]:
    """Run a process of a user in a mount namespace and a root directory of its own, in which its code waits.

    Parameters
    ----------
    build
        Makes ``/dev`` of the root directory that it is given; without it ``/dev`` is a loop of links.
    """
    with (
        tempfile.TemporaryDirectory(prefix="egmctl-trap-") as folder,
        mounted("tmpfs", "dev,mode=755", Path(folder, "root")) as root,
    ):
        Path(folder).chmod(0o755)
        _lay(root)
        (build or _loop)(root)
        with process_in(root, uid) as pid:
            yield Trap(pid, root)


@contextlib.contextmanager
def process_in(root: Path, uid: int, *, capable: bool = True) -> Iterator[int]:
    """Run a process in a mount namespace of its own with this root directory; return its number.

    Parameters
    ----------
    capable
        As uid 0, whether it keeps its capabilities.
    """
    started, ready = os.pipe()
    if (child := os.fork()) == 0:
        try:
            confined.enter_mount_namespace()
            os.chroot(root)
            os.chdir("/")
            if capable and not uid:
                os.setgroups([])
            else:
                confined.become(uid)
            os.write(ready, b".")
            signal.pause()
        finally:
            os._exit(0)
    try:
        os.close(ready)
        assert os.read(started, 1) == b".", "the process is not in its place"
        yield child
    finally:
        os.close(started)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _loop(root: Path) -> None:
    (root / "dev").symlink_to("/devices")
    (root / "devices").symlink_to("/dev")


def _lay(root: Path) -> None:
    (root / "said").mkdir()
    (root / "said").chmod(0o777)
    library = Path(os.__file__).parent
    for place in (
        Path(encodings.__file__).with_name("evil.py"),
        *(library / f"{name}.py" for name in _IMPORTED_BY_PRINTERS),
    ):
        _write(root, place, _CODE)
    sources = [*ROOT.glob("egmctl/*.py"), *ROOT.glob("egmctl/facts/*.py"), *ROOT.glob("egmctl/launch/*.py")]
    for place in sources:
        _write(root, place, "# coding: evil\n" + "\n" * 400)


def _write(root: Path, place: Path, content: str) -> None:
    copy = root / place.relative_to("/")
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(content)
