"""Typed reading of a TOML file that people wrote: every problem is collected with its full field name, none raises.

A `Table` remembers which keys were asked for, so that what is left over can be reported as unknown.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from typing import Any

UNITS_MB = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0 * 1024.0}


class Table:
    """One table of a TOML file. `problems` and `unknown` are shared by all tables of the file."""

    def __init__(
        self,
        values: Mapping[str, Any],
        path: str = "",
        problems: list[str] | None = None,
        unknown: list[str] | None = None,
    ) -> None:
        self.values = values
        self.path = path
        self.problems: list[str] = [] if problems is None else problems
        self.unknown: list[str] = [] if unknown is None else unknown
        self._asked: set[str] = set()

    def name(self, key: str) -> str:
        """The key as it is called in messages: `environment.cpus`."""
        return f"{self.path}.{key}" if self.path else key

    def take(self, key: str) -> Any:
        """The raw value, None if it is absent; the key counts as known from here on."""
        self._asked.add(key)
        return self.values.get(key)

    def wrong(self, key: str, wanted: str) -> None:
        """Note that a value is not what it should be."""
        self.problems.append(f"field {self.name(key)} is {shown(self.values[key])}, not {wanted}")

    def unsupported(self, key: str, reason: str) -> None:
        """Note a field that the format has and this package does not."""
        self.problems.append(f"field {self.name(key)} is not supported ({reason})")

    def text(self, key: str) -> str | None:
        """A non-empty string."""
        value = self.take(key)
        if value is None:
            return None
        if isinstance(value, str) and value.strip():
            return value
        self.wrong(key, "a non-empty text")
        return None

    def flag(self, key: str) -> bool | None:
        value = self.take(key)
        if value is None or isinstance(value, bool):
            return value
        self.wrong(key, "true or false")
        return None

    def number(self, key: str, *, zero: bool = False) -> float | None:
        """A finite number above 0 (from 0 with `zero`)."""
        value = self.take(key)
        if value is None:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
            if value > 0 or (zero and value == 0):
                return float(value)
            self.wrong(key, "0 or more" if zero else "above 0")
            return None
        self.wrong(key, "a number")
        return None

    def count(self, key: str, *, zero: bool = False) -> int | None:
        """A whole number above 0 (from 0 with `zero`)."""
        value = self.number(key, zero=zero)
        if value is None or value == int(value):
            return None if value is None else int(value)
        self.wrong(key, "a whole number")
        return None

    def size_mb(self, key: str, old_key: str) -> int | None:
        """Megabytes: a number under `key`, or a text such as "512M" or "2G" under `old_key`, rounded up."""
        new, old = self.count(key), self.take(old_key)
        if new is not None or old is None:
            return new
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT])(?:i?B)?\s*", old, re.I) if isinstance(old, str) else None
        size = float(match[1]) * UNITS_MB[match[2].upper()] if match else 0.0
        if not 0 < size < math.inf:
            self.wrong(old_key, 'a size such as "512M" or "2G"')
            return None
        return math.ceil(size)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts; empty if absent."""
        value = self.take(key)
        if value is None:
            return ()
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        self.wrong(key, "a list of texts")
        return ()

    def environment(self, key: str) -> dict[str, str]:
        """A table of environment variables; numbers and booleans are written as texts."""
        value = self.take(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.wrong(key, "a table of variables")
            return {}
        found = {}
        for name, item in value.items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                self.problems.append(f"field {self.name(key)}: {name!r} is not a variable's name")
            elif isinstance(item, bool):
                found[name] = str(item).lower()
            elif isinstance(item, str | int | float):
                found[name] = str(item)
            else:
                self.problems.append(f"field {self.name(key)}.{name} is {shown(item)}, not a text")
        return found

    def table(self, key: str) -> Table:
        """A sub-table; an empty one if absent."""
        value = self.take(key)
        if value is not None and not isinstance(value, Mapping):
            self.wrong(key, "a table")
            value = None
        return Table(value or {}, self.name(key), self.problems, self.unknown)

    def finish(self) -> None:
        """Note the keys that nobody asked for."""
        self.unknown += [self.name(key) for key in self.values if key not in self._asked]


def shown(value: Any) -> str:
    """A value for a message, cut."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
