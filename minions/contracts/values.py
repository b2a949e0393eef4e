"""`frozen`, as attrs has it, but quick to define: a short process defines two hundred classes.

Comparing, hashing and showing are written here once. What attrs generates for each class,
`__init__` above all, waits until it is asked for: most processes make values of few of their
classes, and generating it all took half the time of importing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["frozen"]

if TYPE_CHECKING:
    from attrs import frozen  # checkers know this one
else:
    import contextlib
    import inspect
    from functools import cache, cached_property
    from operator import attrgetter

    import attrs

    def frozen(maybe_cls=None, /, **options):
        """`attrs.frozen`; the same arguments, the same behaviour."""

        def build(cls):
            fields = _fields(cls)
            if fields is None or not options.keys() <= {"eq", "kw_only", "repr"}:
                return attrs.frozen(cls, **options)
            return _with_slots(_Draft(cls, fields, options))

        return build if maybe_cls is None else build(maybe_cls)

    # --- what all classes share -----------------------------------------------------------------

    def _equal(self, other):
        if other.__class__ is not self.__class__:
            return NotImplemented
        values = _values_of(self.__class__)
        return values(self) == values(other)

    def _hash(self):
        cls = self.__class__
        return hash((cls, _values_of(cls)(self)))

    @cache  # per class; holds no data
    def _values_of(cls):
        names = [attribute.name for attribute in attrs.fields(cls) if attribute.eq]
        return attrgetter(*names) if names else lambda _: ()

    def _repr(self):
        shown = [attribute.name for attribute in attrs.fields(self.__class__) if attribute.repr]
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
        return f"{self.__class__.__qualname__.rpartition('>.')[2]}({values})"

    # --- what attrs generates for each ----------------------------------------------------------

    @attrs.frozen(eq=False, repr=False)
    class _Example:
        pass

    _AT_ONCE = {name: vars(_Example)[name] for name in ("__setattr__", "__delattr__")}
    _LATER = vars(_Example).keys() - {*vars(type("", (), {})), "__slots__", *_AT_ONCE}
    _FIELD = type(attrs.field())

    def _fields(cls):
        """The names attrs would make slots of; None where only attrs can tell."""
        hints = inspect.get_annotations(cls)
        for name, member in vars(cls).items():
            is_unannotated = isinstance(member, _FIELD) and name not in hints
            if is_unannotated or name == "__init__" or isinstance(member, cached_property):
                return None
        return [name for name, hint in hints.items() if "ClassVar" not in str(hint)]

    class _Draft:
        """A class as written, and the one in use until attrs has made all there is to it."""

        def __init__(self, written, fields, options):
            self.written = written
            self.fields = fields
            self.options = options
            equal = {"__eq__": _equal, "__hash__": _hash} if options.get("eq", True) else {}
            shown = {"__repr__": _repr} if options.get("repr", True) else {}
            self.lent = equal | shown

        def finish(self):
            """Called at the first look at anything generated; later calls change nothing."""
            own = vars(self.written)
            for name, method in self.lent.items():
                if name not in own:
                    setattr(self.written, name, method)
            made = vars(attrs.frozen(self.written, **self.options))
            for name, member in [*vars(self.cls).items()]:
                if isinstance(member, _Later):
                    setattr(self.cls, name, made[name])

    class _Later:
        """Stands in a class for one thing that attrs will generate."""

        def __init__(self, name, draft):
            self._name = name
            self._draft = draft

        def __get__(self, instance, owner):
            self._draft.finish()
            value = vars(self._draft.cls)[self._name]
            return value.__get__(instance, owner) if hasattr(value, "__get__") else value

    def _with_slots(draft):
        """The class in the shape that attrs gives it."""
        written, fields = draft.written, draft.fields
        bases = written.__mro__[1:-1]
        there = {slot: getattr(b, slot) for b in bases for slot in getattr(b, "__slots__", ())}
        slots = [name for name in fields if name not in there]
        if not any(vars(base).get("__weakref__") for base in bases):
            slots.append("__weakref__")
        members = draft.lent | _AT_ONCE | {name: _Later(name, draft) for name in _LATER}
        members |= vars(written)
        for name in (*fields, "__dict__", "__weakref__"):
            members.pop(name, None)
        members |= {name: slot for name, slot in there.items() if name in fields}
        members |= {"__slots__": tuple(slots), "__qualname__": written.__qualname__}
        draft.cls = type(written)(written.__name__, written.__bases__, members)
        _point_methods_to(draft.cls, written)
        return draft.cls

    def _point_methods_to(cls, written):
        """`super()` and `__class__` mean the class that a method was compiled in."""
        for member in vars(cls).values():
            function = getattr(member, "__func__", getattr(member, "fget", member))
            for cell in getattr(function, "__closure__", None) or ():
                with contextlib.suppress(ValueError):  # an empty cell
                    if cell.cell_contents is written:
                        cell.cell_contents = cls
