// Receives webhooks: verifies each request, does its work once, and answers.
// Environment: WEBHOOK_SECRET (whsec_...), PORT (9000), DATABASE_URL or PG*.
import { createHmac, timingSafeEqual } from 'node:crypto'
import { createServer } from 'node:http'
import pg from 'pg'

const key = Buffer.from(process.env.WEBHOOK_SECRET.replace(/^whsec_/, ''), 'base64')
const largestBody = 1 << 20
const tolerance = 5 * 60

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL })
// Without a listener, a connection that is lost while it is idle would end the process.
pool.on('error', error => console.error(error.message))

function verified(headers, body) {
  const { 'webhook-id': id, 'webhook-timestamp': timestamp, 'webhook-signature': signatures } = headers
  if (!id || !signatures || !/^\d+$/.test(timestamp)) return false
  // An old request may be somebody's recording of it.
  if (Math.abs(Date.now() / 1000 - Number(timestamp)) > tolerance) return false
  // Over the very bytes: a body that was parsed and written again has others.
  const mac = createHmac('sha256', key).update(`${id}.${timestamp}.`, 'latin1').update(body).digest('base64')
  const expected = Buffer.from(`v1,${mac}`)
  // There are several while a secret is being changed; one that fits is enough.
  return signatures.split(' ').some(one => {
    const given = Buffer.from(one)
    return given.length === expected.length && timingSafeEqual(given, expected)
  })
}

// Resolves to the status code of the answer. 5xx: it comes again; 4xx: it does not.
async function receive(request) {
  if (request.method !== 'POST') return 405
  const body = await read(request)
  if (body === undefined) return 413
  if (!verified(request.headers, body)) return 401
  const event = parse(body)
  if (event?.type === undefined) return 400

  const db = await pool.connect()
  let broken
  try {
    await db.query('begin')
    // The id is noted in the transaction that does the work: both are committed, or neither.
    const { rowCount } = await db.query(
      'insert into seen_webhooks (webhook_id) values ($1) on conflict do nothing', [request.headers['webhook-id']])
    if (rowCount === 1) await work(db, event, body)
    await db.query('commit')
    return 204
  } catch (error) {
    broken = error
    throw error
  } finally {
    // A connection that failed is closed, and its transaction with it.
    db.release(broken)
  }
}

// Yours. What takes longer than some seconds should only be queued here.
async function work(db, event, body) {
  await db.query('insert into received_events (event_type, body) values ($1, $2)',
    [String(event.type), body.toString()])
}

async function read(request) {
  const chunks = []
  let length = 0
  for await (const chunk of request) {
    length += chunk.length
    if (length > largestBody) return undefined
    chunks.push(chunk)
  }
  return Buffer.concat(chunks)
}

function parse(body) {
  try {
    return JSON.parse(body.toString())
  } catch {
    return undefined
  }
}

await pool.query(`
  create table if not exists seen_webhooks (
    webhook_id  text primary key,
    received_at timestamptz not null default now()  -- older than your longest retry: can go
  )`)
await pool.query('create table if not exists received_events (event_type text not null, body text not null)')

createServer(async (request, response) => {
  let status = 503
  try {
    status = await receive(request)
  } catch (error) {
    console.error(error.message)
  }
  response.writeHead(status).end()
}).listen(Number(process.env.PORT ?? 9000), '127.0.0.1')
