"""The statement behind recall. What matches any term is found, the best first; other users' entries never are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import TSQUERY, TSVECTOR

from holdfast.errors import ConfigurationError
from holdfast.memory.database import Database
from holdfast.memory.entry import check_kind
from holdfast.memory.schema import Tables
from holdfast.memory.words import Term, query_terms

MOST_RESULTS = 1000


def check_recall(query: object, limit: object, kind: object) -> None:
    """Raises ConfigurationError for what can never be answered."""
    if not isinstance(query, str):
        raise ConfigurationError(f"pass the query as text, not {type(query).__name__}")
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MOST_RESULTS:
        raise ConfigurationError(f"pass a limit from 1 to {MOST_RESULTS}, not {limit!r:.60}")
    if kind is not None:
        check_kind(kind)


def rows_of(tables: Tables) -> sa.Select[Any]:
    """Entries with where they came from."""
    entries, checkpoints = tables.entries, tables.checkpoints
    return sa.select(
        entries.c.id, entries.c.user_key, entries.c.kind, entries.c.content, entries.c.data, entries.c.position,
        entries.c.at, checkpoints.c.buffer, checkpoints.c.batch, checkpoints.c.agent, checkpoints.c.fence,
    ).join_from(entries, checkpoints, checkpoints.c.id == entries.c.checkpoint)  # fmt: skip


def recall_statement(
    database: Database, tables: Tables, user: str, query: str, limit: int, kind: str | None
) -> sa.Select[Any] | None:
    """None when nothing can match: a query that is not empty and has nothing in it to look for."""
    entries = tables.entries
    statement = rows_of(tables).where(entries.c.user_key == user)
    if kind is not None:
        statement = statement.where(entries.c.kind == kind)
    newest = (entries.c.at.desc(), entries.c.id.desc())
    if not query.strip():
        return statement.order_by(*newest).limit(limit)
    terms = query_terms(query)
    if not terms:
        return None
    ranked = _by_fts5(statement, tables, user, terms) if database.sqlite else _by_tsquery(statement, tables, terms)
    return ranked.order_by(*newest).limit(limit)


def _by_fts5(statement: sa.Select[Any], tables: Tables, user: str, terms: Sequence[Term]) -> sa.Select[Any]:
    index = sa.table(f"{tables.prefix}_index", sa.column("rowid"))
    name: sa.ColumnElement[Any] = sa.literal_column(index.name)
    # The user is a term too, so that the index itself leaves the others out; it has no weight in the rank.
    owner = user.encode("ascii").hex()
    match = f'{{owner}} : "{owner}" AND {{terms}} : ({" OR ".join(map(_quoted, terms))})'
    return (
        statement.join(index, index.c.rowid == tables.entries.c.id)
        .where(name.op("MATCH")(match))
        .order_by(sa.func.bm25(name, 0.0, 1.0))
    )


def _quoted(term: Term) -> str:
    words = " ".join(term.words)  # in quotes nothing is an operator, and a word has no quotes in it
    return f'"{words}" *' if term.prefix else f'"{words}"'


def _by_tsquery(statement: sa.Select[Any], tables: Tables, terms: Sequence[Term]) -> sa.Select[Any]:
    search: sa.ColumnElement[Any] = sa.literal_column(f"{tables.entries.name}.search", TSVECTOR)
    wanted = sa.cast(" | ".join(map(_following, terms)), TSQUERY)
    return statement.where(search.op("@@")(wanted)).order_by(sa.func.ts_rank(search, wanted).desc())


def _following(term: Term) -> str:
    # In quotes nothing is an operator, and a word has no quotes in it, as they separate words.
    return " <-> ".join(f"'{word}'" for word in term.words) + (":*" if term.prefix else "")
