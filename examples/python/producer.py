"""Sends events: one with its order, a batch, and one to whoever asked for it.

Environment: DATABASE_URL, or libpq's PG*.
"""

import os

import psycopg
from psycopg.types.json import Json

INSERT = """
insert into postrider.deliveries (endpoint, event_type, event_id, payload) values (%s, %s, %s, %s)
on conflict (endpoint, event_id) do nothing
"""


def create_order(db, customer, total_cents):
    # In the transaction that makes the event true: both are committed, or neither.
    with db.transaction():
        (order_id,) = db.execute(
            "insert into orders (customer, total_cents) values (%s, %s) returning id", (customer, total_cents)
        ).fetchone()
        event = {"type": "order.created", "data": {"id": order_id, "total_cents": total_cents}}
        db.execute(INSERT, ("crm", "order.created", f"order-{order_id}-created", Json(event)))
    return order_id


def announce_prices(db, list_no, prices):
    # The event ids name the work, not the run: a job that runs again sends nothing twice.
    rows = [
        (
            "crm",
            "price.changed",
            f"prices-{list_no}-{item}",
            Json({"type": "price.changed", "data": {"item": item, "cents": cents}}),
        )
        for item, cents in prices.items()
    ]
    with db.transaction(), db.cursor() as cursor:
        cursor.executemany(INSERT, rows)
        return cursor.rowcount


def publish_opening(db, shop_no, city):
    # To every endpoint that asked for such events, whatever their names.
    event = {"type": "shop.opened", "data": {"city": city}}
    (endpoints,) = db.execute(
        "select postrider.publish(%s, %s, %s)", ("shop.opened", Json(event), f"shop-opened-{shop_no}")
    ).fetchone()
    return endpoints


with psycopg.connect(os.environ.get("DATABASE_URL", ""), autocommit=True) as db:
    db.execute("""
        create table if not exists orders (
            id          bigint generated always as identity primary key,
            customer    text not null,
            total_cents integer not null
        )""")
    print(f"order {create_order(db, 'Ada', 4200)} is queued")
    print(f"{announce_prices(db, 7, {'lamp': 1900, 'desk': 24900, 'chair': 9900})} prices are queued")
    print(f"published to {publish_opening(db, 3, 'Zürich')} endpoints")
