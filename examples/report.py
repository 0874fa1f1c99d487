"""Graphs: one written in Python, one in YAML (report.yaml), over the same tasks.

weft dev examples.report:app                                            a store and a worker in one terminal
weft graph show weekly --app examples.report:app                        a drawing
weft run weekly --app examples.report:app --watch --input '{"cities": ["Paris", "Rome", "Oslo"]}'
python examples/report.py                                               all of it in one process
"""

import asyncio
from pathlib import Path

from weft import Retry, Weft, current

app = Weft("report")

DEGREES = {"Paris": 21, "Rome": 27, "Oslo": 9}


@app.task
async def measure(city: str) -> dict:
    """Asks the thermometer, which does not answer at once in Rome."""
    if city == "Rome" and current().attempt == 1:
        raise Retry("no answer yet", after="50ms")
    return {"city": city, "degrees": DEGREES.get(city, 0)}


@app.task
def publish(title: str, cities: list[str]) -> str:
    """Puts the report together."""
    return f"{title}: {', '.join(cities) or 'none'}"


(weekly,) = app.load(Path(__file__).with_name("report.yaml"))

daily = app.graph("daily", output="${tell}")
daily.task("look", measure, map="input.cities", retries=3, with_={"city": "${item}"})


@daily.node(after="look")
def coldest(look: list[dict]) -> dict:
    """A function that is a node takes what other nodes gave by their names."""
    return min(look, key=lambda one: one["degrees"])


@daily.node(after=coldest, when="coldest.degrees < 10")
async def tell(coldest: dict) -> str:
    return f"Take a coat to {coldest['city']}."


async def main() -> None:
    """Starts both graphs, serves them in this process, and prints what they gave."""
    cities = {"cities": ["Paris", "Rome", "Oslo"]}
    async with app, app.worker():
        print(await (await weekly.start(cities)).result(timeout=30))
        run = await daily.start(cities)
        print(await run.result(timeout=30))
        for id, node in (await run.graph())["nodes"].items():
            print(f"  {id}: {node['status']}")


if __name__ == "__main__":
    asyncio.run(main())
