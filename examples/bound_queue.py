"""A bound queue: each message that matches a filter becomes one job, for one of any number of workers.

When it runs, publish something: postroad publish -a type=invoice -a total=99.5
"""

import postroad


async def pay(job: postroad.Delivery) -> None:
    print("paid", job.attributes["total"], flush=True)


async def main() -> None:
    async with postroad.connect() as client:
        payments = client.queue("payments")
        await payments.bind("type = 'invoice' AND total > 0")
        print("a new binding begins within about two seconds", flush=True)
        await payments.work(pay)  # until Ctrl-C


postroad.run(main())
