"""Strict shapes: nothing is coerced, nothing unknown is taken, null only where it is said.

These say what type a value has and that it fits where it is kept. Whether a well-typed value is a
good one is a rule, and rules stand in the domain.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

from rest_framework import serializers

INT32: Final = 2**31 - 1
INT64: Final = 2**63 - 1
_MAX_NAMED: Final = 20
_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,6})\d*)?([Zz]|[+-]\d\d:\d\d)"
)
# Far from the ends of what Python and PostgreSQL can hold, so that adding to a time cannot fail.
_FIRST_YEAR: Final = 1970
_LAST_YEAR: Final = 2999


class Body(serializers.Serializer[Any]):
    # A JSON object with exactly the declared members. (Docstrings go into the OpenAPI document.)

    default_error_messages = {"invalid": "Expected an object."}

    @classmethod
    def check(cls, data: Any) -> dict[str, Any]:
        """The members that were sent, of the right types; REST framework's error otherwise."""
        checked: dict[str, Any] = cls.instance().run_validation(data)
        return checked

    @classmethod
    def instance(cls) -> "Body":
        """One per class, made once: checking leaves no trace in it, and making one is slow."""
        return _instance(cls)

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if not isinstance(data, dict):
            raise serializers.ValidationError({"non_field_errors": ["Expected an object."]})
        unknown = data.keys() - self.fields.keys()
        if unknown:
            named = sorted(unknown)[:_MAX_NAMED]
            raise serializers.ValidationError({each: ["Unknown field."] for each in named})
        checked: dict[str, Any] = super().to_internal_value(data)
        return checked


@cache
def _instance(cls: type[Body]) -> Body:
    return cls()


class Text(serializers.CharField):
    default_error_messages = {"invalid": "Expected a string."}

    def __init__(self, max_length: int | None = None, **kwargs: Any) -> None:
        kwargs.setdefault("allow_blank", True)
        super().__init__(max_length=max_length, trim_whitespace=False, **kwargs)

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return data


class Integer(serializers.IntegerField):
    default_error_messages = {"invalid": "Expected an integer."}

    def __init__(self, low: int = -INT64 - 1, high: int = INT64, **kwargs: Any) -> None:
        super().__init__(min_value=low, max_value=high, **kwargs)

    def to_internal_value(self, data: Any) -> int:
        if not isinstance(data, int) or isinstance(data, bool):
            self.fail("invalid")
        return data


class Number(serializers.FloatField):
    default_error_messages = {"invalid": "Expected a number."}

    def to_internal_value(self, data: Any) -> float:
        if not isinstance(data, (int, float)) or isinstance(data, bool):
            self.fail("invalid")
        return data


class Flag(serializers.BooleanField):
    default_error_messages = {"invalid": "Expected true or false."}

    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            self.fail("invalid")
        return data


class Word(serializers.ChoiceField):
    """One word of an enumeration."""

    default_error_messages = {"invalid_choice": "Not one of the words that are known here."}

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str) or data not in self.choices:
            self.fail("invalid_choice")
        return data


class Time(serializers.DateTimeField):
    """A time with an offset, RFC 3339."""

    default_error_messages = {
        "invalid": "Expected a time with an offset, like 2030-01-31T12:00:00Z.",
        "range": f"A time lies in the years {_FIRST_YEAR} to {_LAST_YEAR}.",
    }

    def to_internal_value(self, data: Any) -> datetime:
        moment = parse_time(data)
        if moment is None:
            self.fail("invalid")
        if not _FIRST_YEAR <= moment.year <= _LAST_YEAR:
            self.fail("range")
        return moment


class AnyValue(serializers.JSONField):
    """Any JSON value, null too; carried, not looked at."""

    def validate_empty_values(self, data: Any) -> tuple[bool, Any]:
        # Not `allow_null`: OpenAPI would say "any value, or null", which null fits twice.
        return (True, None) if data is None else super().validate_empty_values(data)

    def to_internal_value(self, data: Any) -> Any:
        return data


class Object(serializers.DictField):
    """A JSON object with whatever members."""

    default_error_messages = {"not_a_dict": "Expected an object."}

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if not isinstance(data, dict):
            self.fail("not_a_dict")
        return data


class Pairs(Object):
    """An object of strings: labels."""

    default_error_messages = {"not_text": "Expected an object of strings."}

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(child=Text(), **kwargs)

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        pairs = super().to_internal_value(data)
        if not all(isinstance(each, str) for each in pairs.values()):
            self.fail("not_text")
        return pairs


class TextList(serializers.ListField):
    """A list of strings. Checked in one go: the lists of a heartbeat can be long."""

    default_error_messages = {
        "not_a_list": "Expected a list.",
        "not_text": "Expected a list of strings.",
        "too_long": "A string is longer than {max_length} characters.",
    }

    def __init__(
        self, max_items: int | None = None, max_length: int | None = None, **kwargs: Any
    ) -> None:
        self.each = max_length
        super().__init__(child=Text(max_length), max_length=max_items, **kwargs)

    def to_internal_value(self, data: Any) -> list[str]:
        if not isinstance(data, list):
            self.fail("not_a_list")
        if not all(isinstance(item, str) for item in data):
            self.fail("not_text")
        if self.each is not None and any(len(item) > self.each for item in data):
            self.fail("too_long", max_length=self.each)
        return data


class Variants(serializers.ListField):
    """A list of objects of several shapes; the member `key` of each says which one it has."""

    default_error_messages = {
        "not_a_list": "Expected a list.",
        "not_an_object": "Expected an object.",
        "unknown": "Not one of the words that are known here.",
    }

    def __init__(self, key: str, shapes: Mapping[str, type[Body]], **kwargs: Any) -> None:
        super().__init__(allow_empty=False, **kwargs)
        self.key = key
        self.shapes = shapes

    def run_child_validation(self, data: list[Any]) -> list[Any]:
        errors: dict[str, Any] = {}
        checked = []
        for place, item in enumerate(data):
            try:
                checked.append(self._check(item))
            except serializers.ValidationError as error:
                errors[str(place)] = error.detail
        if errors:
            raise serializers.ValidationError(errors)
        return checked

    def _check(self, item: Any) -> dict[str, Any]:
        if not isinstance(item, dict):
            self.fail("not_an_object")
        word = item.get(self.key)
        shape = self.shapes.get(word) if isinstance(word, str) else None
        if shape is None:
            raise serializers.ValidationError({self.key: [self.error_messages["unknown"]]})
        return shape.check(item)


def parse_time(value: Any) -> datetime | None:
    """The time that an RFC 3339 text with an offset stands for; None for anything else."""
    found = _TIME.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return None
    day, clock, fraction, offset = found.groups()
    offset = "+00:00" if offset in "Zz" else offset
    try:
        return datetime.fromisoformat(f"{day}T{clock}.{fraction or '0':0<6}{offset}").astimezone(
            UTC
        )
    except (ValueError, OverflowError):
        return None
