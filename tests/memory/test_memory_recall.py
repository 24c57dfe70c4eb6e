"""Finding again: the same answers from both databases, for any script and any query."""

from __future__ import annotations

import itertools
import string
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_help import Says, contents, execute, rows, said

from holdfast.errors import ConfigurationError
from holdfast.memory import Memory, NewEntry, Store
from holdfast.memory.words import Term, indexed, query_terms
from support.depth import examples


def found(store: Store, query: str, **options: Any) -> list[str]:
    return [entry.content for entry in store.recall("user-7", query, **options)]


TEXTS = {
    "tea": "Green tea, hot!",
    "cafe": "Café au lait in the CAFÉ",
    "tokyo": "彼は東京都に住んでいます。",
    "beijing": "我明天去北京出差",
    "seoul": "서울에서 만나요",
    "thai": "ฉันชอบกินข้าว",
    "hindi": "मुझे हिन्दी पसंद है",
    "wide": "\uff21\uff22\uff23 ｶﾞｷﾞ",
    "code": "call user_name() in a-b.c, v2 1e5 3.14 x@y.org",
    "one": "茶",
    "two runs": "東。京",
}


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("tea", ["tea"]), ("TEA!", ["tea"]), ("te", []), ("green coffee", ["tea"]),
        ("cafe", ["cafe"]), ("CAFÉ", ["cafe"]), ("cafe\u0301", ["cafe"]),
        ("東京", ["tokyo"]), ("京都", ["tokyo"]), ("東京都", ["tokyo"]), ("東京に", []), ("京東", []), ("東都", []),
        ("住んで", ["tokyo"]), ("北京", ["beijing"]), ("京出差", ["beijing"]), ("京差", []),
        ("明天去北京", ["beijing"]),
        ("东京", []), ("北", ["beijing"]), ("差", ["beijing"]), ("京", ["tokyo", "beijing", "two runs"]),
        ("茶", ["one"]), ("北京 tea", ["beijing", "tea"]), ("tea北京", ["beijing", "tea"]),
        ("서울", ["seoul"]), ("만나", ["seoul"]), ("กินข้าว", ["thai"]), ("हिन्दी", ["hindi"]),
        ("abc", ["wide"]), ("ガギ", ["wide"]), ("カキ", []),
        ("user_name", ["code"]), ("name", ["code"]), ("v2", ["code"]), ("1e5", ["code"]), ("3.14", ["code"]),
        ("y.org", ["code"]), ("a-b.c", ["code"]),
    ],
)  # fmt: skip
def test_what_is_found(everything_said: Store, query: str, names: list[str]) -> None:
    # "a" is a word of its own in the text of "code" only
    assert sorted(found(everything_said, query)) == sorted(TEXTS[name] for name in names)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def everything_said(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One for all of those that only look."""
    where = f"sqlite:///{tmp_path_factory.mktemp('said')}/memory.db"
    if request.param == "postgresql":
        where = request.getfixturevalue("postgres").empty()
    with Store(where) as store:
        store.absorb(said(*TEXTS.values()))
        store.absorb(said(*TEXTS.values(), key="somebody else"))
        yield store


HOSTILE = [
    '"', '""', '"tea', 'tea"', "*", "tea*", "te*", "NEAR(", "NEAR(tea hot, 2)",
    "'; drop table holdfast_memory_entries; --",
    "tea AND", "AND", "NOT tea", "tea NOT hot", "-tea", "terms:tea", "owner:tea", "{terms} : tea", "^tea", "tea + hot",
    "(", ")", "((tea", "\\", "tea\\", "%", "%s", ":x", "tea:*", "tea & !hot", "a | b", "<->", "'", "''", "tea'", "\x00",
    "tea\x00", "\ud800", "tea \udfff", "\n", "--", "/* tea", "🍵", "$1", "?", "tea ? :x %(x)s", "\u202etea",
    "ﷺ", "\u0301",
]  # fmt: skip


@pytest.mark.parametrize("query", HOSTILE)
def test_nothing_in_a_query_is_an_operator(everything_said: Store, query: str) -> None:
    # Given a query that would mean something to a search engine or a database
    answer = everything_said.recall("user-7", query, limit=100)

    # expect the words in it to be looked for, and nothing else
    assert {entry.user for entry in answer} <= {"user-7"}
    words = "".join(c if c.isalnum() else " " for c in query.casefold()).split()
    assert (TEXTS["tea"] in [entry.content for entry in answer]) == (
        "tea" in words or "hot" in words or not query.strip()
    )
    assert len(contents(everything_said)) == len(TEXTS)


def test_a_query_without_anything_to_look_for_finds_nothing(everything_said: Store) -> None:
    assert found(everything_said, "?!") == []
    assert found(everything_said, "🍵") == []


def test_a_word_that_is_an_operator_elsewhere_is_a_word(url: str) -> None:
    with Store(url) as store:
        store.absorb(said("or and not near", "tea"))

        for query in ("or", "AND", "not", "NEAR"):
            assert found(store, query) == ["or and not near"]


def test_very_long_queries_and_texts(url: str) -> None:
    with Store(url) as store:
        store.absorb(
            said("start " + "word " * 400_000, "東京" * 200_000, "x" * 3_000_000, " ".join(map(str, range(200_000))))
        )

        assert len(found(store, "start")) == 1
        assert len(found(store, "東京")) == 1
        assert len(found(store, "x" * 3_000_000)) == 1
        assert len(found(store, "12345")) == 1
        assert len(found(store, "start " * 1_000 + " ".join(map(str, range(10_000))))) == 2
        assert len(found(store, "東京" * 10_000)) == 1


def test_the_best_comes_first(url: str) -> None:
    with Store(url) as store:
        store.absorb(said("tea and many other things that nobody asked for", "milk", "tea with milk", "water"))

        assert found(store, "tea milk")[0] == "tea with milk"
        assert len(found(store, "tea milk")) == 3
        assert len(found(store, "tea milk", limit=2)) == 2


def test_without_a_query_the_newest_come_first(url: str) -> None:
    with Store(url) as store:
        store.absorb(said("b", "c", at=20.0, id="batch-1"))
        store.absorb(said("a", at=10.0, id="batch-2", fence=2))

        assert found(store, "") == ["c", "b", "a"]
        assert found(store, " \n", limit=2) == ["c", "b"]


async def test_only_one_kind(url: str) -> None:
    async with Memory(url, agents=[Says("x", "tea", kind="semantic"), Says("y", "tea", kind="procedural")]) as memory:
        await memory.absorb(said("x"))

        for query in ("tea", ""):
            assert [entry.agent for entry in await memory.recall("user-7", query, kind="procedural")] == ["y"]
            assert await memory.recall("user-7", query, kind="episodic") == []


def test_others_never_appear(url: str) -> None:
    # Given users whose names begin alike, hold each other, or are operators
    users = ["u", "U", "u1", "u 1", "u%201", 'u"', "u*", b"\xff", "ü", "u:1", "%", "_", "terms", "owner"]
    with Store(url) as store:
        for number, user in enumerate(users):
            store.absorb(said(f"tea {number}", key=user))

        for number, user in enumerate(users):
            for query in ("tea", "", "tea OR 1", " ".join(map(str, range(20)))):
                assert [entry.content for entry in store.recall(user, query)] == [f"tea {number}"]
        assert store.recall("nobody", "tea") == []


@pytest.mark.parametrize("limit", [0, -1, 1001, 10**9, True, 1.5, "5", None])
def test_a_limit_that_makes_no_sense_is_refused(sqlite_url: str, limit: Any) -> None:
    with Store(sqlite_url) as store, pytest.raises(ConfigurationError, match="pass a limit"):
        store.recall("user-7", "tea", limit)


@pytest.mark.parametrize(
    ("query", "kind", "complaint"),
    [(None, None, "query"), (b"tea", None, "query"), ("tea", "", "kind"), ("tea", "A b", "kind")],
)
def test_other_arguments_that_make_no_sense_are_refused(sqlite_url: str, query: Any, kind: Any, complaint: str) -> None:
    with Store(sqlite_url) as store, pytest.raises(ConfigurationError, match=complaint):
        store.recall("user-7", query, kind=kind)


def test_the_index_follows_every_change(url: str) -> None:
    # Given entries that somebody changes and deletes with SQL
    with Store(url) as store:
        store.absorb(said("tea", "milk"))
        execute(
            url,
            "update holdfast_memory_entries set content = 'coffee', terms = 'coffee' where content = 'tea'",
            "delete from holdfast_memory_entries where content = 'milk'",
        )

        assert (found(store, "tea"), found(store, "milk"), found(store, "coffee")) == ([], [], ["coffee"])
    if url.startswith("sqlite"):
        assert rows(url, "select count(*) from holdfast_memory_index where holdfast_memory_index match 'coffee'") == [
            (1,)
        ]


# -- any text ---------------------------------------------------------------------------------------------------------

ALPHABETS = st.one_of(
    st.text(max_size=40),
    st.text(string.ascii_letters + string.digits + " .,-_/@'\"():*&|!<>\\", max_size=40),
    st.text("東京都北海道のカガー々한글กา คุ é ß \u017f İ ﬁ ㍿ ｶﾞ", max_size=20),
)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    where = f"sqlite:///{tmp_path_factory.mktemp('shared')}/memory.db"
    if request.param == "postgresql":
        where = f"postgresql://holdfast@/postgres?host={request.getfixturevalue('postgres').directory}"
    with Store(where) as store:
        yield store


_batches = itertools.count(1)


@settings(max_examples=examples(60, 2000), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=ALPHABETS, query=ALPHABETS)
def test_any_text_is_found_by_each_of_its_terms_and_any_query_is_answered(shared: Store, text: str, query: str) -> None:
    number = next(_batches)
    user = f"user-{number}"
    shared.commit(said(id=f"batch-{number}", key=user), "x", [NewEntry("semantic", text)])

    for term in query_terms(text):
        asked = term.words[0] + "".join(word[1:] for word in term.words[1:])  # the run that the pairs were made of
        assert len(shared.recall(user, asked)) == 1, (term, asked)
    # and a query finds it only if they have something in common
    there = indexed(text)
    common = any(word.startswith(term.words[0]) if term.prefix else word == term.words[0] for term in query_terms(query)
                 for word in there)  # fmt: skip
    if shared.recall(user, query) and query.strip():
        assert common


def test_how_text_is_cut() -> None:
    assert indexed("Green tea, 東京都。北") == ["green", "tea", "東京", "京都", "都", "北"]
    assert query_terms("Tea tea 東京都 京") == [Term(("tea",)), Term(("東京", "京都")), Term(("京",), prefix=True)]
    assert indexed("") == indexed("?! 🍵") == []
