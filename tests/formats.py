"""What each format states of a result's answer, and whether all of them, and the parts of a whole, state the same."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping
from typing import Any
from xml.etree import ElementTree

from egmctl.model.answer import TABLE, JUnit, State, worst
from egmctl.model.bringup import Bringup
from egmctl.model.evidence import EvidenceReport
from egmctl.model.explanation import Explanations
from egmctl.model.fleet import FleetReport
from egmctl.report.kinds import Format, kind_of, render
from egmctl.topology.topology import Topology

Fault = str | None
"""What a format states that the answer does not; ``None`` if they agree."""


def _text(result: Any, text: str) -> Fault:
    flat = " ".join(text.split())
    return None if f"{result.answer.word}:" in flat else f"no {result.answer.word!r}"


def _html(result: Any, page: str) -> Fault:
    answer = result.answer
    tone = TABLE[answer.state].tone if not isinstance(result, Explanations) else ""
    # A sign stands before the word, for who cannot tell colours apart.
    found = re.search(
        r'id="answer" class="answer (\w+)"[^>]*><h1[^>]*><span class="word[^"]*">(?:[^\w ] )?([^<]*)<', page
    )
    if found is None:
        return "no answer"
    looks = {"": "plain", "unknown": "plain", "bad": "fail", "good": "pass"}
    if found[2] != answer.word or looks.get(tone, tone) != found[1]:
        return f"{found[2]} ({found[1]})"
    return None


def _markdown(result: Any, text: str) -> Fault:
    return None if f"**{result.answer.word}**" in text else f"no {result.answer.word!r}"


def _json(result: Any, text: str) -> Fault:
    document = json.loads(text)
    stated = document["answer"]["state"], document["answer"]["word"], document["exit_code"]
    answer = result.answer
    if stated != (answer.state, answer.word, answer.exit_code):
        return str(stated)
    unknown = answer.state is State.INCOMPLETE
    return None if bool(document["errors"]) is unknown else f"errors: {document['errors']}"


def _csv(result: Any, text: str) -> Fault:
    stated = {(row["answer"], int(row["exit_code"])) for row in csv.DictReader(io.StringIO(text))}
    return None if stated <= {(result.answer.state.value, int(result.answer.exit_code))} else str(stated)


def _junit(result: Any, text: str) -> Fault:
    root = ElementTree.fromstring(text)  # noqa: S314
    first = next(root.iter("testcase"))
    ended = next((tag for tag in ("failure", "error") if first.find(tag) is not None), "passes")
    failures, errors = int(root.attrib["failures"]), int(root.attrib["errors"])
    if (first.attrib["name"], ended) != ("answer", result.answer.junit):
        return f"{first.attrib['name']} {ended}"
    if failures and result.answer.junit is not JUnit.FAILURE:
        return f"{failures} failures"
    return f"{errors} errors" if errors and result.answer.junit is JUnit.PASSES else None


def _prom(result: Any, text: str) -> Fault:
    states = re.findall(r'^egmctl_answer\{command="\w+",state="(\w+)"\} 1$', text, re.MULTILINE)
    codes = re.findall(r"^egmctl_exit_code\{[^}]*\} (\d+)$", text, re.MULTILINE)
    wanted = [result.answer.state.value], [str(int(result.answer.exit_code))]
    return None if (states, codes) == wanted else f"{states} {codes}"


def _nagios(result: Any, text: str) -> Fault:
    word = ("OK", "WARNING", "CRITICAL", "UNKNOWN")[result.answer.nagios]
    return None if text.startswith(f"EGMCTL {word} - {result.answer.word}: ") else text.partition("\n")[0]


READERS: Mapping[Format, Callable[[Any, str], Fault]] = {
    Format.TEXT: _text,
    Format.HTML: _html,
    Format.MARKDOWN: _markdown,
    Format.JSON: _json,
    Format.CSV: _csv,
    Format.JUNIT: _junit,
    Format.PROM: _prom,
    Format.NAGIOS: _nagios,
}
"""From each format to what it states of the answer. A picture has no answer."""


def contradictions(result: Any) -> list[str]:
    """Return a line for each format that states another answer than the result."""
    formats = [format for format in kind_of(result).formats if format in READERS]
    if isinstance(result, Topology):
        # A topology's page is a drawing with sentences; its data states the answer.
        formats = [Format.JSON, Format.CSV]
    faults = ((format, READERS[format](result, str(render(result, format)))) for format in formats)
    found = [f"{format}: {fault}" for format, fault in faults if fault is not None]
    return [*found, *_of_parts(result)]


def _of_parts(result: Any) -> list[str]:
    """Return a line for a whole that is better than one of its parts."""
    answer = result.answer
    states = [*(cause.state for cause in answer.causes), *(gap.kind.state for gap in answer.gaps)]
    if isinstance(result, Bringup | EvidenceReport):
        states.append(result.diagnosis.answer.state)
        if result.run:
            states.append(result.run.answer.state)
    if isinstance(result, FleetReport):
        states += [node.state for node in result.answers]
        states += [result.fabric.run.answer.state] if result.fabric and result.fabric.run else []
    if isinstance(result, Topology):
        # It answers what is connected: what doctor knows to be wrong is a warning there, with --strict a fault.
        states = [gap.kind.state for gap in answer.gaps]
    if isinstance(result, Explanations):
        states = [gap.kind.state for gap in answer.gaps]
    fine = worst([*states, answer.state]) is answer.state or type(result).__name__ == "Comparison"
    return [] if fine else [f"it is {answer.state}, and a part is {worst(states)}"]
