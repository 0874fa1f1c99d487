"""Forms on the page of a link: fields by the schema, what is wrong told at the field, nothing written until it fits."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from browsing import JSON, Ask, PageOf, fields

from weft import Weft
from weft.server.forms import fields_of, fill, start

SCHEMA = {
    "type": "object",
    "required": ["amount", "why", "sure"],
    "properties": {
        "amount": {"type": "number", "title": "Amount", "maximum": 120},
        "n": {"type": "integer", "minimum": 1},
        "why": {"enum": ["damaged", "late", 7]},
        "note": {"type": "string", "minLength": 3, "default": "none"},
        "sure": {"type": "boolean"},
        "maybe": {"type": "boolean"},
        "lines": {"type": "array", "items": {"type": "object"}},
    },
    "additionalProperties": False,
}


async def test_fields_begin_with_what_is_shown_and_give_a_typed_form(
    app: Weft, ask: Ask, client: httpx2.AsyncClient, page_of: PageOf
) -> None:
    one = await ask({"amount": 89.5, "why": "late", "lines": [{"sku": "a"}]}, form=SCHEMA)
    path = await page_of(one)
    given = fields((await client.get(path)).text)
    assert given["form.amount"] == "89.5" and given["form.why"] == "1" and given["form.note"] == "none"
    assert '"sku": "a"' in given["form.lines"] and "form.sure" not in given and given["form.maybe"] == ""

    done = await client.post(path, data={**given, "form.n": "+3", "form.sure": "yes", "form.why": "2"})

    assert done.status_code == 303, done.text
    form = (await app.approvals.get(one.id)).votes[0]["form"]
    assert form == {"amount": 89.5, "n": 3, "why": 7, "note": "none", "sure": True, "lines": [{"sku": "a"}]}


async def test_what_does_not_fit_comes_back_at_its_field_and_decides_nothing(
    app: Weft, ask: Ask, client: httpx2.AsyncClient, page_of: PageOf
) -> None:
    one = await ask(form=SCHEMA)
    path = await page_of(one)
    given = fields((await client.get(path)).text)
    wrong = {"form.amount": "500", "form.n": "1.5", "form.note": "é<", "form.lines": "[1", "comment": "mine & <b>"}

    back = await client.post(path, data={**given, **wrong})

    assert back.status_code == 422 and "Nothing was decided yet" in back.text
    for text in (
        "must be at most 120",
        "must be a whole number",
        "this is needed",
        "this is not JSON",
        "characters or more: 3",
    ):
        assert text in back.text, text
    assert fields(back.text) == {**given, **wrong}
    assert (await app.approvals.get(one.id)).votes == []
    answer = await client.post(path, data={**given, **wrong}, headers=JSON)
    assert answer.status_code == 422 and answer.json()["code"] == "invalid_arguments"
    assert len(answer.json()["facts"]["problems"]) == 5


async def test_programs_send_the_form_as_json(app: Weft, ask: Ask, client: httpx2.AsyncClient, page_of: PageOf) -> None:
    one = await ask(form=SCHEMA)
    path = await page_of(one)
    wrong = await client.post(path, json={"form": {"amount": 1}}, headers=JSON)
    assert wrong.status_code == 422 and wrong.json()["facts"]["problems"]
    done = await client.post(path, json={"form": {"amount": 1, "why": "late", "sure": False}}, headers=JSON)
    assert done.json()["decision"]["form"] == {"amount": 1, "why": "late", "sure": False}


async def test_a_rejection_asks_for_no_form(ask: Ask, client: httpx2.AsyncClient, page_of: PageOf) -> None:
    path = await page_of(await ask(form=SCHEMA), "reject")
    assert fields((await client.get(path)).text).keys() == {"confirm", "comment"}
    assert (await client.post(path, data={"comment": ""})).status_code == 303


async def test_a_comment_that_is_too_long_comes_back(
    app: Weft, ask: Ask, client: httpx2.AsyncClient, page_of: PageOf
) -> None:
    one = await ask()
    back = await client.post(await page_of(one), data={"comment": "x" * 4001})
    assert back.status_code == 422 and "must be a text of at most 4000 characters" in back.text
    assert (await app.approvals.get(one.id)).votes == []


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "string"}},
        {"type": "object"},
        {"anyOf": [{"type": "object"}, {"type": "null"}]},
        {"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "integer"}},
        {"type": "object", "properties": {"a": {}}, "required": ["b"]},
        {"properties": {f"p{i}": {"type": "string"} for i in range(100)}},
    ],
)
def test_a_schema_that_is_not_flat_is_written_as_json(schema: dict[str, Any]) -> None:
    (whole,) = fields_of(schema)
    assert (whole.key, whole.kind) == ("form", "json")
    assert fill(schema, [whole], {"form": "{"}).problems["form"].startswith("this is not JSON")


def test_json_that_would_not_come_out_as_written_is_refused() -> None:
    schema = {"type": "object"}
    (whole,) = fields_of(schema)
    for text in ('{"a": 1, "a": 2}', '{"a": NaN}', "[" * 100_000, '{"a": Infinity}'):
        assert not fill(schema, [whole], {"form": text}).fits
    good = fill(schema, [whole], {"form": '{"a": [1, null]}'})
    assert (good.fits, good.value) == (True, {"a": [1, None]})


def test_what_is_shown_counts_before_the_default_and_only_if_it_fits() -> None:
    known = {"a": {"type": "integer", "default": 1}, "b": {"type": "string"}, "c": {"enum": [True, 1, "1"]}}
    found = fields_of({"properties": known})
    assert start(found, {"a": 5, "b": 7, "c": 1}).texts == {"form.a": "5", "form.c": "1"}
    assert start(found, {"a": "x", "c": "1"}).texts == {"form.a": "1", "form.c": "2"}
    assert start(found, None).texts == {"form.a": "1"}


@pytest.mark.parametrize(
    ("kind", "text", "fits"),
    [
        *[("integer", text, False) for text in ("1.5", "٣", "1_000", "0x1", "1" * 400, "--1", "inf")],
        *[("number", text, False) for text in ("1,5", "nan", "1e999", "Infinity", "1.", "٣.5")],
        *[("number", text, True) for text in ("1.5", "-2", "1e3", " 7 ")],
    ],
)
def test_numbers_are_read_as_people_write_them(kind: str, text: str, fits: bool) -> None:
    schema = {"type": "object", "properties": {"x": {"type": kind}}}
    assert fill(schema, fields_of(schema), {"form.x": text}).fits is fits
