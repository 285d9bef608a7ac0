"""The drawing of many nodes: the trays of a rack as they stand, nodes with their GPUs, or a square for each node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import wrap
from xml.etree.ElementTree import Element

from egmctl.model.answer import WORDS, State, asked
from egmctl.model.fleet import Condition, FleetGpu, FleetReport, NodeResult, unready_words
from egmctl.report import document as doc
from egmctl.report.document import Tone
from egmctl.report.render.page import HtmlContent, element
from egmctl.report.views.findings import tone_of
from egmctl.units import grouped, natural, printable, several

TRAYS_SHOWN = 24
"""The number of nodes with a GPU that is not ready that text shows."""
NODES_WITH_GPUS = 72
"""The number of nodes up to which a page has a square for each GPU, and words beside each node."""
_NODES_IN_A_LINE = 50
_RACK_TRAYS, _RACK_TRAY_GPUS, _BELOW, _SWITCHES = 18, 4, 8, 9
"""A GB200 NVL72 has 18 compute trays of four GPUs, 8 of them below its 9 switch trays
(https://docs.nvidia.com/dgx/dgxgb200-user-guide/hardware.html)."""

_MARKS = {
    Condition.READY: ("\N{BLACK SQUARE}", Tone.PLAIN),
    Condition.WARNING: ("\N{BLACK UP-POINTING TRIANGLE}", Tone.WARN),
    Condition.FAULT: ("\N{MULTIPLICATION X}", Tone.BAD),
    Condition.OUTSIDE: ("\N{WHITE SQUARE}", Tone.BAD),
    Condition.MISSING: ("\N{MIDDLE DOT}", Tone.BAD),
    Condition.UNKNOWN: ("?", Tone.UNKNOWN),
}
"""The mark of a GPU and its tone, by its condition. Each condition has its own mark, so colour only adds."""
_ON_PAGE = {Condition.READY: "\N{CHECK MARK}"}
"""The marks of GPUs on a page that differ from those of text."""


def is_rack(answers: Sequence[NodeResult]) -> bool:
    """Return whether nodes are the trays of one whole rack, whose switch trays have a known place among them."""
    domains = {answer.domain for answer in answers if answer.domain}
    whole = len(answers) == _RACK_TRAYS and all(len(answer.gpus) == _RACK_TRAY_GPUS for answer in answers)
    return whole and len(domains) == 1


def trays(report: FleetReport, answers: Sequence[NodeResult]) -> Element:
    """Return the nodes in order, by NVLink domain if there are several, each with its GPUs; a whole rack as it stands.

    In a fleet of more than a few racks, a square is a node.
    """
    if is_rack(answers):
        drawn: list[HtmlContent] = [_rack(report, answers)]
    else:
        large = len(answers) > NODES_WITH_GPUS
        several_domains = len({answer.domain for answer in answers} - {""}) > 1
        domains = grouped((answer.domain if several_domains else "", answer) for answer in answers)
        drawn = []
        for domain, members in domains.items():
            drawn.append(element("h3", domain or "In no known NVLink domain") if several_domains else None)
            drawn += _lines_of_nodes(report, members) if large else [_list(report, members)]
    return element("div", drawn, _key_of_page(answers))


def tray_lines(answers: Iterable[NodeResult], width: int) -> Iterator[doc.Words]:
    """Yield a line for each node with a GPU that is not ready or warns, and one for all others."""
    answers = list(answers)
    bad = [(answer, words) for answer in answers if (words := _words(answer))]
    name = max((len(printable(answer.node)) for answer, _ in bad), default=0)
    size = max((len(answer.gpus) for answer, _ in bad), default=0)
    for answer, words in bad[:TRAYS_SHOWN]:
        squares = [doc.Span(*_MARKS[gpu.condition]) for gpu in answer.gpus]
        first, *rest = wrap(words, max(width - name - size - 4, 20))
        yield (f"{answer.node.ljust(name)}  ", *squares, " " * (size - len(squares) + 2), first)
        yield from (" " * (name + size + 4) + line for line in rest)
    if more := len(bad[TRAYS_SHOWN:]):
        yield f"and {several(more, 'more node')}: the page (-o fleet.html) shows all"
    if bad:
        ready = sum(len(answer.gpus) for answer in answers) - sum(len(answer.gpus) for answer, _ in bad)
        yield f"{several(len(answers) - len(bad), 'other node')}: {several(ready, 'GPU')} ready"
        conditions = {gpu.condition for answer, _ in bad for gpu in answer.gpus}
        key = ", ".join(f"{mark} {condition}" for condition, (mark, _) in _MARKS.items() if condition in conditions)
        yield doc.Span(f"GPUs: {key}", Tone.DIM)


def _words(answer: NodeResult) -> str:
    """Return what is wrong with the GPUs of a node; empty if all are ready."""
    wrong = ((label, unready_words(state, number)) for label, number, state in answer.by_state)
    return "; ".join(": ".join(filter(None, (label, words))) for label, words in wrong if words)


def _rack(report: FleetReport, answers: Sequence[NodeResult]) -> Element:
    """Return the trays from top to bottom, with the switch trays between them."""
    slots = [answer.slot for answer in answers if answer.slot is not None]
    placed = len({*slots}) == len(answers)
    bottom_up = sorted(answers, key=lambda answer: answer.slot or 0) if placed else list(answers)
    numbers = [element("span", f"GPU{number}") for number in range(_RACK_TRAY_GPUS)]
    switches = element(
        "div",
        [element("span") for _ in range(_SWITCHES)],
        element("p", f"{_SWITCHES} switch trays"),
        class_="switches",
    )
    order = "by slot" if placed else "by name: their slots are not known"
    return element(
        "div",
        element("p", f"Trays from top to bottom {order}.", class_="dim"),
        element(
            "div",
            element("p", numbers, class_="heads", aria_hidden="true"),
            _list(report, bottom_up[: _BELOW - 1 : -1]),
            switches,
            _list(report, bottom_up[_BELOW - 1 :: -1]),
            class_="rack",
        ),
    )


def _list(report: FleetReport, answers: Iterable[NodeResult]) -> Element:
    """Return a list of nodes, each a link to its group with a square for each GPU and what is wrong with it."""
    places, words = _places(report), WORDS[asked(report.asked.command)]
    items = []
    for answer in answers:
        wrong = _words(answer)
        link = element(
            "a",
            answer.node,
            element("span", map(_square, answer.gpus), aria_hidden="true"),
            href=f"#group-{places[answer.node]}" if answer.node in places else None,
            title=wrong or f"{several(len(answer.gpus), 'GPU')} ready",
        )
        worst = answer.condition
        said = wrong or words[answer.state]
        sign = "" if worst is Condition.READY else f"{_MARKS[worst][0]} "
        items.append(element("li", link, element("span", f"{sign}{said}", class_=f"said {worst}"), class_=worst))
    return element("ul", items, class_="trays")


def _square(gpu: FleetGpu) -> Element:
    """Return the square of a GPU: the links that are left, the share of its slowest path, or its mark."""
    condition = gpu.condition
    is_ready = condition is Condition.READY
    mark = _ON_PAGE.get(condition, _MARKS[condition][0])
    if gpu.links_active is not None and condition is Condition.FAULT:
        mark = f"{gpu.links_active}{mark}"
    elif gpu.share is not None:
        mark = f"{100 * gpu.share:.0f}{'' if is_ready else mark}"
    return element("i", mark, class_=None if is_ready else condition)


def _lines_of_nodes(report: FleetReport, answers: Sequence[NodeResult]) -> Iterator[Element]:
    """Yield lines of squares, one for each node; those that are not ready are links to their groups."""
    places = _places(report)
    for start in range(0, len(answers), _NODES_IN_A_LINE):
        line = answers[start : start + _NODES_IN_A_LINE]
        squares = []
        for answer in line:
            worst = answer.condition
            if worst is Condition.READY:
                squares.append(element("i"))
                continue
            words = f"{answer.node}: {_words(answer) or answer.sentence or answer.reason}"
            link = f"#group-{places[answer.node]}" if answer.node in places else None
            squares.append(element("a", _MARKS[worst][0], href=link, title=words, class_=worst))
        first, last = line[0].node, line[-1].node
        yield element("p", element("span", first if first == last else f"{first} to {last}"), squares, class_="nodes")


def _places(report: FleetReport) -> Mapping[str, int]:
    """Return the number of each node's group, which is in the id of its section."""
    return {node: place for place, group in enumerate(report.groups) for node in group.nodes}


def _key_of_page(answers: Sequence[NodeResult]) -> Element:
    """Return the key to the squares."""
    large = len(answers) > NODES_WITH_GPUS
    gpus = [gpu for answer in answers for gpu in answer.gpus]
    shown = {answer.condition for answer in answers} if large else {gpu.condition for gpu in gpus}
    marks = {condition: mark for condition, (mark, _) in _MARKS.items()} | ({} if large else _ON_PAGE)
    key = ", ".join(f"{mark} {condition}" for condition, mark in marks.items() if condition in shown)
    what = "node: the worst of its GPUs" if large else "GPU"
    numbers = []
    if not large and any(gpu.links_active is not None for gpu in gpus):
        numbers.append("A number with a cross is that of its active NVLinks.")
    if not large and any(gpu.share is not None for gpu in gpus):
        numbers.append("Other numbers: its slowest path that no other GPU explains, in % of what is expected.")
    return element("p", " ".join((f"Each square is a {what}: {key}.", *numbers)), class_="key")


def state_counts(report: FleetReport) -> Iterator[tuple[str, Tone, int]]:
    """Yield the word, the tone and the number of nodes for each state that nodes are in, the worst first."""
    words = WORDS[asked(report.asked.command)]
    for state, members in sorted(
        grouped((answer.state, answer) for answer in report.answers).items(),
        key=lambda item: list(State).index(item[0]),
    ):
        yield words[state], tone_of(state), len(members)


def ordered(answers: Iterable[NodeResult]) -> list[NodeResult]:
    """Return nodes in the order of their names."""
    return sorted(answers, key=lambda answer: natural(answer.node))
