"""What the demo's agents can do with a document: check, count, summarize, catalogue, publish."""

import hashlib
import json
import os
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

from mesh.agent import Context, WorkFailure, handler

FOLDERS_VARIABLE = "DEMO_FOLDERS"
MAX_BYTES = 20_000_000
_MAX_ENTRIES = 1_000

_WORD = re.compile(r"[a-z][a-z'-]{3,}")
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_COMMON = frozenset(
    _WORD.findall(
        "about after also been before between both could does each from have into itself more"
        " most must never only other over same should some such than that their them then there"
        " these they this those under until what when where which while with without would"
    )
)


def folders() -> dict[str, Path]:
    """The folders whose documents may be read, by the name that work gives them."""
    known: dict[str, str] = json.loads(os.environ.get(FOLDERS_VARIABLE, "{}"))
    return {name: Path(path).resolve() for name, path in known.items()}


def read_document(value: dict[str, Any]) -> bytes:
    """The document that an input names. WorkFailure, always without effect."""
    folder: Path | None = folders().get(value["folder"])
    if folder is None:
        raise WorkFailure("folder_unknown", f"no folder {value['folder']!r}", no_effect=True)
    path = (folder / str(value["file"])).resolve()
    if not path.is_relative_to(folder):
        raise WorkFailure("file_outside", "the file is not in its folder", no_effect=True)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise WorkFailure("file_too_large", f"over {MAX_BYTES} bytes", no_effect=True)
        return path.read_bytes()
    except OSError as error:
        problem = f"{value['file']}: {error.strerror}"
        raise WorkFailure("file_missing", problem, no_effect=True) from None


@handler("documents.checksum")
def checksum(value: Any, context: Context) -> Any:
    """SHA-256 of the document; `unreachable_until` makes the first attempts fail on the way."""
    if context.attempt_number < value.get("unreachable_until", 0):
        raise WorkFailure("transient_connection", "the document store did not answer")
    data = read_document(value)
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


@handler("documents.count")
def count(value: Any, context: Context) -> Any:
    """Lines, words and characters."""
    text = read_document(value).decode(errors="replace")
    lines = text.splitlines()
    context.log(f"read {len(text)} characters of {value['file']}")
    return {
        "lines": len(lines),
        "words": len(text.split()),
        "characters": len(text),
        "longest_line": max(map(len, lines), default=0),
    }


@handler("documents.summarize")
def summarize(value: Any, context: Context) -> Any:
    """The sentences that hold most of the document's frequent words, in their order.

    With `pace_ms` it rests after each paragraph and keeps a checkpoint, so that a later attempt
    goes on where this one was.
    """
    text = read_document(value).decode(errors="replace")
    paragraphs = [part for part in re.split(r"\n\s*\n", text) if part.strip()][:200]
    done = context.previous_checkpoint or {"paragraphs": 0, "words": []}
    # Kept as pairs: as keys, words like "token" would be taken for secrets.
    words, first = Counter(dict(done["words"])), done["paragraphs"]
    for number, paragraph in enumerate(paragraphs[first:], start=first + 1):
        context.stop_if_cancelled()
        words.update(word for word in _WORD.findall(paragraph.lower()) if word not in _COMMON)
        if value.get("pace_ms"):
            time.sleep(value["pace_ms"] / 1000)
            context.checkpoint({"paragraphs": number, "words": words.most_common(100)})
    if first:
        context.log(f"went on after paragraph {first} of an earlier attempt")
    return {
        "sentences": best_sentences(paragraphs, words, value.get("sentences", 3)),
        "words": [word for word, _count in words.most_common(8)],
        "resumed_after": first,
    }


@handler("documents.catalogue")
def catalogue(value: Any, context: Context) -> Any:
    """Put the document into the catalogue, or replace it there: a repeat changes nothing.

    The file is read, changed and written: two at once would lose an entry. That only one run does
    it at a time is what the lease on the resource `catalogue` is for.
    """
    file = shelf() / "catalogue.json"
    entries = json.loads(file.read_text()) if file.exists() else {}
    entries[str(value["file"])] = {"sha256": value["sha256"], "summary": value["summary"]}
    newest = dict(list(entries.items())[-_MAX_ENTRIES:])
    write_whole(file, json.dumps(newest, indent=1))
    return {"entries": len(newest)}


@handler("documents.publish")
def publish(value: Any, context: Context) -> Any:
    """Add the summary to what was published. A repeat would add it twice."""
    context.stop_if_cancelled()
    time.sleep((value.get("pace_ms") or 0) / 1000)
    line = json.dumps({"file": value["file"], "summary": value["summary"]})
    with (shelf() / "published.jsonl").open("a") as published:
        published.write(f"{line}\n")
    return {"published": value["file"]}


def shelf() -> Path:
    """Where the demo puts what it makes."""
    folder = folders()["shelf"]
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_whole(file: Path, text: str) -> None:
    """Replace a file at once: a reader sees the old one or the new one."""
    temporary = file.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(text)
    temporary.replace(file)


def best_sentences(paragraphs: list[str], words: Counter[str], wanted: int) -> list[str]:
    """The sentences with the highest mean weight of their words, as they stand in the text."""
    scored: list[tuple[float, int, str]] = []
    for paragraph in paragraphs:
        if paragraph.lstrip().startswith(("#", "|", "```", "-", "<")):
            continue
        for sentence in _SENTENCE.split(" ".join(paragraph.split())):
            found = _WORD.findall(sentence.lower())
            if 6 <= len(found) <= 40:
                weight = sum(words[word] for word in found) / len(found)
                scored.append((weight, len(scored), sentence))
    best = sorted(scored, reverse=True)[:wanted]
    return [sentence for _weight, _place, sentence in sorted(best, key=lambda one: one[1])]
