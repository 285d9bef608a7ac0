"""Remedies: what a person may do about a finding, what it needs, and where it works. The tool itself changes nothing.

A command that shows more (``look``) is apart from the one that mends (``run``): nobody pastes one for the other.
The functions make remedies that several checks and explanations give.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.model.record import BusId, Plain


class Need(StrEnum):
    """What a remedy needs before it may be carried out, or brings with it."""

    ROOT = "root"
    IDLE_GPUS = "idle-gpus"
    """No process uses the GPUs of ``Remedy.idle``."""
    GPU_RESET = "gpu-reset"
    """The GPUs of ``Remedy.idle`` are reset: no process uses them, nor has one of them as a peer."""
    NO_JOBS = "no-jobs"
    """No job uses a GPU of the node."""
    NO_DOMAIN_JOBS = "no-domain-jobs"
    """No job shares memory across the node's NVLink domain."""
    DRIVER_RELOAD = "driver-reload"
    """The driver's kernel modules are unloaded and loaded again, which no process that uses a GPU survives."""
    REBOOT = "reboot"


class Site(StrEnum):
    """The places in which a process runs."""

    HOST = "host"
    JOB = "job"
    """A job of Slurm or LSF, not in a container."""
    CONTAINER = "container"
    POD = "pod"
    """A container of Kubernetes."""


ANYWHERE = tuple(Site)
ON_HOST = (Site.HOST, Site.JOB)
"""Where the services, kernel modules, device nodes and firmware of the host can be changed."""
IN_CONTAINER = (Site.CONTAINER, Site.POD)

ON_THE_HOST = "On the host: "
"""Begins the text of a remedy that is for the host, where it is shown for a text or in a container."""

GPUS = "{gpus}"
"""The part of a command that stands for the bus ids of the finding's GPUs, for ``nvidia-smi -i``; for a reset, of all
that must be reset together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """An action for a person."""

    text: str
    """One sentence or two. The first one says what to do, so a full stop and a space are in it only at its end."""
    on_host: str = ""
    """The text without :data:`ON_THE_HOST`, if it begins so; else empty."""
    look: str | None = None
    """A command that shows more and changes nothing."""
    run: str | None = None
    """The command that mends it, to paste unchanged; ``None`` if no command is safe, or if it does not work here."""
    needs: tuple[Need, ...] = ()
    works_in: tuple[Site, ...] = ANYWHERE
    """Where it can be carried out. Elsewhere, its text says that it is for the host, and ``run`` is ``None``."""
    idle: Plain = ""
    """The GPUs that must be idle before, ``GPU0-3``; empty if none must."""
    touches: tuple[BusId, ...] = ()
    """The bus ids of GPUs that the remedy interrupts although the finding is not about them; ``idle`` names them."""

    @property
    def is_for_host(self) -> bool:
        """Whether the text says that the remedy is for the host."""
        return bool(self.on_host)

    @property
    def does(self) -> str:
        """What to do, without the words that it is for the host."""
        return self.on_host or self.text

    @property
    def first_sentence(self) -> str:
        """What to do in one sentence, without its full stop."""
        return self.does.partition(". ")[0].removesuffix(".")

    @property
    def words(self) -> str:
        """The text, and what it needs."""
        # A need that only a newer version knows keeps its word.
        needs = [_NEEDS.get(need, str(need)).format(idle=self.idle or "every GPU") for need in self.needs]
        return f"{self.text.removesuffix('.')} ({', '.join(needs)})." if needs else self.text


def for_host(remedy: Remedy, text: str) -> Remedy:
    """Return a remedy with another text, which says that it is for the host."""
    return replace(remedy, text=f"{ON_THE_HOST}{text}", on_host=text)


def common(remedies: Iterable[Remedy | None]) -> Remedy | None:
    """Return what remedies of the same finding on several nodes have in common: all, or no command; else ``None``.

    A command that names a device of one node must not be run on another one.
    """
    first, *others = dict.fromkeys(remedies)
    if not others or first is None:
        return first if not others else None
    known = replace(first, look=None, run=None, touches=())
    alike = (other is not None and replace(other, look=None, run=None, touches=()) == known for other in others)
    return known if all(alike) else None


def remedy_of(table: Mapping[str, Any]) -> Remedy:
    """Return the remedy in a table of a TOML file: its keys are those of :class:`Remedy`.

    Raises
    ------
    ValueError
        A word of ``needs`` or ``works_in`` is none of :class:`Need` or :class:`Site`.
    """
    return Remedy(
        text=" ".join(table["text"].split()),
        look=table.get("look"),
        run=table.get("run"),
        needs=tuple(map(Need, table.get("needs", ()))),
        works_in=tuple(map(Site, table.get("works_in", ANYWHERE))),
    )


_NEEDS = {
    Need.ROOT: "as root",
    Need.IDLE_GPUS: "{idle} idle first",
    Need.GPU_RESET: "resets {idle}, idle first",
    Need.NO_JOBS: "no job on {idle}",
    Need.NO_DOMAIN_JOBS: "no job that shares memory across the domain",
    Need.DRIVER_RELOAD: "reloads the driver, {idle} idle first",
    Need.REBOOT: "needs a reboot",
}


def todo(text: str, *, look: str | None = None, run: str | None = None) -> Remedy:
    """Return a remedy that does not need root and works where the process runs.

    Parameters
    ----------
    look, run
        The command that shows more, and the one that mends it. ``{gpus}`` in them stands for the finding's GPUs.
    """
    return Remedy(text=text, look=look, run=run)


def as_root(text: str, *needs: Need, look: str | None = None, run: str | None = None) -> Remedy:
    """Return a remedy for root on the host, not in a container.

    Parameters
    ----------
    needs
        What it needs besides root.
    look, run
        As of :func:`todo`.
    """
    return Remedy(text=text, look=look, run=run, needs=(Need.ROOT, *needs), works_in=ON_HOST)


def remove_option(option: str) -> Remedy:
    """Return the remedy that removes an option of the driver's kernel module."""
    text = f"Take {option} out of /etc/modprobe.d, rebuild the initramfs if it has the driver, and reload the driver."
    return as_root(text, Need.DRIVER_RELOAD, look="grep -rn nvidia /etc/modprobe.d")
