"""Count the messages a broker has kept, by symbol, with Spark.

    python examples/spark_counts.py --data /var/lib/postroad/broker-1
    python examples/spark_counts.py --url postroad://127.0.0.1:7400 --where "price > 100"

Needs the extra `spark` and Java 17 or newer.
"""

from __future__ import annotations

import argparse
import contextlib

from postroad import spark as postroad_spark


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--data", help="the data directory of a broker")
    place.add_argument("--url", help="a running broker")
    parser.add_argument("--where", default="true", help="which messages, as a condition of SQL")
    parser.add_argument("--master", default="local[*]")
    given = parser.parse_args()
    with postroad_spark.running(given.master, app="counts") as spark:
        options = {"url": given.url} if given.url else {}
        messages = postroad_spark.messages(spark, given.data, **options)
        for row in messages.where(given.where).groupBy("symbol").count().orderBy("symbol").collect():
            print(row["symbol"], row["count"])


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C
        main()
