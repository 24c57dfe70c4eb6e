"""Long-term memory: what absorbed batches leave behind, in SQL. Needs `holdfast[memory]`.

    async with Memory("sqlite:///memory.db") as memory:
        await memory.absorb(batch)                     # once for each batch and agent, however often it is delivered
        await memory.recall("user-7", "green tea")

`Store` is the same for blocking code.
"""

try:
    import sqlalchemy  # noqa: F401
except ImportError:
    raise ImportError(
        "pip install '.[memory]' in Holdfast's clone, or '.[monitor]' for monitors: SQLAlchemy is missing"
    ) from None

from holdfast.memory.agents import Agent, Verbatim
from holdfast.memory.batch import AbsorbableBatch, BatchMessage, BatchPair
from holdfast.memory.budget import Budget
from holdfast.memory.chat import ChatModelAgent
from holdfast.memory.entry import Entry, Forgotten, NewEntry
from holdfast.memory.failures import BudgetExceeded, ModelError
from holdfast.memory.memory import Memory
from holdfast.memory.monitor import MonitorStore
from holdfast.memory.runs import ArchivedRun, RunArchive
from holdfast.memory.store import Store

__all__ = [
    "AbsorbableBatch",
    "Agent",
    "ArchivedRun",
    "BatchMessage",
    "BatchPair",
    "Budget",
    "BudgetExceeded",
    "ChatModelAgent",
    "Entry",
    "Forgotten",
    "Memory",
    "ModelError",
    "MonitorStore",
    "NewEntry",
    "RunArchive",
    "Store",
    "Verbatim",
]
