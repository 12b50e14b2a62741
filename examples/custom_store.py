"""A checkpoint store of your own: three methods. This one keeps a small JSON file for each run.

`append` is a compare-and-set: of two owners of one run only one may write the next row. So it compares and
writes under a lock that holds between processes, and a crash leaves the old file or the new one, whole.

Prints:
    load
    send [1, 2, 3]
    ['row 0: load', 'row 1: send']
    send [1, 2, 3]
    -> done
    the contract is kept
"""

import asyncio
import fcntl
import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

from pydantic import ConfigDict, TypeAdapter

from cano import CanoError, CheckpointConflictError, CheckpointRow, Context, DoNotRetry, RowKind, Workflow
from cano.testing import checkpoint_store_contract

LOG = TypeAdapter(list[CheckpointRow], config=ConfigDict(ser_json_bytes="base64", val_json_bytes="base64"))


class JsonStore:
    """Its short work on the disk has no await in it, so a cancel cannot come in between."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    async def append(self, workflow_id: str, row: CheckpointRow) -> None:
        with self.locked():
            rows = self.read(workflow_id)
            if row.sequence != (rows[-1].sequence + 1 if rows else 0):
                raise CheckpointConflictError(f"row {row.sequence} is not the next one of its log")
            kept = [old for old in rows if old.sequence != row.replaces or old.kind is not RowKind.STEP_CURSOR]
            with Path(self.directory, "new").open("wb") as file:
                file.write(LOG.dump_json([*kept, row]))
                file.flush()
                os.fsync(file.fileno())
            os.replace(file.name, self.path(workflow_id))

    async def load_run(self, workflow_id: str) -> list[CheckpointRow]:
        with self.locked():
            return self.read(workflow_id)

    async def clear(self, workflow_id: str) -> None:
        with self.locked():
            self.path(workflow_id).unlink(missing_ok=True)

    def locked(self) -> IO[str]:
        file = Path(self.directory, "lock").open("w")  # noqa: SIM115 - the caller closes it
        fcntl.flock(file, fcntl.LOCK_EX)  # given back when the file is closed, or with the process
        return file

    def read(self, workflow_id: str) -> list[CheckpointRow]:
        path = self.path(workflow_id)
        return LOG.validate_json(path.read_bytes()) if path.exists() else []

    def path(self, workflow_id: str) -> Path:  # an id may hold what a file name may not
        return Path(self.directory, hashlib.sha256(workflow_id.encode()).hexdigest())


async def load(ctx: Context[list[int]]) -> str:
    print("load")
    ctx.data = [1, 2, 3]
    return "send"


async def send(ctx: Context[list[int]]) -> str:
    print("send", ctx.data)
    if outages := ctx["outages"]:
        raise outages.pop()
    return "done"


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        store = JsonStore(Path(directory))
        outages = [DoNotRetry()]
        workflow = Workflow[str, list[int]](checkpoint_store=store, resources={"outages": outages})
        workflow.register("load", load).register("send", send).add_exit_state("done")
        with suppress(CanoError):
            await workflow.orchestrate("load", workflow_id="run-1", data=[])
        print([f"row {row.sequence}: {row.state}" for row in await store.load_run("run-1")])
        print("->", await workflow.resume_from("run-1"))
        await checkpoint_store_contract(store)  # every clause in cano.recovery.store
        print("the contract is kept")


if __name__ == "__main__":
    asyncio.run(main())
