"""Every answer of the CUDA bindings becomes a value or one exception that names the call."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from egmctl.driver import breadcrumb, cuda
from egmctl.errors import DriverCallError, DriverLibraryMissing, DriverTooOld, ExitCode


class Result(int):
    """A CUresult of the bindings: a number with a name."""

    name = "CUDA_ERROR_NOT_PERMITTED"


@pytest.fixture
def bindings(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A module in the place of ``cuda.bindings.driver``."""
    module = SimpleNamespace(CUDA_VERSION=13000)
    monkeypatch.setattr(cuda, "bindings", lambda: module)
    return module


def answering(answer: Any) -> Callable[..., Any]:
    def function(*_arguments: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return function


@pytest.mark.parametrize(
    ("answer", "value"),
    [((Result(0),), None), ((Result(0), 7), 7), ((Result(0), 7, 8), (7, 8)), ((Result(0), None), None)],
)
def test_success_is_nothing_the_value_or_the_values(bindings: SimpleNamespace, answer: Any, value: Any) -> None:
    bindings.cuCall = answering(answer)

    assert cuda.call("cuCall", 1, 2) == value


def test_an_error_names_the_call_the_number_and_the_drivers_word(bindings: SimpleNamespace) -> None:
    bindings.cuMemCreate = answering((Result(800), None))

    with pytest.raises(DriverCallError, match=r"^cuMemCreate failed: CUDA_ERROR_NOT_PERMITTED \(800\)$") as raised:
        cuda.call("cuMemCreate")

    error = raised.value
    assert (error.call, error.number, error.name) == ("cuMemCreate", 800, "CUDA_ERROR_NOT_PERMITTED")
    assert error.exit_code is ExitCode.CRASHED


def test_an_error_newer_than_the_bindings_keeps_its_number(bindings: SimpleNamespace) -> None:
    bindings.cuInit = answering(ValueError("9999 is not a valid CUresult"))

    with pytest.raises(DriverCallError, match="unknown to cuda-bindings") as raised:
        cuda.call("cuInit", 0)

    assert raised.value.number == 9999


NO_FUNCTION = "cuInit failed: the driver has no such function"
NO_LIBRARY = r"cuInit failed: libcuda\.so\.1 cannot be loaded"


@pytest.mark.parametrize(
    ("raised", "error", "sentence"),
    [
        (ValueError("flags must not be negative"), ValueError, "flags must not be negative"),
        (RuntimeError("function cuInit is not found"), DriverTooOld, NO_FUNCTION),
        (RuntimeError('Function "cuInit" not found'), DriverTooOld, NO_FUNCTION),
        (
            RuntimeError('"cuda" is an NVIDIA driver library and can only be found via system search.'),
            DriverLibraryMissing,
            NO_LIBRARY,
        ),
        (RuntimeError("Failed to dlopen libcuda.so.1"), DriverLibraryMissing, NO_LIBRARY),
    ],
)
def test_a_wrong_argument_a_missing_function_and_a_missing_library_are_told_apart(
    bindings: SimpleNamespace, raised: Exception, error: type[Exception], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bindings.cuInit = answering(raised)
    monkeypatch.setattr(cuda, "_library_loads", lambda: False)

    with pytest.raises(error, match=sentence) as caught:
        cuda.call("cuInit", 0)

    assert getattr(caught.value, "number", None) is None


def test_a_library_that_loads_and_lacks_what_the_bindings_need_is_too_old_and_not_missing(
    bindings: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    bindings.cuInit = answering(RuntimeError("Failed to get cuGetProcAddress_v2"))
    monkeypatch.setattr(cuda, "_library_loads", lambda: True)

    with pytest.raises(DriverTooOld, match=r"libcuda\.so\.1 lacks a function that cuda-bindings \S+ needs"):
        cuda.call("cuInit", 0)


def test_a_function_that_the_bindings_lack_says_which_bindings(bindings: SimpleNamespace) -> None:
    del bindings.CUDA_VERSION

    with pytest.raises(DriverTooOld, match=rf"not in cuda-bindings {cuda.bindings_version()}"):
        cuda.call("cuNewer")


@pytest.mark.usefixtures("bindings")
def test_bindings_13_on_a_driver_for_cuda_12_name_the_extra_to_install() -> None:
    with pytest.raises(DriverTooOld) as raised:
        cuda.check_version(12080)

    assert str(raised.value) == (
        f"cuInit failed: cuda-bindings {cuda.bindings_version()} needs a driver for CUDA 13 "
        "and this one is for CUDA 12.8: pip install 'egmctl[cu12]'"
    )


@pytest.mark.usefixtures("bindings")
def test_older_bindings_on_a_newer_driver_are_fine() -> None:
    cuda.check_version(13000)
    cuda.check_version(14010)


@pytest.mark.parametrize("answer", [(Result(0),), (Result(800),), RuntimeError("Failed to dlopen libcuda.so.1")])
def test_the_breadcrumb_is_there_during_the_call_and_gone_after(
    bindings: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    steps: list[str] = []
    monkeypatch.setattr(breadcrumb, "enter", lambda call: steps.append(f"enter {call}"))
    monkeypatch.setattr(breadcrumb, "leave", lambda: steps.append("leave"))

    def under_way(*_arguments: Any) -> Any:
        steps.append("call")
        return answering(answer)()

    bindings.cuInit = under_way
    with contextlib.suppress(DriverCallError):
        cuda.call("cuInit", 0)

    assert steps == ["enter cuInit", "call", "leave"]


class TestInitialisedAhead:
    """cuInit in a thread, while the process imports what it needs."""

    @pytest.fixture
    def calls(self, bindings: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The threads that called cuInit."""
        threads: list[str] = []

        def cu_init(_flags: int) -> tuple[Result]:
            threads.append(threading.current_thread().name)
            return (Result(0),)

        bindings.cuDriverGetVersion = answering((Result(0), 13000))
        bindings.cuInit = cu_init
        monkeypatch.setattr(cuda, "_ahead", None)
        return threads

    def test_the_thread_alone_calls_it(self, calls: list[str]) -> None:
        cuda.initialise_ahead({})
        assert cuda.initialise() == 13000
        assert calls == ["cuInit"]

    @pytest.mark.usefixtures("calls")
    def test_an_error_is_raised_where_its_end_is_waited_for(self, bindings: SimpleNamespace) -> None:
        bindings.cuInit = answering((Result(800),))
        cuda.initialise_ahead({})
        with pytest.raises(DriverCallError, match=r"^cuInit failed: CUDA_ERROR_NOT_PERMITTED"):
            cuda.initialise()

    @pytest.mark.usefixtures("no_thread_starts")
    def test_where_no_thread_can_start_it_is_called_when_it_is_needed(self, calls: list[str]) -> None:
        cuda.initialise_ahead({})
        assert cuda.initialise() == 13000
        assert calls == [threading.main_thread().name]
