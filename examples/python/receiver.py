"""Receives webhooks: verifies each request, does its work once, and answers.

Environment: WEBHOOK_SECRET (whsec_...), PORT (9000), DATABASE_URL or libpq's PG*.
"""

import base64
import hashlib
import hmac
import json
import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg

KEY = base64.b64decode(os.environ["WEBHOOK_SECRET"].removeprefix("whsec_"))
DATABASE = os.environ.get("DATABASE_URL", "")
LARGEST_BODY = 1 << 20
TOLERANCE = 5 * 60


def verified(webhook_id, timestamp, signatures, body):
    # An old request may be somebody's recording of it.
    if not (timestamp.isascii() and timestamp.isdigit() and abs(time.time() - int(timestamp)) <= TOLERANCE):
        return False
    # Over the very bytes: a body that was parsed and written again has others.
    signed = f"{webhook_id}.{timestamp}.".encode("latin-1") + body
    expected = b"v1," + base64.b64encode(hmac.digest(KEY, signed, hashlib.sha256))
    # There are several while a secret is being changed; one that fits is enough.
    return any(hmac.compare_digest(expected, one.encode("latin-1")) for one in signatures.split(" "))


def receive(headers, body):
    """Returns the status code of the answer. 5xx: it comes again; 4xx: it does not."""
    webhook_id = headers.get("webhook-id", "")
    if not webhook_id or not verified(
        webhook_id, headers.get("webhook-timestamp", ""), headers.get("webhook-signature", ""), body
    ):
        return 401
    try:
        text = body.decode()
        event_type = json.loads(text)["type"]
    except (ValueError, KeyError, TypeError):
        return 400
    # A connection for each request keeps this short; a pool (psycopg_pool) is faster.
    with psycopg.connect(DATABASE) as db:
        # The id is noted in the transaction that does the work: both are committed, or neither.
        new = db.execute("insert into seen_webhooks (webhook_id) values (%s) on conflict do nothing", (webhook_id,))
        if new.rowcount == 1:
            work(db, str(event_type), text)
    return 204


def work(db, event_type, text):
    """Yours. What takes longer than some seconds should only be queued here."""
    db.execute("insert into received_events (event_type, body) values (%s, %s)", (event_type, text))


class Receiver(BaseHTTPRequestHandler):
    timeout = 15  # for whoever connects and says nothing

    def do_POST(self):
        length = self.headers.get("content-length", "")
        if not length.isdigit() or int(length) > LARGEST_BODY:
            self.answer(413)
            return
        body = self.rfile.read(int(length))
        try:
            self.answer(receive(self.headers, body))
        except psycopg.Error as error:
            self.log_error("%s", error)
            self.answer(503)

    def answer(self, status):
        self.send_response(status)
        self.end_headers()


with psycopg.connect(DATABASE) as db:
    db.execute("""
        create table if not exists seen_webhooks (
            webhook_id  text primary key,
            received_at timestamptz not null default now()  -- older than your longest retry: can go
        )""")
    db.execute("create table if not exists received_events (event_type text not null, body text not null)")

ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "9000"))), Receiver).serve_forever()
