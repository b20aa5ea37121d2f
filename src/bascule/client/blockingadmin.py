"""Administering a Bascule cluster, for code without an event loop."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from bascule.client.admin import Admin
from bascule.client.crossing import Run

T = TypeVar("T")
Arguments = ParamSpec("Arguments")


def _waiting(
    method: Callable[Concatenate[Admin, Arguments], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BlockingAdmin, Arguments], T]:
    @functools.wraps(method)
    def wait(admin: BlockingAdmin, /, *args: Arguments.args, **options: Arguments.kwargs) -> T:
        return admin._run(method(admin._admin, *args, **options))

    return wait


class BlockingAdmin:
    """`BlockingClient.admin`: the calls of `Admin`, each waiting for its result. What is called back is called in the
    client's own thread."""

    def __init__(self, admin: Admin, run: Run) -> None:
        self._admin = admin
        self._run = run

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._admin)[1:]}"

    cluster_status = _waiting(Admin.cluster_status)
    describe_stream = _waiting(Admin.describe_stream)
    drain_broker = _waiting(Admin.drain_broker)
    undrain_broker = _waiting(Admin.undrain_broker)
    remove_broker = _waiting(Admin.remove_broker)
    elect_leader = _waiting(Admin.elect_leader)
    resume_stream = _waiting(Admin.resume_stream)
    alter_stream = _waiting(Admin.alter_stream)
    set_hold = _waiting(Admin.set_hold)
    remove_hold = _waiting(Admin.remove_hold)
    delete_records = _waiting(Admin.delete_records)
    list_groups = _waiting(Admin.list_groups)
    describe_group = _waiting(Admin.describe_group)
