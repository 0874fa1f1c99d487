"""Ids sort, spread and survive threads and forks; names, keys and tags from outside are checked."""

import enum
import itertools
import os
import string
import threading
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft import ids
from weft.errors import InvalidOption, NotFound
from weft.ids import ALPHABET, check_key, check_name, check_tags, new_id, new_run_id, new_run_ids, partition_of

HOSTILE = [
    "",
    " ",
    "r1",
    "r1-",
    "a:b",
    "{0}",
    "r*-?",
    "[abc]",
    "r0-0123456789ABCDEFGHJKM\n",
    "\nr0-0123456789ABCDEFGHJKM",
    "r0-0123456789ABCDEFGHJK\x00",
    "r0-0123456789ABCDEFGHJ M",
    "r0-0123456789ABCDEFGHJKm",
    "r0-0123456789ABCDEFGHJKI",
    "r0-0123456789ABCDEFGHJKMN0",
    "r01-0123456789ABCDEFGHJKMN",
    "r-1-0123456789ABCDEFGHJKMN",
    "r123456-0123456789ABCDEFGHJKMN",
    "r٣-0123456789ABCDEFGHJKMN",
    "s-0123456789ABCDEFGHJKMN",
    "../../etc/passwd",
    "r0-" + "A" * 10_000,
    "\ud800",
]


def random_part(run_id: str) -> int:
    number = 0
    for char in run_id.partition("-")[2]:
        number = number * 32 + ALPHABET.index(char)
    return number & (2**62 - 1)


def time_part(run_id: str) -> int:
    number = 0
    for char in run_id.partition("-")[2]:
        number = number * 32 + ALPHABET.index(char)
    return number >> 62


@given(st.integers(0, 99_999))
def test_a_run_id_carries_its_partition(partition):
    assert partition_of(new_run_id(partition)) == partition
    assert [partition_of(run_id) for run_id in new_run_ids(partition, 3)] == [partition] * 3


def test_a_run_id_holds_the_millisecond_it_was_made_in():
    before = time.time_ns() // 1_000_000
    made = [time_part(new_run_id(0)), time_part(new_run_ids(0, 1)[0]), time_part(new_id("s"))]
    after = time.time_ns() // 1_000_000
    assert all(before <= at <= after for at in made)


def test_run_ids_sort_by_the_millisecond_they_were_made_in(monkeypatch):
    moments = [0, 1, 7, 8, 31, 32, 1_700_000_000_000, 1_700_000_000_001, 2**48 - 1]
    made = []
    for ms in moments:
        monkeypatch.setattr(time, "time_ns", lambda ms=ms: ms * 1_000_000)
        batch = [new_run_id(4), *new_run_ids(4, 5)]
        assert {time_part(run_id) for run_id in batch} == {ms}
        made.append(batch)
    assert all(max(earlier) < min(later) for earlier, later in itertools.pairwise(made))


def test_ids_are_of_one_length_and_an_unambiguous_alphabet():
    made = [*(new_run_id(0) for _ in range(500)), *new_run_ids(0, 500)]
    assert {len(run_id) for run_id in made} == {len("r0-") + 22}
    assert {char for run_id in made for char in run_id[3:]} <= set(ALPHABET)
    assert not set("ILOU") & set(ALPHABET)


def test_all_62_random_bits_vary_and_none_is_favoured():
    made = [*(random_part(new_run_id(0)) for _ in range(2_000)), *map(random_part, new_run_ids(0, 2_000))]
    ones = Counter(bit for number in made for bit in range(62) if number >> bit & 1)
    # 7.9 standard deviations either way: a fair source does not leave this range in the life of the universe.
    assert all(1_750 < ones[bit] < 2_250 for bit in range(62))


def test_a_hundred_thousand_ids_are_all_different():
    made = {new_run_id(0) for _ in range(50_000)} | set(new_run_ids(0, 50_000))
    assert len(made) == 100_000


def test_no_ids_are_made_when_none_are_asked_for():
    assert new_run_ids(0, 0) == []


