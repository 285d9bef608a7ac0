"""Prometheus' text format, for node_exporter's textfile collector.

https://prometheus.io/docs/instrumenting/exposition_formats/, names and units as in
https://prometheus.io/docs/practices/naming/. There are no times: the collector has the file's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import Finding, PlaceKind, Status
from egmctl.units import printable

Sample = tuple[Mapping[str, object], float]
"""Labels and value."""


STATES = {Status.PASS: 0, Status.NOTE: 0, Status.WARN: 1, Status.FAIL: 2, Status.UNKNOWN: 3}
"""Nagios' numbers; a note is no fault. A skipped check has no sample."""


def doctor_prom(diagnosis: Diagnosis) -> str:
    """Return the metrics of a diagnosis; which series there are does not depend on the state of any GPU."""
    findings = [finding for finding in diagnosis.findings if finding.status in STATES]
    checks = dict.fromkeys(finding.check for finding in findings)
    counts = [({"status": status}, number) for status, number in diagnosis.counts.items()]
    meaning = "0 pass, 1 warn, 2 fail, 3 unknown."
    return "".join(
        (
            gauge(
                "egmctl_doctor_check",
                f"What a check of egmctl doctor says of the node: {meaning}",
                [({"check": check}, _worst(one for one in findings if one.check == check)) for check in checks],
            ),
            gauge(
                "egmctl_doctor_gpu_check",
                f"What a check says of one GPU: what it says of the whole node, unless it names GPUs: {meaning}",
                _by_gpu(diagnosis, findings),
            ),
            gauge("egmctl_doctor_findings", "Number of checks of egmctl doctor by what they say.", counts),
        )
    )


def _by_gpu(diagnosis: Diagnosis, findings: list[Finding]) -> Iterator[Sample]:
    for check in dict.fromkeys(finding.check for finding in findings):
        those = [finding for finding in findings if finding.check == check]
        for gpu in diagnosis.machine.gpus or ():
            about = [one for one in those if _is_about(one, gpu.bus_id)]
            # A check names what it has something against: of the others it says nothing.
            value = _worst(about) if about else STATES[Status.PASS]
            yield {"check": check, "gpu": f"GPU{gpu.index}", "bus_id": gpu.bus_id}, value


def _is_about(finding: Finding, bus_id: str) -> bool:
    match finding.place.kind:
        case PlaceKind.GPU:
            return bus_id in finding.place.ids
        case PlaceKind.PAIR:
            return any(bus_id in pair.split(">") for pair in finding.place.ids)
        case PlaceKind.NODE:
            return True
        case _:
            return False


def _worst(findings: Iterable[Finding]) -> int:
    return max(STATES[finding.status] for finding in findings)


def gauge(name: str, help_text: str, samples: Iterable[Sample]) -> str:
    """Return a metric with its samples; nothing of no samples.

    Parameters
    ----------
    name
        With its unit, a base unit, at its end: ``_seconds``, ``_bytes_per_second``.
    """
    lines = [f"{name}{_labels(labels)} {_number(value)}\n" for labels, value in samples]
    if not lines:
        return ""
    return f"# HELP {name} {_help(help_text)}\n# TYPE {name} gauge\n{''.join(lines)}"


def _labels(labels: Mapping[str, object]) -> str:
    shown = (f'{name}="{_value(str(value))}"' for name, value in labels.items())
    return f"{{{','.join(shown)}}}" if labels else ""


def _value(text: str) -> str:
    return printable(text).replace("\\", "\\\\").replace('"', '\\"')


def _help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    return f"{value:.12g}"
