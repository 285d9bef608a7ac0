"""egmctl's ``dataclass`` makes classes that behave as those of the standard decorator, which it compiles later."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import itertools
import pickle
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

import egmctl
from egmctl.dataclass import dataclass

ours: Any = dataclass
standard: Any = dataclasses.dataclass

REQUIRED: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "silent": {"repr": False},
    "ignored": {"compare": False},
    "unhashed": {"hash": False},
    "named": {"kw_only": True},
}
OPTIONAL: Mapping[str, Mapping[str, Any]] = {
    "five": {"default": 5},
    "always_five": {"default": 5, "init": False},
    "made": {"default_factory": list},
    "always_made": {"default_factory": tuple, "init": False},
    "unset": {"init": False, "repr": False, "compare": False},
}
OPTIONS = ("frozen", "slots", "eq", "repr", "kw_only")
OWN: Mapping[str, Callable[..., Any]] = {
    "__post_init__": lambda self: object.__setattr__(self, "plain", "set after all others"),
    "__eq__": lambda self, other: other is not None and self is not None,
    "__hash__": lambda _self: 7,
    "__repr__": lambda _self: "its own",
    "__init__": lambda self, **values: set_all(self, {**dict.fromkeys(OPTIONAL, ()), **values}),
}


def set_all(record: Any, values: Mapping[str, Any]) -> None:
    """Set fields of a record, even of a frozen one."""
    for name, value in values.items():
        object.__setattr__(record, name, value)


def record_class(decorate: Any, options: Mapping[str, bool], own: Mapping[str, Any]) -> Any:
    """Return a class with every sort of field, whose base has those without a default."""

    def decorated(base: type, fields: Mapping[str, Mapping[str, Any]], more: Mapping[str, Any]) -> Any:
        values = {name: dataclasses.field(**field) for name, field in fields.items()}
        annotations = dict.fromkeys(fields, "object")
        return decorate(**options)(
            type("Kind", (base,), {"__doc__": "A class.", "__annotations__": annotations, **values, **more})
        )

    return decorated(decorated(object, REQUIRED, {}), OPTIONAL, own)


def outcome(call: Callable[..., Any], *values: Any, **named: Any) -> tuple[str, Any]:
    """Return what a call returns or raises, as a value that can be compared."""
    try:
        return "returns", call(*values, **named)
    except (TypeError, AttributeError, ValueError) as error:
        return type(error).__name__, str(error)


def behaviour(kind: Any) -> Iterator[Any]:
    """Yield what a class and its instances do, as values that two classes can be compared by."""
    yield [(each.name, each.type, each.init, each.repr, each.compare) for each in dataclasses.fields(kind)]
    parameters = inspect.signature(kind).parameters.values()
    yield [(each.name, each.kind, each.annotation, repr(each.default)) for each in parameters]
    yield kind.__match_args__, kind.__hash__ is None, kind.__init__.__qualname__
    values = {name: name for name in REQUIRED}
    for wrong in ({}, {"plain": 1}, {**values, "unknown": 1}, {**values, "always_five": 1}):
        yield outcome(lambda **given: type(kind(**given)).__name__, **wrong)
    yield outcome(lambda: type(kind(1, 2, 3, 4, 5, 6, 7, named=1)).__name__)
    yield outcome(lambda: dataclasses.astuple(dataclasses.replace(kind(1, 2, 3, 4, named=5, unset=0))))

    def record(**changed: Any) -> Any:
        made = kind(**{**values, **changed})
        object.__setattr__(made, "unset", "set later")
        return made

    yield [outcome(getattr, record(), name) for name in (*REQUIRED, *OPTIONAL)]
    if kind.__repr__ is not object.__repr__:
        yield repr(record()), repr(record(plain=record()))
    if kind.__eq__ is not object.__eq__:
        yield [record() == record(**{name: "changed"}) for name in (*REQUIRED, "five", "made")]
        yield record() == values, record() == subclass_of(kind)(**values), record() == record(five=float("nan"))
    if kind.__hash__ not in (None, object.__hash__):
        yield [outcome(hash, record(made=0, **{name: "changed"})) for name in (*REQUIRED, "five")]
    yield dataclasses.asdict(copy.copy(record())), dataclasses.asdict(copy.deepcopy(record()))
    yield outcome(lambda: dataclasses.asdict(dataclasses.replace(record(), plain=8)))
    for made in (record(), subclass_of(kind)(**values)):
        for name in ("plain", "five"):
            yield outcome(setattr, made, name, 9)
            yield outcome(delattr, made, name)
            yield outcome(getattr, made, name)


def subclass_of(kind: Any) -> Any:
    """Return a class that derives from a dataclass and is none."""
    return type("Derived", (kind,), {})


@pytest.mark.parametrize("own", ["", *OWN])
def test_a_class_behaves_as_that_of_the_standard_decorator(own: str) -> None:
    """With any options, and whichever method is its own."""
    methods = {own: OWN[own]} if own else {}
    for chosen in itertools.product((False, True), repeat=len(OPTIONS)):
        options = dict(zip(OPTIONS, chosen, strict=True))
        ours_does, standard_does = (list(behaviour(record_class(each, options, methods))) for each in (ours, standard))
        assert ours_does == standard_does, options


@pytest.mark.parametrize("options", [{"frozen": True}, {"frozen": True, "slots": True}])
def test_only_a_subclass_of_a_frozen_class_has_further_attributes(options: Mapping[str, bool]) -> None:
    """The standard decorator mistakes the class where it has slots (until Python 3.14)."""
    kind = record_class(ours, options, {})
    values = dict.fromkeys(REQUIRED, 0)
    made = subclass_of(kind)(**values)
    made.other = 1
    del made.other
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.plain = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        kind(**values).other = 1


@dataclass(frozen=True, slots=True)
class Point:
    """A record that pickle finds by its name."""

    x: int
    near: tuple[Point, ...] = ()


def test_a_record_survives_pickle() -> None:
    point = Point(1, (Point(2),))
    assert pickle.loads(pickle.dumps(point)) == point  # noqa: S301


def test_a_class_is_compiled_when_the_first_record_of_it_or_of_a_subclass_is_made() -> None:
    @dataclass(frozen=True)
    class Base:
        """A class."""

        x: int

    class Derived(Base):
        """A class that is no dataclass."""

    early = vars(Base)["__init__"]
    assert not inspect.isfunction(early)
    assert Derived(1).x == 1
    assert inspect.isfunction(vars(Base)["__init__"])
    # Another thread may have got it before.
    assert early.__get__(object.__new__(Base), Base)(2) is None


def every_dataclass() -> list[type]:
    """Return the dataclasses of all modules of egmctl."""
    modules = [importlib.import_module(each.name) for each in pkgutil.walk_packages(egmctl.__path__, "egmctl.")]
    return [
        cls
        for module in modules
        for cls in vars(module).values()
        if isinstance(cls, type) and dataclasses.is_dataclass(cls) and cls.__module__ == module.__name__
    ]


def test_every_dataclass_of_egmctl_has_what_the_decorator_needs() -> None:
    """The standard decorator would write a docstring, and would take values that are no fields (InitVar)."""
    classes = every_dataclass()
    assert len(classes) > 300
    assert [cls for cls in classes if not cls.__doc__] == []
    assert [cls for cls in classes if any("InitVar" in str(each.type) for each in declared(cls))] == []


def declared(cls: Any) -> list[Any]:
    """Return the fields of a dataclass, with those that are only arguments."""
    return list(cls.__dataclass_fields__.values())
