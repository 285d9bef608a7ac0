"""Each entry of signatures.toml: its names are the libraries' own, its checks exist, and a source stands."""

from __future__ import annotations

import re
from pathlib import Path

import pynvml
import pytest
from cuda.bindings import driver, runtime

from egmctl.doctor.runner import CHECKS
from egmctl.driver import signatures as module
from egmctl.driver.signatures import Signature, cause_of, signatures
from egmctl.model.explanation import Library

ENTRIES = list(signatures().errors.values())
REFERENCE = "https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__"
MEASURED = re.compile(r"(seen|the driver's log) on \w+, driver \d{3}\.\d+\.\d+")


def _ids(entry: Signature) -> str:
    return f"{entry.call or entry.library}-{entry.number}"


def test_at_least_sixty_errors_are_known_and_each_once() -> None:
    text = Path(module.__file__).with_suffix(".toml").read_text()
    assert len(ENTRIES) == text.count("\n[[errors]]") >= 60


@pytest.mark.parametrize("entry", ENTRIES, ids=_ids)
def test_an_entry_names_a_real_call_existing_checks_and_a_source(entry: Signature) -> None:
    if entry.call is not None:
        assert hasattr(driver if entry.library is Library.CUDA else pynvml, entry.call)
    assert entry.sources
    assert all(source.startswith("https://") or MEASURED.fullmatch(source) for source in entry.sources)
    assert entry.causes
    for cause in entry.causes:
        assert set(cause.checks) <= {check.id for check in CHECKS}
        assert not cause.cause.endswith(".")
        assert cause.remedy.text.endswith(".")
        assert cause.see


@pytest.mark.parametrize(
    "entry", [e for e in ENTRIES if e.call and len(e.sources) == 1 and e.sources[0].startswith(REFERENCE)], ids=_ids
)
def test_the_reference_lists_the_error_for_the_call_where_it_is_the_only_source(entry: Signature) -> None:
    name = signatures().names[(entry.library, entry.number)].name
    assert name in getattr(driver, entry.call or "").__doc__


@pytest.mark.parametrize("number", [int(each) for each in driver.CUresult if int(each)])
def test_each_error_of_the_driver_has_its_names_and_words(number: int) -> None:
    known = signatures().names[(Library.CUDA, number)]
    assert known.name == driver.CUresult(number).name
    if known.runtime_name:
        error = getattr(runtime.cudaError_t, known.runtime_name)
        assert int(error) == number
        words = runtime.cudaGetErrorString(error)[1].decode()
        assert known.words in (words, "")


def test_errors_of_the_runtime_alone_are_its_own() -> None:
    for (library, number), known in signatures().names.items():
        if library is Library.CUDA and known.name == known.runtime_name:
            assert int(getattr(runtime.cudaError_t, known.name)) == number


def test_each_error_of_nvml_has_its_name() -> None:
    named = {value: name for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")}
    known = {number: each.name for (library, number), each in signatures().names.items() if library is Library.NVML}
    assert {number: named.get(number) for number in known} == known


def test_functions_of_the_runtime_lead_to_the_drivers() -> None:
    for name, own in signatures().runtime.items():
        assert hasattr(runtime, name)
        assert hasattr(driver, own)
    assert all(hasattr(driver, name) for name in signatures().noise)


@pytest.mark.parametrize(
    ("written", "call"),
    [("cudaMalloc", "cuMemAlloc"), ("cuMemAlloc_v2", "cuMemAlloc"), ("cuMemcpyAsync_v2_ptsz", "cuMemcpyAsync")],
)
def test_a_function_is_found_however_it_is_written(written: str, call: str) -> None:
    assert signatures().driver_call(written) == call


def test_a_process_without_descriptors_knows_no_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(module, "signatures", refuse)
    assert cause_of("cuMemCreate", 800) is None
