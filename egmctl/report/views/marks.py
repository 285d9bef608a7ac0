"""The marks of states: one table from what was decided to the tone, the sign and the word that show it."""

from __future__ import annotations

from collections.abc import Mapping

from egmctl.dataclass import dataclass
from egmctl.model.answer import State
from egmctl.model.measurement import MeasurementStatus, RunReport
from egmctl.model.verdict import Grade
from egmctl.report.document import Tone
from egmctl.report.views.findings import tone_of


@dataclass(frozen=True, slots=True)
class PathMark:
    """How a path or a class of paths is shown."""

    tone: Tone
    sign: str = ""
    """The sign beside its number."""
    word: str = ""
    """The word before its line."""
    few: str = ""
    """The word after the number of such paths: ``3 of 12 slow``."""


GRADES: Mapping[Grade, PathMark] = {
    Grade.FAIL: PathMark(Tone.BAD, "!", "FAIL", "slow"),
    Grade.WARN: PathMark(Tone.WARN, "~", "WARN", "a little slow"),
}
"""The marks of grades that are problems; the others have none."""
EXCUSED = PathMark(tone_of(State.INCOMPLETE), "?", "EXCUSED", "slow beside others")
"""The mark of a path that is slow, but only while others used its GPU or the host: that is not known to be a fault."""
UNMARKED = PathMark(Tone.PLAIN)
STATUSES = {MeasurementStatus.OK: Tone.PLAIN, MeasurementStatus.UNSTABLE: Tone.WARN, MeasurementStatus.WAIVED: Tone.DIM}
"""The tones of measurements by how they ended; all else is bad."""


def of_grade(grade: Grade, *, excused: bool = False) -> PathMark:
    """Return the mark of a grade; of a problem that is excused, its own."""
    mark = GRADES.get(grade, UNMARKED)
    return EXCUSED if excused and mark is not UNMARKED else mark


def excused(report: RunReport) -> frozenset[int]:
    """Return the indices of the measurements whose slowness is excused."""
    return report.answer.excused
