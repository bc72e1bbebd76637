"""Request and response: any number of programs may serve the queue; each request is answered by one of them."""

import asyncio

import postroad


async def add(request: postroad.Delivery) -> int:
    return sum(request.json(list[int]))


async def main() -> None:
    async with postroad.connect() as client:
        serving = asyncio.create_task(client.queue("add").serve(add))
        answer = await client.queue("add").request(json=[2, 2], timeout=5)
        print("2 + 2 =", answer.json(int))
        serving.cancel()
        await asyncio.wait([serving])


postroad.run(main())
