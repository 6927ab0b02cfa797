// Sends events: one with its order, a batch, and one to whoever asked for it.
// Environment: DATABASE_URL, or PG*.
import pg from 'pg'

async function createOrder(db, customer, totalCents) {
  // In the transaction that makes the event true: both are committed, or neither.
  await db.query('begin')
  try {
    const { rows } = await db.query(
      'insert into orders (customer, total_cents) values ($1, $2) returning id', [customer, totalCents])
    const id = Number(rows[0].id)
    const event = { type: 'order.created', data: { id, total_cents: totalCents } }
    await db.query(
      'insert into postrider.deliveries (endpoint, event_type, event_id, payload) values ($1, $2, $3, $4)',
      ['crm', 'order.created', `order-${id}-created`, JSON.stringify(event)])
    await db.query('commit')
    return id
  } catch (error) {
    await db.query('rollback')
    throw error
  }
}

async function announcePrices(db, listNo, prices) {
  // One statement for all. The event ids name the work, not the run: a job that runs again sends nothing twice.
  const items = Object.entries(prices)
  const { rowCount } = await db.query(
    `insert into postrider.deliveries (endpoint, event_type, event_id, payload)
     select 'crm', 'price.changed', event_id, payload::json from unnest($1::text[], $2::text[]) as event (event_id, payload)
     on conflict (endpoint, event_id) do nothing`,
    [items.map(([item]) => `prices-${listNo}-${item}`),
      items.map(([item, cents]) => JSON.stringify({ type: 'price.changed', data: { item, cents } }))])
  return rowCount
}

async function publishOpening(db, shopNo, city) {
  // To every endpoint that asked for such events, whatever their names.
  const event = { type: 'shop.opened', data: { city } }
  const { rows } = await db.query('select postrider.publish($1, $2, $3) as endpoints',
    ['shop.opened', JSON.stringify(event), `shop-opened-${shopNo}`])
  return rows[0].endpoints
}

const db = new pg.Client({ connectionString: process.env.DATABASE_URL })
await db.connect()
await db.query(`
  create table if not exists orders (
    id          bigint generated always as identity primary key,
    customer    text not null,
    total_cents integer not null
  )`)
console.log(`order ${await createOrder(db, 'Ada', 4200)} is queued`)
console.log(`${await announcePrices(db, 7, { lamp: 1900, desk: 24900, chair: 9900 })} prices are queued`)
console.log(`published to ${await publishOpening(db, 3, 'Zürich')} endpoints`)
await db.end()
