//! Sends events: one with its order, a batch, and one to whoever asked for it.
//!
//! Environment: `DATABASE_URL`.
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a program of somebody who uses Postrider"
)]

use anyhow::Context as _;
use serde_json::{Value, json};
use tokio_postgres::types::Json;
use tokio_postgres::{Client, NoTls};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let url = std::env::var("DATABASE_URL").context("DATABASE_URL")?;
    let (mut db, connection) = tokio_postgres::connect(&url, NoTls).await?;
    // It does the work of the client; when it fails, so does the client's next statement.
    let connection = tokio::spawn(connection);
    let create = "create table if not exists orders (
                    id          bigint generated always as identity primary key,
                    customer    text not null,
                    total_cents integer not null
                  )";
    db.batch_execute(create).await?;

    let order = create_order(&mut db, "Ada", 4200).await?;
    println!("order {order} is queued");
    let queued =
        announce_prices(&db, 7, &[("lamp", 1900), ("desk", 24900), ("chair", 9900)]).await?;
    println!("{queued} prices are queued");
    let endpoints = publish_opening(&db, 3, "Zürich").await?;
    println!("published to {endpoints} endpoints");

    drop(db);
    Ok(connection.await??)
}

/// In the transaction that makes the event true: both are committed, or neither.
async fn create_order(db: &mut Client, customer: &str, total_cents: i32) -> anyhow::Result<i64> {
    let insert_order = "insert into orders (customer, total_cents) values ($1, $2) returning id";
    let insert_event = "insert into postrider.deliveries (endpoint, event_type, event_id, payload)
                        values ('crm', 'order.created', $1, $2)";

    // Dropped before the commit, it is rolled back.
    let transaction = db.transaction().await?;
    let row = transaction
        .query_one(insert_order, &[&customer, &total_cents])
        .await?;
    let id: i64 = row.try_get(0)?;
    let event = json!({"type": "order.created", "data": {"id": id, "total_cents": total_cents}});
    let event_id = format!("order-{id}-created");
    transaction
        .execute(insert_event, &[&event_id, &Json(event)])
        .await?;
    transaction.commit().await?;
    Ok(id)
}

/// One statement for all. The event ids name the work, not the run: a job that runs again sends nothing twice.
async fn announce_prices(db: &Client, list: i32, prices: &[(&str, i32)]) -> anyhow::Result<u64> {
    let insert = "insert into postrider.deliveries (endpoint, event_type, event_id, payload)
                  select 'crm', 'price.changed', event_id, payload
                    from unnest($1::text[], $2::json[]) as event (event_id, payload)
                  on conflict (endpoint, event_id) do nothing";

    let ids: Vec<String> = prices
        .iter()
        .map(|(item, _)| format!("prices-{list}-{item}"))
        .collect();
    let payloads: Vec<Json<Value>> = prices
        .iter()
        .map(|(item, cents)| {
            Json(json!({"type": "price.changed", "data": {"item": item, "cents": cents}}))
        })
        .collect();
    Ok(db.execute(insert, &[&ids, &payloads]).await?)
}

/// To every endpoint that asked for such events, whatever their names.
async fn publish_opening(db: &Client, shop: i32, city: &str) -> anyhow::Result<i32> {
    let publish = "select postrider.publish('shop.opened', $1, $2)";

    let event = json!({"type": "shop.opened", "data": {"city": city}});
    let event_id = format!("shop-opened-{shop}");
    let row = db.query_one(publish, &[&Json(event), &event_id]).await?;
    Ok(row.try_get(0)?)
}
