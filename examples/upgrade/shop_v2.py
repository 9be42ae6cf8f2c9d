"""Tuesday's code: counts orders too, takes refunds in, has better names, and keeps no archive any more.

penstock run shop_v2:shop --state state --rename totals=spent --allow-non-restored-state
"""

import penstock as ps

ORDER = "id LONG, user STRING, amount DOUBLE, at TIMESTAMP"


@ps.pipeline("shop")  # the same name: it continues the same job
def shop(p: ps.Pipeline) -> None:
    """Sum orders and refunds by user and minute, and count them."""
    refunds = p.read("refunds", ps.files.Source("refunds", format="json", schema=ORDER))  # a new source, even first
    orders = p.read("orders", ps.files.Source("orders", format="json", schema=ORDER))
    both = [rows.with_watermark("at", delay="5 seconds") for rows in (orders, refunds)]  # neither makes the other late
    spent = (
        both[0]
        .union(both[1])
        .group_by("user", ps.tumbling("1 minute"))
        .agg("spent", ps.agg.sum("amount").alias("amount"), ps.agg.count().alias("n"))
    )
    spent.write("totals-out", ps.files.Sink("totals", format="json"))
