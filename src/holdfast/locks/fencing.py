"""Guards: the check at the resource without which no lock service excludes a holder that was paused.

`SqlGuard` keeps the highest fence of each resource in a table of your database and refuses lower ones, in the same
transaction as your write. For data on the Valkey or Redis server itself use `Holdfast.guarded`.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from holdfast.errors import ConfigurationError, Fenced

_STYLES = {
    "qmark": ("?", "?"),
    "format": ("%s", "%s"),
    "numeric_dollar": ("$1", "$2"),
    "named": (":resource", ":fence"),
}


class SqlGuard:
    """Works on SQLite 3.24+ and PostgreSQL, through sqlite3, aiosqlite, psycopg, asyncpg or SQLAlchemy.

        guard = SqlGuard()
        guard.create(connection)                       # once
        with connection:                               # one transaction: the check and the write
            guard.check(connection, "report:42", lease.fence)
            connection.execute("update reports set ...")

    `check` raises Fenced when a higher fence was seen: roll back and stop. The row stays locked until the transaction
    ends, so two holders cannot pass it at the same time. `acheck` and `acreate` are the same for async connections.
    """

    def __init__(self, table: str = "holdfast_fences") -> None:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]{0,126}", table):
            raise ConfigurationError(f"pass a plain table name, not {table!r}")
        self.table = table

    @property
    def schema(self) -> str:
        """The statement that makes the table, for your migrations."""
        return (
            f"CREATE TABLE IF NOT EXISTS {self.table} "
            "(resource VARCHAR(1024) NOT NULL PRIMARY KEY, fence BIGINT NOT NULL)"
        )

    def statement(self, paramstyle: str) -> str:
        """Stores the fence unless a higher one is there; it changes one row, or none if refused."""
        if paramstyle not in _STYLES:
            raise ConfigurationError(f"pass paramstyle as one of {', '.join(_STYLES)}, not {paramstyle!r}")
        resource, fence = _STYLES[paramstyle]
        return (
            f"INSERT INTO {self.table} (resource, fence) VALUES ({resource}, {fence}) "  # noqa: S608 - checked name
            "ON CONFLICT (resource) DO UPDATE SET fence = excluded.fence "
            f"WHERE {self.table}.fence <= excluded.fence"
        )

    def create(self, connection: Any) -> None:
        """Make the table if it is not there. Commit afterwards."""
        connection.execute(_text(connection, self.schema))

    async def acreate(self, connection: Any) -> None:
        """`create` for async connections."""
        await _awaited(connection.execute(_text(connection, self.schema)))

    def check(self, connection: Any, resource: str, fence: int) -> None:
        """Refuse a fence lower than the highest seen; remember this one otherwise. Inside your transaction."""
        self._judge(connection.execute(*self._call(connection, resource, fence)), resource, fence)

    async def acheck(self, connection: Any, resource: str, fence: int) -> None:
        """`check` for async connections and sessions."""
        result = await _awaited(connection.execute(*self._call(connection, resource, fence)))
        self._judge(result, resource, fence)

    def _call(self, connection: Any, resource: str, fence: int) -> tuple[Any, ...]:
        style = _style(connection)
        statement = self.statement(style)
        if style == "named":
            return _text(connection, statement), {"resource": resource, "fence": fence}
        if style == "numeric_dollar":
            return statement, resource, fence
        return statement, (resource, fence)

    @staticmethod
    def _judge(result: Any, resource: str, fence: int) -> None:
        # asyncpg answers "INSERT 0 1"; everybody else has a rowcount.
        changed = int(result.rsplit(" ", 1)[1]) if isinstance(result, str) else result.rowcount
        if changed == 0:
            raise Fenced(
                f"roll back and stop: fence {fence} is older than one already seen, so a newer holder has written",
                fence=fence, operation="sql guard", key=resource,
            )  # fmt: skip


def _style(connection: Any) -> str:
    module = type(connection).__module__.partition(".")[0]
    styles = {
        "sqlite3": "qmark", "aiosqlite": "qmark", "psycopg": "format", "psycopg2": "format",
        "asyncpg": "numeric_dollar", "sqlalchemy": "named",
    }  # fmt: skip
    if module not in styles:
        raise ConfigurationError(
            f"pass a connection, cursor or session of {', '.join(styles)}, not of {module}; "
            "for others run SqlGuard.statement(paramstyle) yourself and treat 0 changed rows as Fenced"
        )
    return styles[module]


def _text(connection: Any, statement: str) -> Any:
    if _style(connection) != "named":
        return statement
    from sqlalchemy import text

    return text(statement)


async def _awaited(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result
