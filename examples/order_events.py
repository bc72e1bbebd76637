"""Order events with a durable consumer: while it does not run, its messages wait for it; each comes once."""

import postroad


async def main() -> None:
    async with postroad.connect() as client:
        orders = await client.subscribe("type = 'order' AND total > 100", name="invoices")
        for number, total in enumerate([20.0, 250.0, 120.5], 1):
            await client.publish({"type": "order", "total": total}, json={"order": number})
        while message := await orders.get(timeout=1):
            print("invoice for order", message.json()["order"], "of", message["total"])
            await message.ack()  # stored: it does not come again, whatever crashes now


postroad.run(main())
