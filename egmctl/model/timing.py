"""Where the time of a run goes: seconds by the host's clock, by what they were spent on."""

from __future__ import annotations

from dataclasses import dataclass

from egmctl.compat import StrEnum
from egmctl.model.record import Plain


class Phase(StrEnum):
    """What a process that measures does, in the order in which it does it in a step."""

    SET_UP = "set-up"
    """Makes streams and buffers, opens those of others, writes chains; and what is none of the rest."""
    WARM_UP = "warm-up"
    """Fills the sources, and moves everything a few times."""
    MEASURING = "measuring"
    """Queues what is timed, and waits for it."""
    VERIFYING = "verifying"
    """Poisons destinations before a sample, and looks at what it has left."""
    TEAR_DOWN = "tear-down"
    """Gives buffers back that no later step needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSeconds:
    """Seconds of each phase."""

    set_up_s: float = 0
    warm_up_s: float = 0
    measuring_s: float = 0
    verifying_s: float = 0
    tear_down_s: float = 0

    @property
    def sum_s(self) -> float:
        """Of all phases."""
        return self.set_up_s + self.warm_up_s + self.measuring_s + self.verifying_s + self.tear_down_s

    def plus(self, other: PhaseSeconds) -> PhaseSeconds:
        """Return both together."""
        return PhaseSeconds(
            set_up_s=self.set_up_s + other.set_up_s,
            warm_up_s=self.warm_up_s + other.warm_up_s,
            measuring_s=self.measuring_s + other.measuring_s,
            verifying_s=self.verifying_s + other.verifying_s,
            tear_down_s=self.tear_down_s + other.tear_down_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseSeconds(PhaseSeconds):
    """Of all steps of one case, proofs and repeats included."""

    case: Plain
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeconds(PhaseSeconds):
    """Of a run: what its phases, starting and waiting take together is ``RunReport.wall_s``.

    Of several processes it is the first one's time: all do the same steps together. ``tear_down_s`` has the end of the
    processes too.
    """

    starting_s: float
    """From when the run began, or a process failed, until processes had CUDA, contexts and kernels. What the first one
    did while the facts were read is not in it."""
    waiting_s: float
    """The rest: messages between the processes, the journal, the kernel's log, and steps of processes that died."""
    cases: tuple[CaseSeconds, ...]
    """In the order in which they ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLoad:
    """How busy the CPUs of the host were while a run measured."""

    cpus: int
    """That are online."""
    load_average: float
    """Over the last minute, at the end."""
    wall_s: float
    others_cpu_s: float
    """CPU time of all processes but the run's own."""
