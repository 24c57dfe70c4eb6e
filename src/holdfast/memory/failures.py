"""The errors that only this room has. They hang on the tree of `holdfast.errors`.

HoldfastError
├── ModelError        the model's endpoint refused, failed or answered nonsense
└── BudgetExceeded    a batch would have cost more than it may
"""

from __future__ import annotations

from holdfast.errors import HoldfastError


class ModelError(HoldfastError):
    """The model's endpoint refused, failed or answered what cannot be used. Nothing was stored by this agent.

    `status` is the HTTP status, or None where there was none.
    """

    def __init__(self, message: str, *, status: int | None = None, **where: object) -> None:
        self.status = status
        super().__init__(message, **where)  # type: ignore[arg-type]


class BudgetExceeded(HoldfastError):
    """The batch would have cost more requests, tokens or seconds than its budget. Nothing was stored by this agent."""
