"""From the user's class or function to a workload with all parts: what stands for a part that is missing."""

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from inspect import Parameter
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, JsonValue, create_model
from pydantic.errors import PydanticUserError

from bench.errors import InputError, WorkloadError
from bench.workloads.protocol import Definition, Workload

STRICT = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())
GUIDE = "`bench guide workloads` shows one"


def define(name: str, found: Any) -> Definition:
    """The workload that ``found`` is.

    Args:
        name: as in the matrix, for messages.
        found: a class with ``build`` and ``dataset``, or a function that returns the model, its samples and, if
            ``forward`` returns no loss, a loss.

    Raises:
        InputError: it is neither, or one of its parts is not what the protocol says.
    """
    if not inspect.isclass(found) and callable(found):
        config = _config_of(name, found)

        def create(values: BaseModel) -> Workload:
            return cast(Workload, FromFunction(name, partial(found, **_arguments(values))))

        return _definition(name, found, config, create)
    missing = [part for part in ("build", "dataset") if not hasattr(found, part)]
    if missing:
        raise _refused(name, f"it has no {', '.join(missing)}", GUIDE)
    own = getattr(found, "Config", None)
    if own is None:
        return _definition(name, found, _config_of(name, found), lambda values: found(**_arguments(values)))
    _check_takes_config(name, found)
    if dataclasses.is_dataclass(own):
        make = cast(type, own)
        return _definition(name, found, _config_of(name, make), lambda values: found(make(**_arguments(values))))
    if not (isinstance(own, type) and issubclass(own, BaseModel) and own is not BaseModel):
        raise _refused(
            name,
            "its Config is neither a pydantic model of its own nor a dataclass",
            "give it a class Config(pydantic.BaseModel) with a field for each option; it may have none",
        )
    return _definition(name, found, own, found)


def _definition(name: str, found: Any, config: type[BaseModel], create: Callable[[BaseModel], Workload]) -> Definition:
    presets, units = getattr(found, "presets", {}), getattr(found, "units", None)
    if not (
        isinstance(presets, Mapping) and all(isinstance(fields, Mapping) for fields in presets.values())
    ) or not all(isinstance(preset, str) for preset in presets):
        raise _refused(
            name, "its presets are not a mapping from names to fields of its Config", "`presets = {}` for none"
        )
    if units is not None and not _is_tuple_of_texts(units):
        raise _refused(name, "its units are not a tuple of class names", 'such as `units = ("Block",)`')
    cost_options = getattr(found, "cost_options", ())
    if isinstance(cost_options, str) or not _is_tuple_of_texts(tuple(cost_options)):
        raise _refused(name, "its cost_options are not a tuple of field names", 'such as `cost_options = ("width",)`')
    return Definition(
        Config=config,
        presets=presets,
        auto_preset=getattr(found, "auto_preset", None),
        cpu_memory_limits=getattr(found, "cpu_memory_limits", {}),
        parameter_counts=getattr(found, "parameter_counts", None),
        units=units,
        cost_options=tuple(cost_options),
        draws=_draws(found),
        create=create,
    )


def _is_tuple_of_texts(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(part, str) for part in value)


def _draws(found: Any) -> bool:
    """Whether it has `Workload.draw`, beside the build of the same class; and no other method of this name."""
    if _defines(found, "draw") is None or _defines(found, "draw") is not _defines(found, "build"):
        return False
    try:
        inspect.signature(found.draw).bind("self", "name", 0, 0, "out")
    except TypeError:
        return False
    return True


def _defines(found: Any, method: str) -> type | None:
    """The class, of ``found`` and its bases, that defines the method; None for a function, which has none."""
    bases = inspect.getmro(found) if inspect.isclass(found) else ()
    return next((base for base in bases if method in vars(base)), None)


class FromFunction:
    """What a function returned, as a workload: the model, its samples and maybe a loss."""

    def __init__(self, name: str, function: Callable[[], Any]) -> None:
        self._name, self._function = name, function
        self._samples: Any = None
        self.loss: Callable[[Any, Any], Any] | None = None

    def build(self) -> Any:
        parts = self._function()
        if not isinstance(parts, tuple) or len(parts) not in (2, 3):
            returned = f"{len(parts)} parts" if isinstance(parts, tuple) else f"a {type(parts).__name__}"
            raise WorkloadError(
                f"the function of {self._name!r} returned {returned}", allowed="model, samples or model, samples, loss"
            )
        model, self._samples, *loss = parts
        self.loss = loss[0] if loss else None
        return model

    def dataset(self, seed: int) -> Any:  # noqa: ARG002  the function has drawn its samples, by torch's own seed
        if self._samples is None:
            self.build()
        return self._samples


def _check_takes_config(name: str, found: Any) -> None:
    with suppress(ValueError):  # a class written in C may have no signature
        try:
            inspect.signature(found).bind("config")
        except TypeError as error:
            raise _refused(
                name, f"it cannot be created from its config: {error}", "give it an __init__(self, config)"
            ) from error


def _refused(name: str, why: str, fix: str) -> InputError:
    return InputError(f"{name!r} is not a workload: {why}", field="workload.name", fix=fix)


def _config_of(name: str, made: Callable[..., Any]) -> type[BaseModel]:
    """A pydantic model with a field for each parameter of ``made``.

    A parameter's annotation is the type of its field. Without one, it is the type of the default.

    Args:
        name: of the workload, for messages.

    Raises:
        InputError: a parameter cannot be a field.
    """

    def make(**given: Any) -> type[BaseModel]:
        with warnings.catch_warnings(action="ignore"):  # of names such as `json`, which a BaseModel has, too
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
    except (PydanticUserError, NameError, AttributeError, SyntaxError, TypeError, ValueError) as error:
        which = f"its parameter {field!r}" if field else "its signature"
        raise InputError(
            f"{name!r} is not a workload: {which} cannot be a field of a matrix: {str(error).partition('. ')[0]}",
            field="workload.name",
            fix="annotate it with a type of JSON values, such as int or list[str]",
        ) from error


def _arguments(config: BaseModel) -> dict[str, Any]:
    """The fields of ``config`` as the arguments of what it was made for."""
    return {name: getattr(config, name) for name in type(config).model_fields}


def _parameters(made: Callable[..., Any]) -> Iterable[Parameter]:
    """With their annotations. What a function returns may be annotated with a name that only type checkers import."""
    try:
        return inspect.signature(made, eval_str=True).parameters.values()
    except (NameError, AttributeError, SyntaxError):
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
