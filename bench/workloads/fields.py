"""The fields of a workload without a pydantic Config: the parameters of a class, a dataclass or a function."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from inspect import Parameter
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, create_model
from pydantic.errors import PydanticUserError

from bench.errors import InputError

STRICT = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


def config_of(name: str, made: Callable[..., Any]) -> type[BaseModel]:
    """A pydantic model with a field for each parameter of ``made``.

    A parameter's annotation is the type of its field. Without one, it is the type of the default.

    Args:
        name: of the workload, for messages.

    Raises:
        InputError: a parameter cannot be a field.
    """

    def make(**given: Any) -> type[BaseModel]:
        return create_model("Config", __config__=STRICT, __module__=made.__module__, **given)

    field = None
    try:
        fields: dict[str, Any] = {}
        for parameter in _parameters(made):
            field = parameter.name
            if parameter.kind is Parameter.POSITIONAL_ONLY:
                raise TypeError("it can only be given by its position")
            if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
                continue
            if field.startswith("_"):
                raise TypeError("its name begins with an underscore")
            fields[field] = _field(made, parameter)
            alone = make(**{field: fields[field]})  # to name the wrong one
            if not alone.__pydantic_complete__:
                raise TypeError(f"the type {parameter.annotation!r} is not defined")
        return make(**fields)
    except (PydanticUserError, NameError, TypeError, ValueError) as error:
        which = f"its parameter {field!r}" if field else "its signature"
        raise InputError(
            f"{name!r} is not a workload: {which} cannot be a field of a matrix: {str(error).partition('. ')[0]}",
            field="workload.name",
            fix="annotate it with a type of JSON values, such as int or list[str]",
        ) from error


def arguments(config: BaseModel) -> dict[str, Any]:
    """The fields of ``config`` as the arguments of what it was made for."""
    return {name: getattr(config, name) for name in type(config).model_fields}


def _parameters(made: Callable[..., Any]) -> Iterable[Parameter]:
    """With their annotations. What a function returns may be annotated with a name that only type checkers import."""
    try:
        return inspect.signature(made, eval_str=True).parameters.values()
    except NameError:
        return inspect.signature(made).parameters.values()


def _field(made: Callable[..., Any], parameter: Parameter) -> tuple[Any, Any]:
    """Type and default, as pydantic takes them."""
    default = ... if parameter.default is Parameter.empty else parameter.default
    if dataclasses.is_dataclass(made):
        [of_dataclass] = (field for field in dataclasses.fields(made) if field.name == parameter.name)
        if of_dataclass.default_factory is not dataclasses.MISSING:
            default = Field(default_factory=of_dataclass.default_factory)
    if parameter.annotation is not Parameter.empty:
        return parameter.annotation, default
    return (JsonValue if default is ... or default is None else type(default)), default
