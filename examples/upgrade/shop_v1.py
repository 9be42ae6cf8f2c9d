"""Monday's code: what each user spends in a minute, and an archive of every order.

penstock run shop_v1:shop --state state
"""

import penstock as ps

ORDER = "id LONG, user STRING, amount DOUBLE, at TIMESTAMP"


@ps.pipeline("shop")
def shop(p: ps.Pipeline) -> None:
    """Sum orders by user and minute."""
    orders = p.read("orders", ps.files.Source("orders", format="json", schema=ORDER))
    rows = orders.with_watermark("at", delay="5 seconds")
    totals = rows.group_by("user", ps.tumbling("1 minute")).agg("totals", ps.agg.sum("amount").alias("amount"))
    totals.write("totals-out", ps.files.Sink("totals", format="json"))
    orders.write("archive", ps.files.Sink("archive", format="json"))
