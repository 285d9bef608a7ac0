"""The bill of materials of a folder, with licences, in CycloneDX by that project's own library."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from importlib.metadata import Distribution, distributions
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from artifacts import interpreter
from artifacts.folder import SITE


def bill_of_materials(version: str, epoch: int) -> Callable[[Path], str]:
    """Return a function that lists a folder as CycloneDX 1.6 JSON, always the same for the same folder.

    Parameters
    ----------
    version
        The version of egmctl.
    """

    def describe(folder: Path) -> str:
        root = Component(name="egmctl", version=version, type=ComponentType.APPLICATION, bom_ref="egmctl")
        root.licenses.add(LicenseFactory().make_from_string("Apache-2.0"))
        bom = Bom(components=(*_wheels(folder / SITE), *_interpreter(folder / "python/licenses")))
        bom.metadata.component = root
        bom.metadata.timestamp = datetime.fromtimestamp(epoch, timezone.utc)
        bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, f"egmctl {version} {folder.name} {epoch}")
        bom.register_dependency(root, sorted(bom.components))
        return f"{JsonV1Dot6(bom).output_as_string(indent=1)}\n"

    return describe


def _wheels(site: Path) -> Iterator[Component]:
    for wheel in distributions(path=[str(site)]):
        name = wheel.metadata["Name"]
        if name == "egmctl":
            continue
        purl = PackageURL("pypi", name=re.sub(r"[-_.]+", "-", name).lower(), version=wheel.version)
        yield _component(name, wheel.version, purl, _licence(wheel))


def _licence(wheel: Distribution) -> str | None:
    """Return the licence that a wheel declares: an SPDX expression or text."""
    for key in ("License-Expression", "License"):
        if key in wheel.metadata and "\n" not in wheel.metadata[key]:
            return str(wheel.metadata[key])
    classifiers = wheel.metadata.get_all("Classifier") or []
    named = [line.rpartition(" :: ")[2] for line in classifiers if line.startswith("License :: ")]
    return named[0] if named else None


def _interpreter(licences: Path) -> Iterator[Component]:
    """Yield CPython and the libraries linked into its executable."""
    source = PackageURL("deb", "debian", "python3.13", interpreter.SOURCE)
    yield _component("CPython", interpreter.VERSION, source, "Python-2.0.1")
    spdx = {"libffi": "MIT", "zlib": "Zlib"}
    for line in (licences / "versions").read_text().splitlines():
        name, version = line.split()
        yield _component(name, version, PackageURL("deb", "debian", name, version), spdx[name])


def _component(name: str, version: str, purl: PackageURL, licence: str | None) -> Component:
    component = Component(name=name, version=version, purl=purl, type=ComponentType.LIBRARY, bom_ref=str(purl))
    if licence is not None:
        component.licenses.add(LicenseFactory().make_from_string(licence))
    return component
