"""Profiles, the expected performance of machines: read from TOML, and matched to a machine."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any, NoReturn

from egmctl.documents import short
from egmctl.errors import UsageError
from egmctl.files import profiles_dir, read_bounded, read_toml
from egmctl.model.codec import DecodeError, from_json, to_json
from egmctl.model.gpu import Gpu
from egmctl.model.machine import Machine
from egmctl.model.profile import (
    PROFILE_SCHEMA,
    Match,
    MatchPoint,
    Profile,
    Unit,
)
from egmctl.model.route import LinkClass
from egmctl.model.task import Point
from egmctl.topology.links import gpu_link
from egmctl.topology.platform import C2c, c2c, platform
from egmctl.units import counted, gpu_name, printable


def choose(machine: Machine, profiles: Sequence[Profile]) -> tuple[Profile | None, str]:
    """Return the first profile that matches a machine and the reason, or ``None`` and the reasons why none matches."""
    matches = [match_profile(machine, profile) for profile in profiles]
    for profile, match in zip(profiles, matches, strict=True):
        if match.fits:
            return profile, match.reason
    if not machine.gpus:
        return None, "there is no GPU"
    misses = "".join(f"; {match.profile} does not match: {match.reason}" for match in matches if match.points[0].fits)
    return None, f"no profile matches {counted(map(gpu_kind, machine.gpus))}{misses}"


def match_profile(machine: Machine, profile: Profile) -> Match:
    """Compare a machine with every property in the profile's signature."""
    signature, gpus = profile.match, machine.gpus or ()
    least, most = signature.least_gpus, signature.most_gpus
    points = [
        _point("GPU name", {gpu.name for gpu in gpus}, signature.gpu_names),
        _point("PCI device id", {gpu.pci.pci_id if gpu.pci else None for gpu in gpus}, signature.device_ids),
        _point(
            "GPUs",
            {str(len(gpus))},
            [str(number) for number in range(least, most + 1)],
            f"{least} to {most}" if least != most else "",
        ),
    ]
    if signature.nvlinks is not None:
        counts = {gpu.nvml.nvlink_count for gpu in gpus if gpu.nvml is not None} or {None}
        labels = {"unknown" if count is None else str(count) for count in counts}
        if not gpus:
            labels = set()
        points.append(_point("NVLinks per GPU", labels, (str(signature.nvlinks),)))
    if signature.link is not None and len(gpus) > 1:
        # A node whose links are down is slower but still of its kind.
        nvlinks = most_nvlinks(machine)
        labels = {f"NV{nvlinks}"} if nvlinks else {"(no NVLink is up)"}
        slower = [f"NV{number}" for number in range(1, (signature.nvlinks_between or 0) + 1)]
        points.append(_point("link", labels, [*slower, "(no NVLink is up)"], signature.link))
    states = {c2c(machine, gpu) for gpu in gpus}
    expected = (C2c.UP, C2c.DOWN) if signature.c2c else (C2c.ABSENT,)
    points.append(_point("NVLink-C2C", states - {C2c.UNKNOWN} or states, expected))
    if signature.nvlink_domain is not None:
        kinds = {True: "multi-node", False: "single-node"}
        is_multi_node = platform(machine).clique_id is not None
        points.append(_point("NVLink domain", {kinds[is_multi_node]}, (kinds[signature.nvlink_domain],)))
    return Match(profile=profile.name, points=tuple(points))


def _point(name: str, values: Collection[str | None], expected: Collection[str], expectation: str = "") -> MatchPoint:
    """Compare what was read from a machine with what a profile expects.

    Parameters
    ----------
    values
        The distinct values of its GPUs. ``None``, for a GPU whose value was not read, is ignored.
    expectation
        The expectation for people; by default all expected values.
    """
    known = sorted(value for value in values if value is not None)
    fits = bool(known) and set(known) <= set(expected)
    reason = f"{name} {', '.join(known) or ('unknown' if values else 'no GPU')}"
    if not fits:
        reason += f", not {expectation or ' or '.join(expected)}"
    return MatchPoint(what=name, fits=fits, reason=reason)


def most_nvlinks(machine: Machine) -> int:
    """Return the number of NVLinks of the best link between two GPUs, or 0 if none is up."""
    links = [gpu_link(machine, *pair) for pair in combinations(machine.gpus or (), 2)]
    return max((link.nvlinks or 0 for link in links if link.kind is LinkClass.NVLINK), default=0)


def gpu_kind(gpu: Gpu) -> str:
    """Return a GPU's name and PCI id for people."""
    return f"{gpu_name(gpu.name)} ({(gpu.pci and gpu.pci.pci_id) or 'PCI id unknown'})"


# --- files -----------------------------------------------------------------------------------------------------------

