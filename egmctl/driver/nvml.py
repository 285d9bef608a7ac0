"""Checked NVML calls: each returns a value or raises the reason why there is none.

Only child processes import this.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from ctypes import byref
from typing import Any, NamedTuple

import pynvml

from egmctl.driver import breadcrumb
from egmctl.driver.reading import Reasons, Unreadable
from egmctl.model.record import Reason

_REASONS: Mapping[int, Reason] = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: Reason.NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION: Reason.NO_PERMISSION,
    pynvml.NVML_ERROR_TIMEOUT: Reason.TIMED_OUT,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: Reason.MISSING_LIBRARY,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: Reason.DRIVER_TOO_OLD,
    # The library does not know this version of a structure.
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: Reason.DRIVER_TOO_OLD,
    pynvml.NVML_ERROR_DEPRECATED: Reason.NOT_SUPPORTED,
}
"""The reason for each return code; every other error is ``failed``."""

LOST: frozenset[int] = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})
"""The return codes of a call about a GPU that can no longer be used: it fell off the bus, or needs a reset (nvml.h)."""

_NAMES = {code: name for name, code in vars(pynvml).items() if name.startswith("NVML_ERROR_")}

_MISMATCH: tuple[type[BaseException], ...] = ()
"""What nvidia-ml-py raises if the library is older than the function's version that it calls; older ones raise none."""
if hasattr(pynvml, "NVMLLibraryMismatchError"):
    _MISMATCH = (pynvml.NVMLLibraryMismatchError,)

_EVENT_REASONS = (
    *("idle", "applications-clocks-setting", "sw-power-cap", "hw-slowdown", "sync-boost", "sw-thermal-slowdown"),
    *("hw-thermal-slowdown", "hw-power-brake-slowdown", "display-clock-setting", "board-limit", "reliability"),
)
"""The reasons why clocks are reduced, by bit: ``nvmlClocksEventReason*`` of nvml.h, then two
``nvmlClocksThrottleReason*``."""

_about = ""
_lost_calls: dict[str, str] = {}

Field = int | tuple[int, int]
"""The id of a field value, or the id and its scope: a link's number."""


def ask(function: str, *arguments: Any) -> Any:
    """Call a function of pynvml and return its value.

    Raises
    ------
    Unreadable
        NVML returned an error, the library or pynvml lacks the function, a string is not UTF-8, pynvml cannot
        allocate as many entries as the library reports, or it raised anything else.
    """
    breadcrumb.enter(function, _about)
    try:
        return getattr(pynvml, function)(*arguments)
    except pynvml.NVMLError as error:
        raise _error(function, error.value) from error
    except MemoryError as error:
        # pynvml allocates as many entries as the library reports.
        raise Unreadable(Reason.FAILED, f"{function}: a count in the answer is beyond all bounds") from error
    except AttributeError as error:
        raise Unreadable(Reason.DRIVER_TOO_OLD, f"{function}: not in the installed nvidia-ml-py") from error
    except UnicodeDecodeError as error:
        raise Unreadable(Reason.FAILED, f"{function}: the answer is not UTF-8") from error
    except Exception as error:
        # nvidia-ml-py has exceptions that are no NVMLError. What one call raises costs the value of that call only.
        reason = Reason.DRIVER_TOO_OLD if isinstance(error, _MISMATCH) else Reason.FAILED
        raise Unreadable(reason, f"{function}: nvidia-ml-py raised {type(error).__name__}") from error
    finally:
        breadcrumb.leave()


@contextlib.contextmanager
def about(bus_id: str = "") -> Iterator[dict[str, str]]:
    """Name the GPU that the calls in the ``with`` block are about, so that the breadcrumb of a crash names it too.

    Yields
    ------
    dict[str, str]
        The calls in the block that ended with one of :data:`LOST`, and the name of that error.
    """
    global _about, _lost_calls
    _about, _lost_calls = bus_id, {}
    try:
        yield _lost_calls
    finally:
        _about, _lost_calls = "", {}


def ask_struct(function: str, struct: str, *before: Any) -> Any:
    """Fill a versioned structure of pynvml, named without ``c_nvml``, and return it.

    ``before`` is the GPU's handle, if any. pynvml's functions for structures need a reference: given the structure
    itself, they crash the process. Some return the error number instead of raising.

    Raises
    ------
    Unreadable
        As for :func:`ask`, or pynvml lacks the structure.
    """
    kind = getattr(pynvml, f"c_nvml{struct}", None)
    if kind is None:
        raise Unreadable(Reason.DRIVER_TOO_OLD, f"{function}: the installed nvidia-ml-py has no c_nvml{struct}")
    value = kind()
    returned = ask(function, *before, byref(value))
    if returned:
        raise _error(function, returned)
    return value


