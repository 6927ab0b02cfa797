# Receives webhooks: verifies each request, does its work once, and answers.
# Environment: WEBHOOK_SECRET (whsec_...), PORT (9000), DATABASE_URL or libpq's PG*.
require "json"
require "openssl"
require "pg"
require "webrick"

KEY = ENV.fetch("WEBHOOK_SECRET").delete_prefix("whsec_").unpack1("m0")
DATABASE = ENV.fetch("DATABASE_URL", "")
LARGEST_BODY = 1 << 20
TOLERANCE = 5 * 60

def verified?(request, body)
  id, timestamp, signatures =
    %w[webhook-id webhook-timestamp webhook-signature].map { |name| request[name].to_s }
  # An old request may be somebody's recording of it.
  return false if id.empty? || !timestamp.match?(/\A\d+\z/) || (Time.now.to_i - timestamp.to_i).abs > TOLERANCE

  # Over the very bytes: a body that was parsed and written again has others.
  expected = "v1," + [OpenSSL::HMAC.digest("sha256", KEY, "#{id}.#{timestamp}.".b + body)].pack("m0")
  # There are several while a secret is being changed; one that fits is enough.
  signatures.split(" ").any? { |one| OpenSSL.secure_compare(expected, one) }
end

# The status code of the answer. 5xx: it comes again; 4xx: it does not.
def receive(request)
  return 405 unless request.request_method == "POST"
  return 413 if request["content-length"].to_i > LARGEST_BODY

  body = request.body.to_s.b
  return 401 unless verified?(request, body)

  event = parse(body)
  return 400 unless event.is_a?(Hash) && event["type"]

  # A connection for each request keeps this short; a pool is faster.
  db = PG.connect(DATABASE)
  # The id is noted in the transaction that does the work: both are committed, or neither.
  db.transaction do
    seen = db.exec_params("insert into seen_webhooks (webhook_id) values ($1) on conflict do nothing",
                          [request["webhook-id"]])
    work(db, event, body) if seen.cmd_tuples == 1
  end
  204
rescue PG::Error => e
  warn e.message
  503
ensure
  db&.close
end

# Yours. What takes longer than some seconds should only be queued here.
def work(db, event, body)
  db.exec_params("insert into received_events (event_type, body) values ($1, $2)",
                 [event["type"].to_s, body.dup.force_encoding("UTF-8")])
end

def parse(body)
  JSON.parse(body.dup.force_encoding("UTF-8"))
rescue JSON::ParserError
  nil
end

db = PG.connect(DATABASE)
db.exec("set client_min_messages = warning")
db.exec(<<~SQL)
  create table if not exists seen_webhooks (
    webhook_id  text primary key,
    received_at timestamptz not null default now()  -- older than your longest retry: can go
  );
  create table if not exists received_events (event_type text not null, body text not null)
SQL
db.close

server = WEBrick::HTTPServer.new(BindAddress: "127.0.0.1", Port: ENV.fetch("PORT", "9000").to_i, AccessLog: [])
server.mount_proc("/") { |request, response| response.status = receive(request) }
%w[INT TERM].each { |signal| trap(signal) { server.shutdown } }
server.start
