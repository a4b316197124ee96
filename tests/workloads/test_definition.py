"""What may be a workload, and what stands for the parts that it lacks."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ValidationError

from bench.errors import InputError
from bench.workloads import Definition
from bench.workloads.definition import FromFunction, define


class Parts:
    def build(self) -> str:
        return "model"

    def dataset(self, seed: int) -> list[int]:
        return [seed]


class OfSignature(Parts):
    def __init__(self, width: int, rate=0.5, kinds=("a",), deep: Literal["no", "yes"] = "no", **rest: Any) -> None:
        self.given = (width, rate, kinds, deep)


@dataclasses.dataclass
class OfDataclass(Parts):
    width: int
    names: list[str] = dataclasses.field(default_factory=lambda: ["a"])


@dataclasses.dataclass
class Sizes:
    width: int = 2


class WithDataclass(Parts):
    Config = Sizes

    def __init__(self, config: Sizes) -> None:
        self.config = config


class WithPydantic(Parts):
    class Config(BaseModel, frozen=True, extra="forbid"):
        width: int = 3

    def __init__(self, config: Config) -> None:
        self.config = config


def of_function(width: int, depth=2):
    return f"{width}x{depth}", [1], "a loss"


def made(definition: Definition, **fields: object) -> Any:
    return definition.create(definition.Config.model_validate(fields))


def test_a_class_alone_is_a_workload() -> None:
    definition = define("m:Parts", Parts)
    assert (dict(definition.presets), definition.auto_preset, definition.units) == ({}, None, None)
    assert isinstance(made(definition), Parts)


def test_fields_are_the_parameters_of_a_class() -> None:
    definition = define("m:OfSignature", OfSignature)
    assert list(definition.Config.model_fields) == ["width", "rate", "kinds", "deep"]
    assert made(definition, width=4, rate=1).given == (4, 1.0, ("a",), "no")


@pytest.mark.parametrize(
    "wrong", [{}, {"width": "x"}, {"width": 4, "rate": "x"}, {"width": 4, "deep": "maybe"}, {"width": 4, "depth": 1}]
)
def test_fields_are_checked_by_their_type_or_default(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        made(define("m:OfSignature", OfSignature), **wrong)


def test_a_dataclass_is_a_workload_and_its_factories_make_new_values() -> None:
    definition = define("m:OfDataclass", OfDataclass)
    first, second = made(definition, width=1), made(definition, width=1)
    assert first == OfDataclass(1, ["a"])
    assert first.names is not second.names


@pytest.mark.parametrize(("kind", "width"), [(WithDataclass, 2), (WithPydantic, 3)])
def test_a_config_is_given_as_a_whole(kind: type, width: int) -> None:
    definition = define("m:kind", kind)
    assert made(definition).config == kind.Config()  # type: ignore[attr-defined]
    assert made(definition).config.width == width
    assert made(definition, width=9).config.width == 9


def test_a_function_returns_the_parts() -> None:
    task = made(define("m:of_function", of_function), width=4)
    assert isinstance(task, FromFunction)
    assert (task.build(), task.dataset(1), task.loss) == ("4x2", [1], "a loss")
    assert made(define("m:of_function", of_function), width=4).dataset(1) == [1]  # asked for first


@pytest.mark.parametrize(
    ("returned", "words"), [(lambda: "model", "returned a str"), (lambda: (1, 2, 3, 4), "returned 4 parts")]
)
def test_a_function_that_returns_something_else_is_said(returned: Callable[[], Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        made(define("m:f", returned)).build()


def returns(width: "int" = 3, kinds: "list[str] | None" = None) -> "Nowhere":  # type: ignore[name-defined]  # noqa: F821
    return "model", [1]


def test_what_a_function_returns_may_have_a_type_that_is_not_imported() -> None:
    definition = define("m:returns", returns)
    assert made(definition, width="4", kinds=["a"]).build() == "model"
    with pytest.raises(ValidationError):
        made(definition, width="x")


def with_class(x: object = print) -> None: ...
def by_position(x, /) -> None: ...
def hidden(_x=1) -> None: ...
def undefined(x: "Nowhere" = 1) -> None: ...  # type: ignore[name-defined,assignment]  # noqa: F821


def missing(x: "dataclasses.Nothing" = 1) -> None: ...  # type: ignore[name-defined,assignment]
def no_code(x: "a b" = 1) -> None: ...  # type: ignore[valid-type,syntax]  # noqa: F722


def untyped(x=print) -> None: ...


@pytest.mark.parametrize("function", [by_position, hidden, undefined, missing, no_code, untyped])
def test_a_parameter_that_cannot_be_a_field_is_named(function: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match=r"m:f' is not a workload: its (parameter '_?x'|signature) cannot be a field"):
        define("m:f", function)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (object, "it has no build, dataset"),
        (3, "it has no build, dataset"),
        (type("NoSamples", (), {"build": None}), "it has no dataset"),
        (type("Units", (Parts,), {"units": "Block"}), "its units are not a tuple of class names"),
        (type("Cost", (Parts,), {"cost_options": ("width")}), "its cost_options are not a tuple of field names"),
        (type("Presets", (Parts,), {"presets": []}), "its presets are not a mapping"),
        (type("Config", (Parts,), {"Config": dict, "__init__": lambda self, config: None}), "neither a pydantic model"),
        (type("NoInit", (Parts,), {"Config": Sizes}), "it cannot be created from its config"),
    ],
)
def test_what_is_no_workload_is_said(found: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        define("m:found", found)


class Drawn(Parts):
    def build(self) -> str:
        return "another model"

    def draw(self, name: str, seed: int, start: int, out: Any) -> None: ...


class Inherited(Drawn):
    units = ("Block",)


class Changed(Drawn):
    def build(self) -> str:
        return super().build() + ", changed"


class Plots(Parts):
    def build(self) -> Any: ...

    def draw(self, axes: Any) -> None: ...


@pytest.mark.parametrize(
    ("found", "draws"),
    [(Parts, False), (of_function, False), (Drawn, True), (Inherited, True), (Changed, False), (Plots, False)],
)
def test_weights_are_drawn_in_place_if_the_class_that_builds_says_how(found: Any, draws: bool) -> None:
    assert define("m:f", found).draws == draws


def test_cost_options_may_be_a_list() -> None:
    assert define("m:found", type("Listed", (Parts,), {"cost_options": ["width"]})).cost_options == ("width",)
