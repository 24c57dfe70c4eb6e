"""One definition of every setting: keywords, environment, TOML and documentation say the same."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import ConfigurationError
from holdfast.settings import ENV_PREFIX, Settings
from support.each import each

FIELDS = {field.name: field for field in fields(Settings)}
NUMBERS = [name for name, field in FIELDS.items() if field.type in ("int", "float")]


@pytest.fixture
def toml(tmp_path: Path) -> Any:
    def write(text: str | bytes) -> Path:
        path = tmp_path / "holdfast.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


# -- where a value comes from -----------------------------------------------------------------------------------------


def test_defaults_where_nothing_is_said() -> None:
    assert Settings.load(environ={}) == Settings()


def test_each_source_wins_over_the_one_behind_it(toml: Any) -> None:
    # Given ttl in all three places, retry_for in two, call_timeout in one
    file = toml("ttl = 1\nretry_for = 1\ncall_timeout = 1\n")
    environ = {"HOLDFAST_TTL": "2", "HOLDFAST_RETRY_FOR": "2"}

    loaded = Settings.load({"ttl": 3}, environ=environ, file=file)

    assert (loaded.ttl, loaded.retry_for, loaded.call_timeout) == (3, 2, 1)
    assert loaded.connect_timeout == Settings().connect_timeout


def test_every_setting_can_be_set_by_environment() -> None:
    # Given a value for each that is not its default
    other = {name: other_value(name) for name in FIELDS}
    environ = {ENV_PREFIX + name.upper(): as_text(value) for name, value in other.items()}

    loaded = Settings.load(environ=environ)

    assert {name: getattr(loaded, name) for name in FIELDS} == other


def test_every_setting_can_be_set_in_toml(toml: Any) -> None:
    other = {name: other_value(name) for name in FIELDS}
    lines = [f"{name} = {repr(value) if isinstance(value, str) else as_text(value)}" for name, value in other.items()]

    loaded = Settings.load(environ={}, file=toml("\n".join(lines)))

    assert {name: getattr(loaded, name) for name in FIELDS} == other


def test_every_setting_can_be_passed() -> None:
    other = {name: other_value(name) for name in FIELDS}

    loaded = Settings.load(other, environ={})

    assert {name: getattr(loaded, name) for name in FIELDS} == other


def other_value(name: str) -> Any:
    default = FIELDS[name].default
    if isinstance(default, bool):
        return not default
    if isinstance(default, str):
        return default + "x"
    return type(default)(default / 2)


def as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_a_table_of_its_own_in_a_shared_file(toml: Any) -> None:
    file = toml('[other]\nanything = 1\n[holdfast]\nttl = 7\nprefix = "app"\n')

    loaded = Settings.load(environ={}, file=file)

    assert (loaded.ttl, loaded.prefix) == (7, "app")


def test_the_environment_names_the_file(toml: Any) -> None:
    assert Settings.load(environ={"HOLDFAST_CONFIG": str(toml("ttl = 7"))}).ttl == 7


def test_a_file_that_is_passed_wins_over_the_one_the_environment_names(toml: Any, tmp_path: Path) -> None:
    assert Settings.load(environ={"HOLDFAST_CONFIG": str(tmp_path / "absent")}, file=toml("ttl = 7")).ttl == 7


def test_the_real_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TTL", "7")

    assert Settings.load().ttl == 7


def test_a_client_takes_settings_as_keywords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TTL", "7")
    monkeypatch.setenv("HOLDFAST_PREFIX", "from-env")

    hf = Holdfast("embedded:", ttl=9)

    assert (hf._core.settings.ttl, hf._core.settings.prefix) == (9, "from-env")


@pytest.mark.parametrize(("text", "value"), [("1", True), ("true", True), ("YES", True), ("0", False), ("No", False)])
def test_words_for_yes_and_no(text: str, value: bool) -> None:
    assert Settings.load(environ={"HOLDFAST_ALLOW_EVICTION": text}).allow_eviction is value


def test_settings_cannot_be_changed_afterwards() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().ttl = 5  # type: ignore[misc]


# -- bad values -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("ttl", "30", "set ttl to a float, not '30'"),
        ("ttl", None, "set ttl to a float, not None"),
        ("ttl", True, "set ttl to a float, not True"),
        ("ttl", math.nan, "set ttl to a float, not nan"),
        ("ttl", math.inf, "set ttl between 0.05 and"),
        ("ttl", 0, "set ttl between 0.05 and"),
        ("ttl", -1.0, "set ttl between 0.05 and"),
        ("max_in_flight", 1.5, "set max_in_flight to a int, not 1.5"),
        ("max_in_flight", True, "set max_in_flight to a int, not True"),
        ("max_in_flight", 0, "set max_in_flight between 1 and"),
        ("check_server", 1, "set check_server to a bool, not 1"),
        ("check_server", "yes", "set check_server to a bool, not 'yes'"),
        ("prefix", b"hf", "set prefix to a str, not b'hf'"),
        ("retry_for", -0.1, "set retry_for between 0 and 3600"),
    ],
)
def test_bad_value_is_refused_with_what_would_do(name: str, value: Any, advice: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Settings.load({name: value}, environ={})

    assert str(refused.value).startswith(advice)


@each("name", NUMBERS)
def test_numbers_are_taken_at_their_limits_and_not_beyond(name: str) -> None:
    low, high = FIELDS[name].metadata["low"], FIELDS[name].metadata["high"]
    step = 1 if FIELDS[name].type == "int" else 0.001

    assert getattr(replace(Settings(), **{name: low}), name) == low
    assert getattr(replace(Settings(), **{name: high}), name) == high
    for beyond in (low - step, high + step):
        with pytest.raises(ConfigurationError, match=f"set {name} between"):
            replace(Settings(), **{name: beyond})


@pytest.mark.parametrize(
    ("name", "text", "advice"),
    [
        ("TTL", "soon", "set HOLDFAST_TTL to a float, not 'soon'"),
        ("TTL", "", "set HOLDFAST_TTL to a float, not ''"),
        ("TTL", "nan", "set ttl to a float, not nan"),
        ("TTL", "1e9", "set ttl between"),
        ("MAX_IN_FLIGHT", "1.5", "set HOLDFAST_MAX_IN_FLIGHT to a int, not '1.5'"),
        ("CHECK_SERVER", "maybe", "set HOLDFAST_CHECK_SERVER to a bool, not 'maybe'"),
        ("CHECK_SERVER", "", "set HOLDFAST_CHECK_SERVER to a bool, not ''"),
    ],
)
def test_bad_variable_is_refused_by_its_name(name: str, text: str, advice: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Settings.load(environ={ENV_PREFIX + name: text})

    assert str(refused.value).startswith(advice)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("ttl =", "mend the configuration file"),
        ("ttl = 1\nttl = 2", "mend the configuration file"),
        ('ttl = "30"', "set ttl to a float, not '30'"),
        ("[holdfast]\nttl = true", "set ttl to a float, not True"),
        (b'prefix = "\xff"', "mend the configuration file"),
        ("holdfast = 3", "mend the configuration file"),
    ],
)
def test_bad_file_is_refused(toml: Any, text: str | bytes, advice: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Settings.load(environ={}, file=toml(text))

    assert str(refused.value).startswith(advice)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "absent.toml"

    with pytest.raises(ConfigurationError, match=r"mend the configuration file .*absent\.toml"):
        Settings.load(environ={"HOLDFAST_CONFIG": str(missing)})


@pytest.mark.parametrize("prefix", ["", "a b", "{x}"])
def test_a_prefix_that_keys_cannot_have_is_refused_by_the_client(prefix: str) -> None:
    with pytest.raises(ConfigurationError, match="pass a prefix"):
        Holdfast("embedded:", prefix=prefix)


# -- unknown names ----------------------------------------------------------------------------------------------------


def test_unknown_keyword_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ConfigurationError, match="remove 'tll': there is no such setting") as refused:
        Holdfast("embedded:", tll=5)

    assert all(name in str(refused.value) for name in FIELDS)


@pytest.mark.parametrize("text", ["tll = 5", "[holdfast]\ntll = 5"])
def test_unknown_name_in_a_file_is_refused_with_the_file(toml: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"remove 'tll' from .*holdfast\.toml: there is no such setting"):
        Settings.load(environ={}, file=toml(text))


def test_variables_of_others_are_left_alone() -> None:
    # HOLDFAST_URL and HOLDFAST_CONFIG are read elsewhere; somebody else's names are none of ours.
    assert Settings.load(environ={"HOLDFAST_URL": "embedded:", "TTL": "5", "HOLDFASTTTL": "5"}) == Settings()


# -- what the documentation is made from ------------------------------------------------------------------------------


@each("name", FIELDS)
def test_every_setting_is_documented(name: str) -> None:
    doc = FIELDS[name].metadata["doc"]

    assert doc[0].isupper(), "a sentence"
    assert doc.endswith("."), "a sentence"
    assert len(doc) > 20
    assert doc not in {field.metadata["doc"] for other, field in FIELDS.items() if other != name}


@each("name", NUMBERS)
def test_every_number_has_limits_around_its_default(name: str) -> None:
    field = FIELDS[name]

    assert field.metadata["low"] <= field.default <= field.metadata["high"]
    assert field.metadata["low"] < field.metadata["high"]


@each("name", FIELDS)
def test_every_default_is_of_its_type(name: str) -> None:
    assert type(FIELDS[name].default).__name__ == FIELDS[name].type


def test_documented_defaults_of_the_design_hold() -> None:
    s = Settings()

    assert (s.ttl, s.ttl_short, s.ttl_medium, s.ttl_long) == (30, 300, 1800, 7200)
