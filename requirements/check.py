"""Are the lock files what pyproject.toml asks for, complete, and free of addresses?

Needs no network. Prints what is wrong, one line each, and exits 1; prints nothing if all is well.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)(?: ; (.+?))?(?: \\)?$")


def problems(root: Path = ROOT) -> list[str]:
    project = tomllib.loads((root / "pyproject.toml").read_text())
    runtime_text = (root / "requirements" / "runtime.txt").read_text()
    dev_text = (root / "requirements" / "dev.txt").read_text()
    runtime, dev = pins(runtime_text), pins(dev_text)
    wanted = [
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["embedded"],
    ]
    wanted_dev = [*wanted, *project["dependency-groups"]["dev"]]
    return [
        *(f"runtime.txt: {line}" for line in foreign_lines(runtime_text)),
        *(f"dev.txt: {line}" for line in foreign_lines(dev_text)),
        *(f"runtime.txt: {line}" for line in unmet(wanted, runtime)),
        *(f"dev.txt: {line}" for line in unmet(wanted_dev, dev)),
        *(
            f"dev.txt: {name} differs from runtime.txt: run make lock"
            for name, versions in runtime.items()
            if dev.get(name) != versions
        ),
    ]


def pins(text: str) -> dict[str, set[str]]:
    """Pinned versions by name; a name may have several, for different platforms."""
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        if match := PIN.match(line):
            found.setdefault(canonicalize_name(match[1]), set()).add(match[2])
    return found


def foreign_lines(text: str) -> list[str]:
    """Lines that are neither a pin nor a hash (an address, a path, an option)."""
    hash_line = re.compile(r"^ {4}--hash=sha256:[0-9a-f]{64}(?: \\)?$")
    lines = text.splitlines()
    found = [
        f"line {number} is neither a pin nor a hash: {line.strip()[:60]}"
        for number, line in enumerate(lines, 1)
        if not PIN.match(line) and not hash_line.match(line)
    ]
    unhashed = [
        f"{line.split(' ')[0]} has no hash"
        for line, following in zip(lines, [*lines[1:], ""], strict=True)
        if PIN.match(line) and not hash_line.match(following)
    ]
    return found + unhashed


def unmet(wanted: list[str], pinned: dict[str, set[str]]) -> list[str]:
    return [
        f"does not hold {text!r}: run make lock"
        for text in wanted
        for need in [Requirement(text)]
        if not any(
            need.specifier.contains(version, prereleases=True)
            for version in pinned.get(canonicalize_name(need.name), ())
        )
    ]


if __name__ == "__main__":
    found = problems()
    sys.stderr.write("".join(f"{line}\n" for line in found))
    sys.exit(1 if found else 0)
