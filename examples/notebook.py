"""A notebook script: each `# %%` begins a cell. The client lives until it is closed, across cells."""

# %% Connect.
from datetime import timedelta

import pyarrow as pa

import postroad.sync

client = postroad.sync.connect()

# %% Publish measurements, as columns.
with client.publisher() as publisher:
    publisher.publish_many({"sensor": ["roof", "cellar"], "celsius": [31.5, 14.0]}, [b"", b""])

# %% Read the warm ones of the last hour, as an Arrow table: `.to_pandas()` makes a DataFrame of it.
warm = client.subscribe("celsius > 25", start=timedelta(hours=1))
print(pa.Table.from_pylist([message.attributes for message in warm.fetch(1000, timeout=5)]))

# %% Close.
client.close()
