<?php
// Receives webhooks: verifies each request, does its work once, and answers. Any web server with PHP may run it.
// From the command line it makes its tables.
// Environment: WEBHOOK_SECRET (whsec_...), DATABASE_URL or libpq's PG*.
declare(strict_types=1);

const LARGEST_BODY = 1 << 20;
const TOLERANCE = 5 * 60;

// The functions of pgsql warn and return false; nothing here may go on after that.
set_error_handler(fn (int $level, string $message) => throw new ErrorException($message, 0, $level));

function verified(string $body): bool
{
    $id = $_SERVER['HTTP_WEBHOOK_ID'] ?? '';
    $timestamp = $_SERVER['HTTP_WEBHOOK_TIMESTAMP'] ?? '';
    // An old request may be somebody's recording of it.
    if ($id === '' || !ctype_digit($timestamp) || abs(time() - (int) $timestamp) > TOLERANCE) {
        return false;
    }
    $secret = getenv('WEBHOOK_SECRET');
    $key = base64_decode(substr($secret, strlen('whsec_')), true);
    if (!str_starts_with($secret, 'whsec_') || !$key) {
        throw new RuntimeException('WEBHOOK_SECRET must be whsec_ and base64');
    }
    // Over the very bytes: a body that was parsed and written again has others.
    $expected = 'v1,' . base64_encode(hash_hmac('sha256', "$id.$timestamp.$body", $key, true));
    // There are several while a secret is being changed; one that fits is enough.
    foreach (explode(' ', $_SERVER['HTTP_WEBHOOK_SIGNATURE'] ?? '') as $one) {
        if (hash_equals($expected, $one)) {
            return true;
        }
    }
    return false;
}

// The status code of the answer. 5xx: it comes again; 4xx: it does not.
function receive(): int
{
    if ($_SERVER['REQUEST_METHOD'] !== 'POST') {
        return 405;
    }
    $body = file_get_contents('php://input', false, null, 0, LARGEST_BODY + 1);
    if (strlen($body) > LARGEST_BODY) {
        return 413;
    }
    if (!verified($body)) {
        return 401;
    }
    $event = json_decode($body, true);
    if (!is_string($event['type'] ?? null)) {
        return 400;
    }
    $db = connect();
    // The id is noted in the transaction that does the work: both are committed, or neither. An exception ends the
    // script, the connection, and so the transaction.
    pg_query($db, 'begin');
    $seen = pg_query_params($db,
        'insert into seen_webhooks (webhook_id) values ($1) on conflict do nothing', [$_SERVER['HTTP_WEBHOOK_ID']]);
    if (pg_affected_rows($seen) === 1) {
        work($db, $event, $body);
    }
    pg_query($db, 'commit');
    return 204;
}

// Yours. What takes longer than some seconds should only be queued here.
function work(PgSql\Connection $db, array $event, string $body): void
{
    pg_query_params($db, 'insert into received_events (event_type, body) values ($1, $2)', [$event['type'], $body]);
}

function connect(): PgSql\Connection
{
    return pg_connect(getenv('DATABASE_URL') ?: '');
}

if (PHP_SAPI === 'cli') {
    pg_query(connect(), <<<'SQL'
        create table if not exists seen_webhooks (
            webhook_id  text primary key,
            received_at timestamptz not null default now()  -- older than your longest retry: can go
        );
        create table if not exists received_events (event_type text not null, body text not null)
        SQL);
    exit;
}
try {
    http_response_code(receive());
} catch (Throwable $error) {
    error_log($error->getMessage());
    http_response_code(503);
}
