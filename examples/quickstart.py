import asyncio

from holdfast import Holdfast


async def main() -> None:
    async with Holdfast("embedded:") as hf:  # or redis://…, or nothing with HOLDFAST_URL set
        async with hf.lock("report:42", ttl=30, wait=10) as lease:
            print(f"nobody else has it; fence {lease.fence}")
            # send the fence with the write: await db.execute("... where fence < :fence", fence=lease.fence)


asyncio.run(main())
