"""Findings and facts against each other: what is said of a thing here and what there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from egmctl.model.comparison import AttributeDifference, Outcome
from egmctl.nodesets import fold
from egmctl.units import format_kernel_list

ABSENT = "not there"
PRESENT = "present"
"""The fact that a thing is there. Where it is not, nothing else is said of it."""
THERE = "there"
"""What is said of a record. Where it is said on one side only, nothing else is said of what the record holds."""


class Subject(NamedTuple):
    """What something is said of."""

    kind: str
    """``GPU``, ``NIC``, ...; empty for the node as a whole."""
    name: str
    """The same for the same thing in every file: a bus id, a number."""
    what: str
    """The check, or the fact's name."""


@dataclass(frozen=True, slots=True)
class Statement:
    """What one file says of a subject."""

    text: str
    label: str
    """How people call the subject's thing: ``GPU3``."""


Statements = Mapping[Subject, Statement]
Judge = Callable[[Subject, str, str], Outcome | None]
"""Says what it means that a subject's words are the second ones in place of the first; ``None``: nothing."""


def against_first(nodes: Sequence[str], files: Sequence[Statements], judge: Judge) -> tuple[AttributeDifference, ...]:
    """Return how the second of two files differs from the first."""
    first, second = files
    return _joined(_differences([nodes[1]], [second], first, judge))


def against_usual(nodes: Sequence[str], files: Sequence[Statements], judge: Judge) -> tuple[AttributeDifference, ...]:
    """Return how each of several files differs from what most of them say."""
    subjects = dict.fromkeys(subject for one in files for subject in one)
    usual: dict[Subject, Statement] = {}
    for subject in sorted(subjects):
        said = Counter(one[subject].text if subject in one else ABSENT for one in files)
        text = min(said, key=lambda words: (-said[words], words))
        label = next(one[subject].label for one in files if subject in one)
        if text != ABSENT:
            usual[subject] = Statement(text, label)
    return _joined(_differences(nodes, files, usual, judge))


def compared(files: Sequence[Statements]) -> int:
    """Return how many subjects two files or more say something of."""
    return sum(times > 1 for times in Counter(subject for one in files for subject in one).values())


class _Difference(NamedTuple):
    node: str
    kind: str
    label: str
    what: str
    outcome: Outcome
    reference: str
    value: str


def _differences(
    nodes: Sequence[str], files: Sequence[Statements], reference: Statements, judge: Judge
) -> Iterable[_Difference]:
    usual = _things(reference)
    for node, file in zip(nodes, files, strict=True):
        mine = _things(file)
        for subject in dict.fromkeys((*reference, *file)):
            if subject.what != PRESENT and not (subject[:2] in usual and subject[:2] in mine):
                continue
            words = _text(reference, subject), _text(file, subject)
            if words[0] == words[1] or _in_one_sided_record(subject, reference, file):
                continue
            outcome = judge(subject, *words)
            if outcome is None:
                continue
            label = (file.get(subject) or reference[subject]).label
            yield _Difference(node, subject.kind, label, subject.what, outcome, *words)


def _text(file: Statements, subject: Subject) -> str:
    return file[subject].text if subject in file else ABSENT


def _in_one_sided_record(subject: Subject, reference: Statements, file: Statements) -> bool:
    """Say whether a fact is of a record that only one side has."""
    words = subject.what.split(" ")
    records = (subject._replace(what=" ".join(words[:count])) for count in range(1, len(words)))
    return any((_text(reference, one) == THERE) is not (_text(file, one) == THERE) for one in records)


def _things(file: Statements) -> set[tuple[str, ...]]:
    return {subject[:2] for subject in file}


def _joined(differences: Iterable[_Difference]) -> tuple[AttributeDifference, ...]:
    """Join what nodes, and things of one kind, have in common; the gravest first."""
    by_nodes: dict[_Difference, list[str]] = {}
    for one in differences:
        by_nodes.setdefault(one._replace(node=""), []).append(one.node)
    by_things: dict[tuple[_Difference, tuple[str, ...]], list[str]] = {}
    for one, nodes in by_nodes.items():
        by_things.setdefault((one._replace(label=""), tuple(nodes)), []).append(one.label)
    found = [
        AttributeDifference(
            nodes=nodes,
            folded=fold(nodes),
            about=_folded(labels),
            what=one.what,
            outcome=one.outcome,
            reference=one.reference,
            value=one.value,
        )
        for (one, nodes), labels in by_things.items()
    ]
    gravity = list(Outcome)
    return tuple(sorted(found, key=lambda one: (gravity.index(one.outcome), one.nodes)))


def _folded(labels: Iterable[str]) -> str:
    """Return labels in short: ``GPU0-3``, ``NUMA 0,2``; others one after the other."""
    known = list(dict.fromkeys(labels))
    stems = {label.rstrip("0123456789") for label in known}
    numbers = [label[len(label.rstrip("0123456789")) :] for label in known]
    if len(stems) == 1 and len(known) > 1 and all(number and len(number) < 6 for number in numbers):
        return f"{stems.pop()}{format_kernel_list({int(number) for number in numbers})}"
    return ", ".join(known)
