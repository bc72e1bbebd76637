"""Workers that share one stream: start it several times. Orders of one account are billed one after the other."""

import postroad


async def bill(order: postroad.Message) -> None:
    print("billed", order["account"], order["total"], flush=True)


async def main() -> None:
    async with postroad.connect() as client:
        orders = await client.subscribe("type = 'bill'", name="billing", shared=True, key="account", start="earliest")
        await orders.run(bill, concurrency=8)  # until Ctrl-C; what a worker leaves goes to the others


postroad.run(main())
