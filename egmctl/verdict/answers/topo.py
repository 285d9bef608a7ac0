"""The answer of topo: what is connected. It is not known if no matrix could be drawn."""

from __future__ import annotations

from egmctl.model.answer import WORDS, Answer, Asked, Gap, GapKind, State
from egmctl.topology.topology import Topology


def of_topo(topology: Topology) -> Answer:
    """Return what topo answers about a node."""
    gaps: tuple[Gap, ...] = ()
    if topology.missing is not None:
        gaps = (Gap(kind=GapKind.NOT_DETERMINED, reason=topology.missing.sentence.removesuffix(".")),)
    state = State.INCOMPLETE if gaps else State.GOOD
    sentence = gaps[0].reason if gaps else topology.platform.line
    return Answer(state=state, word=WORDS[Asked.DOCTOR][state], sentence=sentence, gaps=gaps)
