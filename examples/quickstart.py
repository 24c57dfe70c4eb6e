import asyncio
import os

from holdfast import Holdfast


async def main() -> None:
    # An embedded server unless HOLDFAST_URL names one: redis://…, redis+sentinel://…, redis+cluster://…
    async with Holdfast(os.environ.get("HOLDFAST_URL", "embedded:")) as hf:
        async with hf.lock("report:42", ttl=30, wait=10) as lease:
            print(f"nobody else has it; fence {lease.fence}")
            # send the fence with the write: await db.execute("... where fence < :fence", fence=lease.fence)


asyncio.run(main())