def test_threads_never_get_the_same_id():
    made: list[list[str]] = []

    def work() -> None:
        made.append([new_run_id(0) for _ in range(5_000)])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({run_id for batch in made for run_id in batch}) == 40_000


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_does_not_repeat_its_parents_ids():
    new_run_id(0)
    if not ids._tails:  # that was the last of its pool
        new_run_id(0)
    assert ids._tails, "the pool must be filled for the test to mean anything"
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writable, "\n".join(str(random_part(new_run_id(0))) for _ in range(50)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = set(os.read(readable, 65_536).decode().split())
    os.close(readable)
    os.close(writable)
    ours = {str(random_part(new_run_id(0))) for _ in range(50)}
    assert len(theirs) == len(ours) == 50
    assert not theirs & ours


def test_other_ids_carry_their_prefix():
    assert new_id("s").startswith("s-")
    assert len(new_id("c")) == 24
    assert new_id("c") != new_id("c")


@pytest.mark.parametrize("run_id", [*HOSTILE, None, 7, b"r0-0123456789ABCDEFGHJKMN", ["r0"]])
def test_a_malformed_run_id_is_not_found_and_the_message_stays_short(run_id):
    with pytest.raises(NotFound) as caught:
        partition_of(run_id)
    assert "a run id is" in str(caught.value)
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)
    str(caught.value).encode()


@given(st.text())
def test_no_text_crashes_partition_of(text):
    with pytest.raises(NotFound):
        partition_of(text)


@given(st.text(alphabet=string.ascii_letters + string.digits + "_.-/", min_size=1, max_size=200))
def test_letters_digits_and_a_few_signs_make_a_name(name):
    assert check_name(name, what="task name") == name


@pytest.mark.parametrize("name", [*"*?:{}[]() \n\x00\\'\"é", "", "a" * 201, "a b", "a\n", "<lambda>", None, 5, b"a"])
def test_other_characters_and_lengths_make_no_name(name):
    with pytest.raises(InvalidOption, match=r"^queue: ") as caught:
        check_name(name, what="queue")
    assert "A-Z a-z 0-9" in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("key", ["k1", "order:7 {a} *?[", "größe 注文 🧵", "👨‍👩‍👧", "a\u00a0b", "x" * 512])
def test_an_idempotency_key_is_any_printable_text(key):
    assert check_key(key, what="idempotency_key") == key


@pytest.mark.parametrize("key", ["", "x" * 513, "a\nb", "a\x00", "\x7f", "\x85", "\ud800", "a\u2028b", None, 7, b"k"])
def test_control_characters_and_odd_lengths_make_no_key(key):
    with pytest.raises(InvalidOption, match=r"^idempotency_key: ") as caught:
        check_key(key, what="idempotency_key")
    str(caught.value).encode()


@given(st.text(max_size=600))
def test_every_text_is_either_a_key_as_it_stands_or_refused(text):
    try:
        assert check_key(text, what="key") == text
    except InvalidOption:
        assert not text.isprintable() or not 1 <= len(text) <= 512


class Team(enum.StrEnum):
    RED = "red"


def test_tags_are_stored_as_text():
    tags = {"team": "a", "n": 3, "share": 0.5, "vip": True, "old": False, "note": "", "kind": Team.RED}
    expected = {"team": "a", "n": "3", "share": "0.5", "vip": "true", "old": "false", "note": "", "kind": "red"}
    stored = check_tags(tags)
    assert stored == expected
    assert all(type(value) is str for value in stored.values())
    assert stored is not tags


@pytest.mark.parametrize(
    "tags",
    [
        {f"t{n}": 1 for n in range(33)},
        {"a" * 65: 1},
        {"a b": 1},
        {"": 1},
        {7: 1},
        {"a": None},
        {"a": float("nan")},
        {"a": float("inf")},
        {"a": [1]},
        {"a": "x" * 257},
        {"a": "x\ny"},
        {"a": "\ud800"},
        {"a": 10**5_000},
        ["a"],
        "team",
        None,
    ],
)
def test_unfit_tags_are_refused(tags):
    with pytest.raises(InvalidOption, match="tag") as caught:
        check_tags(tags)
    assert len(str(caught.value)) < 300


def test_as_many_and_as_long_tags_as_allowed_are_kept():
    tags = {f"{n:064}": "x" * 256 for n in range(32)}
    assert check_tags(tags) == tags
