"""Prometheus' text format, for node_exporter's textfile collector.

https://prometheus.io/docs/instrumenting/exposition_formats/, names and units as in
https://prometheus.io/docs/practices/naming/. There are no times: the collector has the file's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from egmctl.units import printable

Sample = tuple[Mapping[str, object], float]
"""Labels and value."""


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