class Question(NamedTuple):
    """One call and the fields of a record that its result fills."""

    fields: str
    """The names of the fields, separated by spaces. For several fields the result has as many values."""
    function: str | Callable[..., Any]
    """The name of a function of pynvml, or a callable that raises Unreadable."""
    convert: Callable[[Any], Any] = lambda answer: answer
    arguments: tuple[Any, ...] = ()
    """Arguments after the subject."""

    def answer(self, subject: tuple[Any, ...]) -> Any:
        """Make the call for a subject: a GPU's handle, a handle and a link's number, two handles, or nothing.

        Raises
        ------
        Unreadable
            The call gave no value.
        """
        arguments = (*subject, *self.arguments)
        try:
            return self.convert(
                ask(self.function, *arguments) if isinstance(self.function, str) else self.function(*arguments)
            )
        except Unreadable:
            raise
        except Exception as error:
            # An answer that cannot be understood costs the fields of this question only.
            source = self.function if isinstance(self.function, str) else self.fields
            raise Unreadable(Reason.FAILED, f"{source}: {type(error).__name__}") from error


def read_record(questions: Iterable[Question], *subject: Any, **known: Any) -> dict[str, Any]:
    """Return a record, as a dictionary, with the answers to these questions about one subject.

    Parameters
    ----------
    known
        Further fields of the record: each a value, or the error why there is none.
    """
    reasons = Reasons()
    for question in questions:
        known |= reasons.fields(question.fields, functools.partial(question.answer, subject))
    return reasons.record(dict, **known)


def field_values(handle: Any, fields: Iterable[Field]) -> dict[Field, int | Unreadable]:
    """Read many field values in one NVML call, which takes little longer than for one.

    Each field without a value maps to its error.
    """
    wanted = list(fields)
    try:
        answers = ask("nvmlDeviceGetFieldValues", handle, wanted)
    except Unreadable as error:
        return dict.fromkeys(wanted, error)
    return {field: _field_value(field, answer) for field, answer in zip(wanted, answers, strict=True)}


def gpm_rates(handle: Any, *metrics: int) -> Iterator[list[float] | Unreadable]:
    """Yield metrics of a GPU by NVML's GPM since they were last asked for, or why there are none, as at the first time.

    GPM needs a Hopper or newer GPU, and 100 ms between two samples (nvml.h, nvmlGpmMetricsGet).
    """
    try:
        last, other = (ask("nvmlGpmSampleAlloc") for _ in range(2))
        request = pynvml.c_nvmlGpmMetricsGet_t(version=pynvml.NVML_GPM_METRICS_GET_VERSION, numMetrics=len(metrics))
        ask("nvmlGpmSampleGet", handle, last)
        yield Unreadable(Reason.NOT_ASKED, "GPM metrics need two samples")
        while True:
            request.sample1, request.sample2 = last, ask("nvmlGpmSampleGet", handle, other)
            for place, metric in enumerate(metrics):
                request.metrics[place].metricId = metric
            answers = ask("nvmlGpmMetricsGet", request).metrics[: len(metrics)]
            if failed := [answer for answer in answers if answer.nvmlReturn != pynvml.NVML_SUCCESS]:
                raise _error(f"GPM metric {failed[0].metricId}", failed[0].nvmlReturn)
            yield [answer.value for answer in answers]
            last, other = other, last
    except Unreadable as error:
        yield from itertools.repeat(error)


def _error(what: str, code: int) -> Unreadable:
    """Return the exception for a return code other than NVML_SUCCESS."""
    if code in LOST:
        _lost_calls.setdefault(what, _NAMES[code])
    detail = f"{what}: {code} ({pynvml.NVMLError(code)})"
    return Unreadable(_REASONS.get(code, Reason.FAILED), detail, _NAMES.get(code), code)


def event_reasons(mask: int) -> list[str]:
    """Return the names of the reasons in a mask of ``nvmlDeviceGetCurrentClocksEventReasons``."""
    known = [word for bit, word in enumerate(_EVENT_REASONS) if mask >> bit & 1]
    unknown = [f"bit-{bit}" for bit in range(len(_EVENT_REASONS), 64) if mask >> bit & 1]
    return known + unknown


def _field_value(field: Field, answer: Any) -> int | Unreadable:
    if answer.nvmlReturn != pynvml.NVML_SUCCESS:
        return _error(f"field {field[0] if isinstance(field, tuple) else field}", answer.nvmlReturn)
    member = {
        pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
        pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
        pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
        pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
    }.get(answer.valueType)
    if member is None:
        return Unreadable(Reason.FAILED, f"field value of type {answer.valueType}")
    value: int = getattr(answer.value, member)
    return value
