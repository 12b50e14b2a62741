"""A web service with a stream in the background: `uvicorn --factory examples.asgi_service:create_app`.

The app's lifespan starts the run and drains it at shutdown: numbers that wait in an open window are
committed, and the next start resumes the run. Here the program is its own client and needs no server.

Prints:
    POST /add/20 -> 202
    POST /add/22 -> 202
    flush [20, 22], the sum is 42
    the service is down
    POST /add/30 -> 202
    flush [30], the sum is 72
    the service is down
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message

from cano import CloseReason, Context, SqliteCheckpointStore, StreamTask, Window, Workflow


class AddUp(StreamTask[str, int, int, None]):
    window = Window(count=100, seconds=60)

    def __init__(self) -> None:
        self.inbox = asyncio.Queue[int]()  # cannot be read again from a cursor, as a broker can

    async def open(self, ctx: Context[int], cursor: None) -> AsyncIterator[int]:
        while True:
            yield await self.inbox.get()

    async def process_item(self, ctx: Context[int], item: int) -> tuple[int, None]:
        self.inbox.task_done()
        return item, None

    async def flush_window(self, ctx: Context[int], outputs: list[int]) -> None:
        ctx.data += sum(outputs)
        print(f"flush {outputs}, the sum is {ctx.data}")

    async def on_close(self, ctx: Context[int], reason: CloseReason) -> str:
        return "done"


def create_app(database: str = "sums.db") -> Starlette:
    task = AddUp()
    workflow = Workflow[str, int](checkpoint_store=SqliteCheckpointStore(database))
    workflow.register("add-up", task).add_exit_state("done")

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        run = workflow.orchestrate("add-up", workflow_id="sum-1", data=0, if_exists="resume")
        background = asyncio.create_task(run)
        try:
            yield
        finally:
            background.cancel()  # the run drains before it lets itself be cancelled
            with suppress(asyncio.CancelledError):  # had it failed, its error would surface here
                await background

    async def add(request: Request) -> Response:
        await task.inbox.put(request.path_params["number"])
        async with asyncio.timeout(5):
            await task.inbox.join()  # until it is in the window, so that a drain commits it
        return Response(status_code=202)

    return Starlette(routes=[Route("/add/{number:int}", add, methods=["POST"])], lifespan=lifespan)


async def post(app: Starlette, path: str) -> None:
    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            print(f"POST {path} -> {message['status']}")

    await app({"type": "http", "method": "POST", "path": path, "headers": []}, receive, send)


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        for numbers in ([20, 22], [30]):
            app = create_app(f"{directory}/sums.db")
            async with app.router.lifespan_context(app):
                for number in numbers:
                    await post(app, f"/add/{number}")
            print("the service is down")


if __name__ == "__main__":
    asyncio.run(main())
