"""One test for many values that are looked at in microseconds, where a test for each would cost milliseconds."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any


def each(name: str, values: Iterable[Any], shown: Callable[[Any], str] = str) -> Callable[[Callable[..., None]], Any]:
    """As `parametrize`, for a plain function: all values are looked at, and all that are wrong are in the report."""
    looked_at = list(values)

    def decorate(check: Callable[..., None]) -> Any:
        signature = inspect.signature(check)
        assert not inspect.iscoroutinefunction(check), "it would never be awaited"
        assert name in signature.parameters

        @functools.wraps(check)
        def test(**fixtures: Any) -> None:
            assert looked_at, f"no {name} to look at"
            wrong = []
            for value in looked_at:
                try:
                    check(**fixtures, **{name: value})
                except AssertionError as error:
                    wrong.append(f"{shown(value)}: {error}")
                except BaseException as error:
                    error.add_note(f"with {name} = {shown(value)}")
                    raise
            assert not wrong, "\n".join(wrong)

        others = [parameter for parameter in signature.parameters.values() if parameter.name != name]
        test.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return test

    return decorate