FILE_LIMIT = 256 << 10
"""The maximum size of a profile's file in bytes; the largest one that ships has 11 KiB."""
LINE_LIMIT = 4096
"""The maximum length of a line: TOML reads a key of many parts (``a.a.a``) in the square of their number."""
LARGEST = 1e9
"""The largest number of a reference: no path carries 1e9 GB/s, and no latency that is measured is a second."""
FASTEST_NS = 50
"""The least latency of a reference, in nanoseconds: a load that hits a GPU's L2 cache takes some 200 cycles, 100 ns at
2 GHz (docs/hardware-notes.md has 834 ns for the memory of another GPU)."""

SYSTEM_FOLDER = Path("/etc/egmctl/profiles")


def folders() -> tuple[Path, ...]:
    """Return the folders that are searched for profiles, in order: the user's, the system's, those that ship.

    The user's follows the XDG Base Directory Specification: ``$XDG_CONFIG_HOME/egmctl/profiles``, or
    ``~/.config/egmctl/profiles`` if the variable is unset or not an absolute path.
    """
    stated = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    user = stated if stated.is_absolute() else Path(os.path.expanduser("~/.config"))
    return user / "egmctl" / "profiles", SYSTEM_FOLDER, profiles_dir()


def all_profiles(on_broken: Callable[[UsageError], None] | None = None) -> tuple[tuple[Profile, Path], ...]:
    """Return every profile and its file in search order. If two have the same name, the first one counts.

    Parameters
    ----------
    on_broken
        A function that is called with the error of a broken profile, which is then skipped, so that measured results
        are not lost.

    Raises
    ------
    UsageError
        A profile is broken, and ``on_broken`` is ``None``.
    """
    profiles: list[tuple[Profile, Path]] = []
    for path in _files():
        if path.stem in [profile.name for profile, _ in profiles]:
            continue
        try:
            profiles.append((read_profile(path), path))
        except UsageError as error:
            if on_broken is None:
                raise
            on_broken(error)
    return tuple(profiles)


def load_profile(name_or_path: str) -> Profile:
    """Return one profile by name or from a file.

    Raises
    ------
    UsageError
        There is no such profile, or it is broken.
    """
    return read_profile(profile_file(name_or_path))


def profile_file(name_or_path: str) -> Path:
    """Return the file of a profile. A name with a path separator or ``.toml`` is returned as a path, unchecked.

    Raises
    ------
    UsageError
        No profile has that name.
    """
    if os.sep in name_or_path or name_or_path.endswith(".toml"):
        return Path(name_or_path)
    # If two have the same name, the first one counts.
    files = {path.stem: path for path in reversed(_files())}
    if name_or_path not in files:
        raise UsageError(
            f"there is no profile {short(printable(name_or_path))!r}; there are {', '.join(reversed(files))}, or give "
            "a file NAME.toml"
        )
    return files[name_or_path]


def _files() -> list[Path]:
    """Return the files of all profiles in search order."""
    return [path for folder in folders() for path in sorted(folder.glob("*.toml"))]


