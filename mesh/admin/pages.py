"""What a detail page is made of."""

from dataclasses import dataclass, field


@dataclass
class Fact:
    """A labelled value on a detail page."""

    label: str
    value: object
    hint: str = ""
    is_wide: bool = False


@dataclass
class Facts:
    """A card of facts."""

    title: str
    facts: list[Fact]
    # What they come to, in one sentence.
    lead: object = ""


@dataclass
class Table:
    """A card with rows; `empty` says what it means that there are none."""

    title: str
    headers: list[str]
    rows: list[list[object]]
    empty: str
    note: str = ""
    anchor: str = ""


@dataclass
class Page:
    """What a detail page shows. The main column is wide, the side column holds facts."""

    title: str
    public_id: str = ""
    badges: list[object] = field(default_factory=list)
    sentence: object = ""
    notices: list[tuple[str, object]] = field(default_factory=list)
    main: list[Facts | Table | object] = field(default_factory=list)
    side: list[Facts] = field(default_factory=list)
