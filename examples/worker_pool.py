"""A worker pool: eight jobs at a time, failed jobs again after a growing pause, and dead letters. Start it several times."""

import postroad


async def resize(job: postroad.Delivery) -> None:
    image = job.json(dict[str, str])["image"]
    if not image.endswith(".png"):
        raise ValueError(f"{image} is not an image")
    print("resized", image, flush=True)


async def main() -> None:
    async with postroad.connect() as client:
        jobs = client.queue("resize")
        for image in ("cat.png", "notes.txt", "dog.png"):
            await jobs.put(json={"image": image})
        await jobs.work(resize, concurrency=8, retries=2, backoff=0.1)  # until Ctrl-C; failures end in the queue resize.dead


postroad.run(main())
