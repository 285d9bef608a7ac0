"""The values that a shell offers for options: machines, suites, cases, checks, purposes and profiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

Complete = Callable[[str], list[str]]


def machines(incomplete: str) -> list[str]:
    """Return the names of shipped machines, and ``list``."""
    from egmctl.facts import replay

    return _beginning(incomplete, ("list", *replay.machine_names(), *replay.sick()))


def suites(incomplete: str) -> list[str]:
    """Return the names of suites, after a comma too."""
    from egmctl.bench.suites import SUITES

    return _after_comma(incomplete, SUITES)


def cases(incomplete: str) -> list[str]:
    """Return the names of the bench's cases."""
    from egmctl.bench.suites import CASES

    return _beginning(incomplete, (case.name for case in CASES))


def checks(incomplete: str) -> list[str]:
    """Return the ids of doctor's checks."""
    from egmctl.doctor.runner import CHECKS

    return _beginning(incomplete, (check.id for check in CHECKS))


def purposes(incomplete: str) -> list[str]:
    """Return the words of ``--for``, after a comma too."""
    from egmctl.model.finding import Guard

    return _after_comma(incomplete, (guard.value for guard in Guard))


def profiles(incomplete: str) -> list[str]:
    """Return the names of profiles: the user's, the site's and the shipped ones."""
    from egmctl.verdict.profiles import all_profiles

    # A broken profile is no reason to write into the user's prompt.
    return _beginning(incomplete, sorted(profile.name for profile, _ in all_profiles(lambda _: None)))


VALUES: Mapping[str, Complete] = {
    "suites": suites,
    "cases": cases,
    "check": checks,
    "skip": checks,
    "explain": checks,
    "purposes": purposes,
    "profile": profiles,
}
"""What completes the value of an option, by the name of its field."""


def _beginning(incomplete: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]


def _after_comma(incomplete: str, words: Iterable[str]) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{word}" for word in _beginning(last, words)]
