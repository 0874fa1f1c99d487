"""A document pipeline: files -> pages -> classify each page -> group by type -> report.

weft dev examples.documents:app                                         a store and a worker in one terminal
weft worker examples.documents:app --processes 4                        more workers, here or on other machines
weft run documents --app examples.documents:app --watch --input '{"files": ["a.txt", "b.txt"]}'
python examples/documents.py                                            all of it in one process, on files it makes itself

One step per file, then one step per page, spread over all workers; the pipeline waits for each stage as a whole, and
nobody has to count who is ready. A page that cannot be read is left out and told in the report.
"""

import asyncio
import os
import tempfile
import time
from pathlib import Path

from weft import Fatal, Weft, current

app = Weft("documents")

documents = app.graph(
    "documents",
    version="1.0",
    input={
        "type": "object",
        "required": ["files"],
        "properties": {
            "files": {"type": "array", "items": {"type": "string"}},
            "ms_per_page": {"type": "integer", "minimum": 0},  # how long a classifier that does more would take
        },
    },
    output="${report}",
)

#: What tells the type of a page.
KINDS = {
    "invoice": ("amount due", "total:"),
    "letter": ("dear ", "sincerely"),
    "form": ("signature:", "date of birth:"),
}


@documents.node(map="input.files", max_parallel=8)
def split(item: str) -> list[dict]:
    """One file, one step: returns its pages, which a form feed parts."""
    pages = Path(item).read_text().split("\f")
    current().log.info("%d pages", len(pages), file=item)
    return [{"file": Path(item).name, "page": number, "text": text} for number, text in enumerate(pages, 1)]


@documents.node(after=split)
def pages(split: list[list[dict]]) -> list[dict]:
    """All pages of all files: the list that the next stage goes over."""
    return [page for file in split for page in file]


@documents.node(
    after=pages,
    map="pages",
    max_parallel=50,
    retries=2,
    on_error="continue",
    with_={"item": "${item}", "ms": "${has(input.ms_per_page) ? input.ms_per_page : 0}"},
)
def classify(item: dict, ms: int) -> dict:
    """One page, one step, on whichever worker is free. What fails is null in the list of results, and told in `errors`."""
    time.sleep(ms / 1000)
    text = item["text"].lower()
    if not text.strip():
        raise Fatal(f"page {item['page']} of {item['file']} is empty")
    kind = next((kind for kind, words in KINDS.items() if any(word in text for word in words)), "other")
    return {"file": item["file"], "page": item["page"], "kind": kind, "worker": os.getpid()}


documents.gather("by_kind", after=classify, group_by="item.kind")


@documents.node(
    after="by_kind",
    with_={
        "groups": "${by_kind}",
        "failed": "${has(errors.classify) ? errors.classify : []}",
        "total": "${size(pages)}",
    },
)
def report(groups: dict[str, list[dict]], failed: list[dict] | None, total: int) -> dict:
    """Counts what was found."""
    return {
        "pages": total,
        "kinds": {kind: [f"{page['file']}:{page['page']}" for page in found] for kind, found in sorted(groups.items())},
        "failed": [error["message"] for error in failed or []],
        "workers": sorted({page["worker"] for found in groups.values() for page in found}),
    }


SAMPLES = {
    "march.txt": "Invoice 17\nAmount due: 20 EUR\fDear Ada,\nthank you. Sincerely, Grace\fNotes on weaving",
    "april.txt": "Invoice 18\nTotal: 30 EUR\f   \fDate of birth: 1815-12-10\nSignature: A. L.",
}


def write_samples(directory: Path) -> list[str]:
    """Writes two small files and returns where they are."""
    for name, text in SAMPLES.items():
        (directory / name).write_text(text)
    return [str(directory / name) for name in SAMPLES]


async def main() -> None:
    """Runs the pipeline on sample files in this process, and prints the report."""
    with tempfile.TemporaryDirectory() as directory:
        async with app, app.worker():
            run = await documents.start({"files": write_samples(Path(directory))})
            found = await run.result(timeout=30)
            print(found["pages"], "pages")
            for kind, places in found["kinds"].items():
                print(f"  {kind}: {', '.join(places)}")
            print("  failed:", "; ".join(found["failed"]))


if __name__ == "__main__":
    asyncio.run(main())
