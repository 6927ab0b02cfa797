# Sends events: one with its order, a batch, and one to whoever asked for it.
# Environment: DATABASE_URL, or libpq's PG*.
require "json"
require "pg"

def create_order(db, customer, total_cents)
  # In the transaction that makes the event true: both are committed, or neither.
  db.transaction do
    id = db.exec_params("insert into orders (customer, total_cents) values ($1, $2) returning id",
                        [customer, total_cents]).getvalue(0, 0).to_i
    event = { type: "order.created", data: { id: id, total_cents: total_cents } }
    db.exec_params("insert into postrider.deliveries (endpoint, event_type, event_id, payload) values ($1, $2, $3, $4)",
                   ["crm", "order.created", "order-#{id}-created", event.to_json])
    id
  end
end

def announce_prices(db, list_no, prices)
  # One statement for all. The event ids name the work, not the run: a job that runs again sends nothing twice.
  ids = prices.keys.map { |item| "prices-#{list_no}-#{item}" }
  payloads = prices.map { |item, cents| { type: "price.changed", data: { item: item, cents: cents } }.to_json }
  array = PG::TextEncoder::Array.new
  db.exec_params(<<~SQL, [array.encode(ids), array.encode(payloads)]).cmd_tuples
    insert into postrider.deliveries (endpoint, event_type, event_id, payload)
    select 'crm', 'price.changed', event_id, payload::json from unnest($1::text[], $2::text[]) as event (event_id, payload)
    on conflict (endpoint, event_id) do nothing
  SQL
end

def publish_opening(db, shop_no, city)
  # To every endpoint that asked for such events, whatever their names.
  event = { type: "shop.opened", data: { city: city } }
  db.exec_params("select postrider.publish($1, $2, $3)", ["shop.opened", event.to_json, "shop-opened-#{shop_no}"])
    .getvalue(0, 0)
end

db = PG.connect(ENV.fetch("DATABASE_URL", ""))
db.exec("set client_min_messages = warning")
db.exec(<<~SQL)
  create table if not exists orders (
    id          bigint generated always as identity primary key,
    customer    text not null,
    total_cents integer not null
  )
SQL
puts "order #{create_order(db, "Ada", 4200)} is queued"
puts "#{announce_prices(db, 7, { "lamp" => 1900, "desk" => 24_900, "chair" => 9900 })} prices are queued"
puts "published to #{publish_opening(db, 3, "Zürich")} endpoints"