def read_profile(path: Path) -> Profile:
    """Return the profile in a file.

    Raises
    ------
    UsageError
        The file cannot be read or is not a valid profile; the message names the file and, if known, line and key.
    """
    try:
        content = read_bounded(path, FILE_LIMIT)
        text = content.decode()
    except OSError as error:
        raise UsageError(f"profile {printable(str(path))} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        _refuse(path, content[: error.start].count(b"\n") + 1, "not UTF-8 text")
    if len(content) > FILE_LIMIT:
        _refuse(path, 1, f"larger than {FILE_LIMIT} bytes, which no profile is")
    return parse_profile(text, path)


@lru_cache(maxsize=64)
def parse_profile(text: str, path: Path) -> Profile:
    """Return the profile that a TOML text describes; a program that measures again parses none again.

    Parameters
    ----------
    path
        The file that contains the text. Its stem must be the profile's name.

    Raises
    ------
    UsageError
        The text is not a valid profile, as for :func:`read_profile`.
    """
    for number, content in enumerate(text.splitlines(), 1):
        if len(content) > LINE_LIMIT:
            _refuse(path, number, f"longer than {LINE_LIMIT} characters, which no line of a profile is")
    try:
        document = read_toml(text)
    except (RecursionError, ValueError) as error:
        position = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", str(error))
        line = int(position[1]) if position and position[1] else text.count("\n") + 1
        _refuse(path, line, f"not TOML: {str(error)[: position.start()] if position else type(error).__name__}")
    if document.get("schema") != PROFILE_SCHEMA:
        _refuse_key(path, text, "schema", f"expected {PROFILE_SCHEMA!r}, found {document.get('schema')!r}")
    try:
        profile = from_json(Profile, document)
    except DecodeError as error:
        key, _, problem = str(error).partition(": ")
        _refuse_key(path, text, key if problem else "", problem or key)
    for key in _unknown(document, to_json(profile)):
        # A misspelt key would otherwise have no effect, silently.
        _refuse_key(path, text, key, "there is no such key")
    if profile.name != path.stem:
        _refuse_key(path, text, "name", f"expected {path.stem!r}, the file's name, found {profile.name!r}")
    for key, problem in _faults(profile):
        _refuse_key(path, text, key, problem)
    return profile


def _faults(profile: Profile) -> Iterator[tuple[str, str]]:
    """Yield the key and the message of each error that the types of the fields do not rule out."""
    sources = [("match.source", profile.match.source)]
    sources += [(f"links[{index}].source", link.source) for index, link in enumerate(profile.links)]
    for index, link in enumerate(profile.links):
        for key, number in (("rate_gb_s", link.rate_gb_s), ("payload", link.payload), ("links", link.links)):
            if not 0 < number <= LARGEST:
                yield f"links[{index}].{key}", f"expected a number above 0 and at most {LARGEST:g}"
    paths: set[tuple[str, Point, str, int | None]] = set()
    for index, reference in enumerate(profile.references):
        sources.append((f"references[{index}].source", reference.source))
        if reference.bounds_source is not None:
            sources.append((f"references[{index}].bounds_source", reference.bounds_source))
        path = reference.case, reference.point, reference.link, reference.flows
        if path in paths:
            yield f"references[{index}].case", f"{reference.case} over {reference.link} is there already"
        paths.add(path)
        values = (reference.fail, reference.warn, reference.typical)
        if not any(values):
            yield f"references[{index}].case", "it has neither a typical value nor a bound"
        for key, value in zip(("fail", "warn", "typical"), values, strict=True):
            if value is not None and (problem := _number_fault(value, reference.unit)):
                yield f"references[{index}].{key}", problem
        if reference.run_to_run is not None and not 0 <= reference.run_to_run <= 1:
            yield f"references[{index}].run_to_run", "expected a number from 0 to 1"
        sign = 1 if reference.unit is Unit.GB_S else -1
        order = [sign * value for value in values if value is not None]
        if order != sorted(order):
            better = "fail <= warn <= typical" if sign > 0 else "typical <= warn <= fail"
            yield f"references[{index}].case", f"the bounds have to be {better}"
    if (healthy := profile.healthy) is not None:
        sources.append(("healthy.source", healthy.source))
        if not 0 < healthy.machines <= healthy.runs:
            yield "healthy.machines", "expected at least 1, and no more than the runs"
        if not 0 <= healthy.alarms <= healthy.runs:
            yield "healthy.alarms", "expected at least 0, and no more than the runs"
    for source_key, source in sources:
        if source not in profile.sources:
            known = ", ".join(profile.sources) or "none"
            yield source_key, f"{source!r} is none of the sources: {known}"


def _number_fault(value: float, unit: Unit) -> str | None:
    """Return what is wrong with a number of a reference; ``None`` if nothing is."""
    if not 0 < value <= LARGEST:
        return f"expected a number above 0 and at most {LARGEST:g}"
    if unit is Unit.NS and value < FASTEST_NS:
        return f"expected at least {FASTEST_NS} ns: no GPU reads memory faster"
    return None


def _unknown(document: Any, known: Any, path: str = "") -> Iterator[str]:
    """Yield each key of a document that is missing from ``known``, the JSON data of the profile decoded from it."""
    if isinstance(document, list):
        for index, (item, known_item) in enumerate(zip(document, known, strict=True)):
            yield from _unknown(item, known_item, f"{path}[{index}]")
    for key in document if isinstance(document, dict) else ():
        inner = f"{path}.{key}" if path else key
        if key in known:
            yield from _unknown(document[key], known[key], inner)
        else:
            yield inner


def _refuse_key(path: Path, text: str, key: str, problem: str) -> NoReturn:
    _refuse(path, line_of(text, key), f"{key}: {problem}" if key else problem)


def _refuse(path: Path, line: int, problem: str) -> NoReturn:
    raise UsageError(f"profile {printable(str(path))}, line {line}: {short(printable(problem))}")


def line_of(text: str, path: str) -> int:
    """Return the line number, from 1, of a key such as ``references[2].warn``, or of its table if it is missing."""
    table, _, key = path.rpartition(".")
    if not table:
        table = key
    name, _, number = table.partition("[")
    index = int(number.rstrip("]")) if number else 0
    key = key.partition("[")[0]
    is_in_table, count, header_line = table == key, -1, 1
    for line, content in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?$", content):
            count += header[1] == name
            is_in_table = header[1] == name and count == index
            header_line = line if is_in_table else header_line
        elif is_in_table and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", content):
            return line
    return header_line
