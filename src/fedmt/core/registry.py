"""Open sets: methods, strategies, backbones and the like, which a config chooses by name.

A name is either a known one, or "package.module:Name" for the user's own code, installed or in the folder
where the command runs. In this way, users extend the library without changing it.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

from fedmt.core.errors import FedmtError, listed, nearest

T = TypeVar("T")


class NotAllowed(FedmtError):
    """A file or message from elsewhere names code that nobody here has allowed."""


_allowed: ContextVar[frozenset[str] | None] = ContextVar("allowed", default=None)


@contextmanager
def importing_only(names: Collection[str] | None) -> Iterator[None]:
    """Within this context, `find` imports only these names of users' own code. With None, it imports
    anything.

    It is used for names that come from elsewhere: a coordinator's plan, a model's file.
    """
    token = _allowed.set(None if names is None else frozenset(names))
    try:
        yield
    finally:
        _allowed.reset(token)


class Registry(MutableMapping[str, T], Generic[T]):
    """The known entries by name, in order. `find` also looks up the user's own entries.

    word: what an entry is called in messages. entries: each is an object, or the place "package.module:Name"
    from which it is imported on first use, so that listing the names imports nothing. complaint: returns what
    is wrong with an object that a user named, or None. form: how a user's own entry is written.
    """

    def __init__(
        self,
        word: str,
        entries: Mapping[str, T | str],
        complaint: Callable[[Any], str | None] = lambda _: None,
        form: str = "package.module:Name",
    ) -> None:
        self.word, self.form = word, form
        self._entries = dict(entries)
        self._complaint = complaint

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries  # Mapping's own method would import an entry to check that it exists

    def __getitem__(self, name: str) -> T:
        entry = self._entries[name]
        if isinstance(entry, str):
            entry = self._entries[name] = cast(T, import_named(entry, f"{self.word} '{name}'"))
        return entry

    def __setitem__(self, name: str, entry: T | str) -> None:
        self._entries[name] = entry

    def __delitem__(self, name: str) -> None:
        del self._entries[name]

    def find(self, name: object, key: str) -> T:
        """The entry with this name, known or "package.module:Name". key: the config's key, for error
        messages."""
        if isinstance(name, str) and name in self:
            return self[name]
        if not isinstance(name, str) or ":" not in name:
            raise FedmtError(
                f"{key}: no {self.word} {name!r}.{nearest(str(name), self)} Known: {listed(self)}, or your "
                f"own as '{self.form}'."
            )
        where = f"{key}: {self.word} '{name}'"
        allowed = _allowed.get()
        if allowed is not None and name not in allowed:
            raise NotAllowed(f"{where} is code that was not explicitly allowed, so it was not imported.")
        found = import_named(name, where, self.form)
        wrong = self._complaint(found)
        if wrong is not None:
            raise FedmtError(f"{where}: '{name.partition(':')[2]}' {wrong}")
        return cast(T, found)

    def name_of(self, entry: T) -> str:
        """The name under which `find` returns this class or function."""
        place = f"{getattr(entry, '__module__', '')}:{getattr(entry, '__qualname__', '')}"
        known = (name for name, value in self._entries.items() if value is entry or value == place)
        return next(known, place)


def value_at(table: Any, *keys: str) -> Any:
    """The value in nested tables under these keys, of whatever type. None if there is none."""
    for key in keys:
        table = table.get(key) if isinstance(table, Mapping) else None
    return table


class Named:
    """A class that a config chooses. `name` is for messages. Unless the class sets it, it is the place where
    the class is found."""

    name: ClassVar[str]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" not in vars(cls):  # an inherited name belongs to another class
            cls.name = f"{cls.__module__}:{cls.__qualname__}"


OWN_TABLE = {"own table": True}
"""Marks a field of an options class that the config sets in a separate table with the field's name."""


def option_names(entry: type) -> list[str]:
    """The options that a config may give together with the entry's name: its fields without their own
    table."""
    return [f.name for f in _fields(entry) if not f.metadata.get("own table")]


def own_tables(entry: type) -> list[str]:
    """The entry's fields that have their own table in the config."""
    return [f.name for f in _fields(entry) if f.metadata.get("own table")]


def _fields(entry: type) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(cast(Any, entry))


def subclass_of(base: type, place: str) -> Callable[[Any], str | None]:
    """A registry's complaint about an object that is not a subclass of `base`, or is an incomplete one.

    place: where a user imports `base` from.
    """

    def complaint(found: Any) -> str | None:
        if not isinstance(found, type):
            return f"is of type {type(found).__name__}, expected a subclass of {place}."
        if not issubclass(found, base):
            return f"is not a subclass of {place}."
        missing = sorted(getattr(found, "__abstractmethods__", ()))
        return f"does not define {listed(missing)}, as a subclass of {place} must." if missing else None

    return complaint


def import_named(spec: str, where: str, form: str = "package.module:Name") -> Any:
    """The object at "package.module:Name". Modules in the working directory are found too. where: prefix of
    the error messages."""
    module_name, colon, attribute = spec.partition(":")
    if not colon or not attribute.isidentifier() or not all(p.isidentifier() for p in module_name.split(".")):
        example = form.rpartition(".")[2].replace("module:", "my_module:")
        raise FedmtError(f"{where}: expected '{form}', for example '{example}'.")
    with importable_from_here():
        try:
            module = import_module(module_name)
        except Exception as error:
            # A missing import *inside* the user's module is a different mistake from a missing module.
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            if missing and (module_name == missing or module_name.startswith(f"{missing}.")):
                raise FedmtError(
                    f"{where}: no module '{missing}', neither installed nor in {Path.cwd()}; check its name, "
                    "or run the command from the folder that contains it."
                ) from None
            raise FedmtError(
                f"{where}: importing '{module_name}' raised {type(error).__name__}: {error}"
            ) from error
    if not hasattr(module, attribute):
        file = getattr(module, "__file__", None) or module_name
        raise FedmtError(
            f"{where}: '{module_name}' ({file}) has no '{attribute}'.{nearest(attribute, vars(module))}"
        )
    return getattr(module, attribute)


@contextmanager
def importable_from_here() -> Iterator[None]:
    """Puts the working directory first on the import path, as `python -m` does. A console script does not do
    this."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    invalidate_caches()  # The module may be newer than the interpreter's listing of its folder.
    try:
        yield
    finally:
        sys.path.remove(here)
