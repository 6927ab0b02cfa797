<?php
// Sends events: one with its order, a batch, and one to whoever asked for it.
// Environment: DATABASE_URL, or libpq's PG*.
declare(strict_types=1);

// The functions of pgsql warn and return false; nothing here may go on after that.
set_error_handler(fn (int $level, string $message) => throw new ErrorException($message, 0, $level));

function create_order(PgSql\Connection $db, string $customer, int $total_cents): int
{
    // In the transaction that makes the event true: both are committed, or neither. An exception ends the script, the
    // connection, and so the transaction.
    pg_query($db, 'begin');
    $order = pg_query_params($db,
        'insert into orders (customer, total_cents) values ($1, $2) returning id', [$customer, $total_cents]);
    $id = (int) pg_fetch_result($order, 0, 0);
    $event = ['type' => 'order.created', 'data' => ['id' => $id, 'total_cents' => $total_cents]];
    pg_query_params($db,
        'insert into postrider.deliveries (endpoint, event_type, event_id, payload) values ($1, $2, $3, $4)',
        ['crm', 'order.created', "order-$id-created", json_encode($event, JSON_THROW_ON_ERROR)]);
    pg_query($db, 'commit');
    return $id;
}

function announce_prices(PgSql\Connection $db, int $list_no, array $prices): int
{
    // One statement for all. The event ids name the work, not the run: a job that runs again sends nothing twice.
    $rows = $values = [];
    foreach ($prices as $item => $cents) {
        $event = ['type' => 'price.changed', 'data' => ['item' => $item, 'cents' => $cents]];
        $rows[] = sprintf("('crm', 'price.changed', $%d, $%d)", count($values) + 1, count($values) + 2);
        array_push($values, "prices-$list_no-$item", json_encode($event, JSON_THROW_ON_ERROR));
    }
    $queued = pg_query_params($db,
        'insert into postrider.deliveries (endpoint, event_type, event_id, payload) values ' . implode(', ', $rows)
        . ' on conflict (endpoint, event_id) do nothing', $values);
    return pg_affected_rows($queued);
}

function publish_opening(PgSql\Connection $db, int $shop_no, string $city): int
{
    // To every endpoint that asked for such events, whatever their names.
    $event = ['type' => 'shop.opened', 'data' => ['city' => $city]];
    $published = pg_query_params($db, 'select postrider.publish($1, $2, $3)',
        ['shop.opened', json_encode($event, JSON_THROW_ON_ERROR), "shop-opened-$shop_no"]);
    return (int) pg_fetch_result($published, 0, 0);
}

$db = pg_connect(getenv('DATABASE_URL') ?: '');
pg_query($db, <<<'SQL'
    create table if not exists orders (
        id          bigint generated always as identity primary key,
        customer    text not null,
        total_cents integer not null
    )
    SQL);
echo 'order ', create_order($db, 'Ada', 4200), " is queued\n";
echo announce_prices($db, 7, ['lamp' => 1900, 'desk' => 24900, 'chair' => 9900]), " prices are queued\n";
echo 'published to ', publish_opening($db, 3, 'Zürich'), " endpoints\n";
