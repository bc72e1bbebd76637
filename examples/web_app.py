"""Publish from a web handler: one client for the whole application. Run it with `uvicorn examples.web_app:app`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import postroad


@asynccontextmanager
async def lifespan(_app: Starlette) -> AsyncIterator[dict[str, postroad.Client]]:
    async with postroad.connect() as client:
        yield {"client": client}


async def order(request: Request) -> JSONResponse:
    message_id = await request.state.client.publish({"type": "order"}, json=await request.json())
    return JSONResponse({"id": str(message_id)}, status_code=201)


app = Starlette(routes=[Route("/orders", order, methods=["POST"])], lifespan=lifespan)
