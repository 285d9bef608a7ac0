"""The answer of topo: what is connected, and never better than what doctor knows of it.

Whether the connections could be read decides. What doctor's checks find to be wrong with them is in the sentence, and
becomes a problem only with ``--strict``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from egmctl.doctor.check import EVERYTHING
from egmctl.model.answer import WORDS, Answer, Cause, Clauses, CommandQuestion, Gap, GapKind, State
from egmctl.model.finding import TOLD, Finding, Guard, RootCause, Status, root_causes
from egmctl.model.machine import SECTION_VERSIONS, Machine
from egmctl.topology.topology import SECTIONS, Topology
from egmctl.units import several

CONNECTIONS = frozenset({Guard.EGM, Guard.P2P, Guard.FABRIC, Guard.RDMA})
"""The purposes that depend on how things are connected."""
WITH_PROBLEMS = "CONNECTED, WITH PROBLEMS"


def of_topo(topology: Topology) -> Answer:
    """Return what topo answers about a node."""
    if topology.missing is not None:
        gap = Gap(kind=GapKind.NOT_DETERMINED, reason=topology.missing.sentence.removesuffix("."))
        state = State.INCOMPLETE
        return Answer(state=state, word=WORDS[CommandQuestion.DOCTOR][state], sentence=gap.reason, gaps=(gap,))
    causes = tuple(
        Cause(finding=root.finding, status=Status.FAIL if topology.strict else root.finding.status)
        for root in _roots(topology)
    )
    wrong = [cause for cause in causes if cause.state is not State.GOOD]
    if not wrong:
        notes = tuple(cause.title for cause in causes)
        word = WORDS[CommandQuestion.DOCTOR][State.GOOD]
        return Answer(state=State.GOOD, word=word, sentence=topology.platform.line, causes=causes, notes=notes)
    more = f"and {several(len(wrong) - 1, 'more cause')}" if len(wrong) > 1 else ""
    return Answer(
        state=State.BAD if topology.strict else State.WARN,
        word=WORDS[CommandQuestion.DOCTOR][State.BAD] if topology.strict else WITH_PROBLEMS,
        sentence=Clauses.of(wrong[0].title, more),
        causes=causes,
        next_step=wrong[0].finding.remedy,
    )


def _roots(topology: Topology) -> Iterator[RootCause]:
    """Yield the root causes of doctor that concern the connections of the selected GPUs, the most severe first."""
    # Imported late: the checks are many, and most commands answer without them.
    from egmctl.doctor.runner import CHECKS, diagnose

    selected = frozenset(state.bus_id for state in topology.gpu_states)
    # A recording may have more than topo reads. Its answer is that of the live node all the same.
    others = {name: None for name in (*SECTION_VERSIONS, "peers") if name not in SECTIONS}
    machine: Machine = replace(topology.machine, **others)  # type: ignore[arg-type]
    for root in root_causes(diagnose(machine, EVERYTHING, CHECKS).findings):
        gpus = root.finding.place.gpus
        if (gpus is None or gpus & selected) and any(map(_concerns, (root.finding, *root.explains))):
            yield root


def _concerns(finding: Finding) -> bool:
    """Return whether a finding is about connections: what fails, is missing or is slow there, or what is turned off."""
    if finding.status is Status.FAIL:
        return True
    purposes = finding.guards if finding.status is Status.WARN else finding.blocks
    return finding.status in TOLD and not CONNECTIONS.isdisjoint(purposes)
