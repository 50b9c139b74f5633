"""What a configuration says about environments: data only, quick to import."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

Vectorization: TypeAlias = Literal["auto", "native", "sync", "process"]


class EnvConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which environments to act in; its fields are arguments of `make_env`."""

    id: Annotated[
        str, msgspec.Meta(min_length=1, description="a registered id, as CartPole-v1, or module:Class")
    ]
    num_envs: Annotated[int, msgspec.Meta(gt=0, description="environments stepped together")] = 8
    vectorization: Annotated[
        Vectorization,
        msgspec.Meta(
            description="auto: the quickest way that keeps the spaces; native: the environment's own "
            "vectorised class; sync: one after the other; process: each in a process"
        ),
    ] = "auto"
    wrappers: Annotated[
        list[str | dict[str, Any]],
        msgspec.Meta(
            description="around each environment, innermost first: a name of gymnasium.wrappers, "
            "module:Class, or {wrapper: name, argument: value}"
        ),
    ] = []
    plugins: Annotated[
        list[str], msgspec.Meta(description="modules to import first because they register ids")
    ] = []
    kwargs: Annotated[dict[str, Any], msgspec.Meta(description="arguments of the environment itself")] = {}
