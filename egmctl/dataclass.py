"""The standard ``dataclass`` decorator without its cost at import: ``__init__`` is compiled when a class is first used.

The standard decorator writes up to six methods for each class and compiles them, which was half of the start-up time of
a command (``docs/decisions/0022-dataclasses-without-compiling.md``). Here it makes the fields and slots only. The other
methods are ordinary functions over the fields. ``__init__`` alone is compiled, because only then creating a record is
as fast.
"""

from __future__ import annotations

import dataclasses
import operator
import reprlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: TID251
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, repr=True, slots=False, kw_only=False):
        """Return the class as a dataclass.

        ``fields``, ``replace``, ``asdict``, ``copy``, ``pickle``, ``match`` and ``inspect`` work as with the standard
        decorator. Three things differ: no field may be an ``InitVar``, each class needs a docstring (the standard
        decorator writes one), and a class that derives from a frozen one must use this decorator too.

        Parameters
        ----------
        frozen, eq, repr, slots, kw_only
            As for :func:`dataclasses.dataclass`.
        """

        def decorate(plain):
            fields_alone = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)  # noqa: TID251
            made = fields_alone(plain)
            _add(made, "__init__", _Init(made, frozen=frozen, slots=slots))
            if repr:
                _add(made, "__repr__", _repr(made))
            if eq:
                _compare(made, frozen=frozen)
            if frozen:
                _freeze(made, slots=slots)
            return made

        return decorate if cls is None else decorate(cls)


def _add(cls: Any, name: str, method: Any) -> None:
    """Give a class a method unless its body defines one."""
    if name not in vars(cls):
        if not isinstance(method, _Init):
            method.__name__, method.__qualname__, method.__module__ = name, f"{cls.__qualname__}.{name}", cls.__module__
        setattr(cls, name, method)


class _Init:
    """``__init__`` of a class until its first use, which puts the compiled function in its place.

    Python, and :mod:`inspect` too, gets a method from its class by ``__get__``. Two threads may both compile it: the
    functions are equal.
    """

    __slots__ = ("_frozen", "_owner", "_slots")

    def __init__(self, owner: Any, *, frozen: bool, slots: bool) -> None:
        self._owner, self._frozen, self._slots = owner, frozen, slots

    def __get__(self, instance: object, kind: type | None = None) -> Any:
        if vars(self._owner)["__init__"] is self:
            self._owner.__init__ = _compiled_init(self._owner, frozen=self._frozen, slots=self._slots)
        return vars(self._owner)["__init__"].__get__(instance, kind)


class _Factory:
    """The default of a parameter whose field has a factory."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


def _compiled_init(owner: Any, *, frozen: bool, slots: bool) -> Any:
    """Return ``__init__`` of a class, which does what that of the standard decorator does."""
    fields = dataclasses.fields(owner)
    known: dict[str, Any] = {"_set": object.__setattr__, "_FACTORY": _FACTORY}
    ordered: list[str] = []
    named: list[str] = []
    lines = []
    for each in fields:
        name, value, default = each.name, each.name, ""
        if each.default_factory is not dataclasses.MISSING:
            known[f"_make_{name}"] = each.default_factory
            default, value = "=_FACTORY", f"_make_{name}()"
            if each.init:
                value += f" if {name} is _FACTORY else {name}"
        elif each.default is not dataclasses.MISSING:
            known[f"_default_{name}"] = each.default
            default = f"=_default_{name}"
            if not each.init:
                # Without slots, the class has the default as its attribute.
                value = f"_default_{name}" if slots else ""
        elif not each.init:
            value = ""
        if each.init:
            (named if each.kw_only else ordered).append(name + default)
        if value:
            lines.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(owner, "__post_init__"):
        lines.append("self.__post_init__()")
    if named:
        ordered += ["*", *named]
    parameters = ", ".join(["self", *ordered])
    body = "\n  ".join(lines or ["pass"])
    source = f"def make({', '.join(known)}):\n def __init__({parameters}):\n  {body}\n return __init__"
    namespace: dict[str, Any] = {}
    # The source consists of the names of fields alone.
    exec(source, vars(sys.modules[owner.__module__]), namespace)  # noqa: S102
    init = namespace["make"](**known)
    init.__qualname__ = f"{owner.__qualname__}.__init__"
    init.__annotations__ = {**{each.name: each.type for each in fields if each.init}, "return": None}
    return init


def _getter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns the values of some fields of a record."""
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda record: tuple([getattr(record, name) for name in names])


def _compare(cls: Any, *, frozen: bool) -> None:
    """Give a class ``__eq__``, and ``__hash__`` if its records cannot change."""
    fields = dataclasses.fields(cls)
    compared = _getter([each.name for each in fields if each.compare])
    hashed = _getter([each.name for each in fields if (each.compare if each.hash is None else each.hash)])
    has_hash = vars(cls).get("__hash__") is not None

    def eq(self: Any, other: Any) -> Any:
        return compared(self) == compared(other) if other.__class__ is self.__class__ else NotImplemented

    def hash_of_fields(self: Any) -> int:
        return hash(hashed(self))

    _add(cls, "__eq__", eq)
    if not has_hash:
        cls.__hash__ = hash_of_fields if frozen else None


def _repr(cls: Any) -> Any:
    names = [each.name for each in dataclasses.fields(cls) if each.repr]

    @reprlib.recursive_repr()
    def shown(self: Any) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.__class__.__qualname__}({values})"

    return shown


def _freeze(cls: Any, *, slots: bool) -> None:
    """Let nobody set or delete a field of a class or of its subclasses."""
    names = frozenset(each.name for each in dataclasses.fields(cls))

    def set_other(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def delete_other(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    _add(cls, "__setattr__", set_other)
    _add(cls, "__delattr__", delete_other)
    if slots:
        # By default, copy and pickle would set the slots one by one.
        for name, method in (("__getstate__", _values), ("__setstate__", _set_values)):
            if name not in vars(cls):
                setattr(cls, name, method)


def _values(record: Any) -> list[Any]:
    return [getattr(record, each.name) for each in dataclasses.fields(record)]


def _set_values(record: Any, values: list[Any]) -> None:
    for each, value in zip(dataclasses.fields(record), values, strict=True):
        object.__setattr__(record, each.name, value)
