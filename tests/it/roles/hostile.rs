use std::process::Command;

use tokio_postgres::error::SqlState;

use super::parts::worker_as;
use super::{does, granted, is_denied, refusal, role, session_as, text, url_as};
use crate::support::receiver::{Receiver, Script};
use crate::support::{Database, SOON, wait_until};

#[tokio::test]
async fn a_producer_that_sees_the_event_id_of_a_call_neither_ends_it_nor_reads_its_reply() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    receiver.script([Script::reply(200, &[], b"s3cret")]);
    database.endpoint("shop", &receiver.url("/")).await;
    let producer = granted(&database, "producer").await;
    let (caller, hostile) = (
        session_as(&database, &producer).await,
        session_as(&database, &producer).await,
    );
    let calling = tokio::spawn(async move {
        let call = "call postrider.deliver_now('shop', 't', '{}', '20 s')";
        caller.query_one(call, &[]).await
    });
    let waits = async || {
        database
            .value::<i64>("select count(*) from postrider.deliveries where deadline is not null")
            .await
    };
    wait_until("the call waits", waits, |count| *count == 1, SOON).await;
    let event_id = text(&hostile, "select event_id from postrider.deliveries").await;

    does(
        &hostile,
        &format!("select postrider.deliver_now_end('shop', '{event_id}', 'hostile')"),
    )
    .await;
    let worker = granted(&database, "worker").await;
    let _running = worker_as(&database, &worker, &[]);
    let outcome = calling.await.expect("no panic").expect("it is delivered");
    let (state, _) = refusal(
        &hostile,
        &format!("select * from postrider.deliver_now_outcome('shop', '{event_id}')"),
    )
    .await;

    assert_eq!(outcome.try_get::<_, &[u8]>(1).ok(), Some(&b"s3cret"[..]));
    assert_eq!(state.code(), "PR007", "there is none for that key");
}

/// What a producer makes in a schema that stands before ours in its path.
const TRAPS: &str = "
create function trap.sprung() returns void language plpgsql as $$ begin raise 'sprung as %', current_user; end $$;
create function trap.eq(text, text) returns boolean language plpgsql as $$ begin perform trap.sprung(); end $$;
create function trap.cat(text, text) returns text language plpgsql as $$ begin perform trap.sprung(); end $$;
create function trap.ge(timestamptz, timestamptz) returns boolean language plpgsql as $$ begin perform trap.sprung(); end $$;
create function trap.sha256(bytea) returns bytea language plpgsql as $$ begin perform trap.sprung(); end $$;
create function trap.now() returns timestamptz language plpgsql as $$ begin perform trap.sprung(); end $$;
create function trap.jsonb_path_query_first_tz(jsonb, jsonpath, vars jsonb default '{}', silent boolean default false) returns jsonb
  language plpgsql as $$ begin perform trap.sprung(); end $$;
create operator trap.= (leftarg = text, rightarg = text, function = trap.eq);
create operator trap.|| (leftarg = text, rightarg = text, function = trap.cat);
create operator trap.>= (leftarg = timestamptz, rightarg = timestamptz, function = trap.ge);
create domain trap.text as pg_catalog.text check (value is null);
create temporary table deliveries (id int); create temporary table events (id int); create temporary table subscriptions (id int);
create temporary table endpoints (id int); create temporary table pg_class (id int); create temporary table pg_policy (id int);
set search_path = pg_temp, trap, pg_catalog, postrider";

#[tokio::test]
async fn operators_types_and_tables_of_a_producers_own_are_used_by_nothing_of_ours() {
    let database = Database::private().await;
    database
        .endpoint("shop", "http://127.0.0.1:1/")
        .set("filter", "$.id ? (@ > 1)")
        .await;
    let producer = granted(&database, "producer").await;
    database
        .sql(&format!(
            "create schema trap authorization {producer}; grant temporary on database {} to {producer}",
            database.name()
        ))
        .await;
    let session = session_as(&database, &producer).await;
    does(&session, TRAPS).await;

    does(
        &session,
        "select postrider.publish('t', '{\"id\":2}', 'e1'); select postrider.publish('t', '{\"id\":2}', 'e1');
         select postrider.send('shop', 't', '{}', 'e2'); select postrider.send('shop', 't', '{}', 'e2');
         insert into postrider.deliveries (endpoint, event_type, payload) values ('shop', 't', '{}');
         create table trap.orders (id int);
         do $$ begin perform postrider.watch('trap.orders', condition => 'new.id >= 1'); end $$;
         insert into trap.orders values (1)",
    )
    .await;
    let (state, said) = refusal(
        &session,
        "call postrider.deliver_now('shop', 't', '{}', '50 ms')",
    )
    .await;

    assert_eq!(state.code(), "PR008", "{said}");
    let made: i64 = database
        .value("select count(*) from postrider.deliveries")
        .await;
    assert_eq!(
        made, 4,
        "e1, e2, the row, the call's; the watched row passes no filter"
    );
    let seen: i64 = database
        .value("select count(*) from postrider.events where event_type = 'orders.insert'")
        .await;
    assert_eq!(seen, 1);
}

#[tokio::test]
async fn a_name_with_quotes_and_formats_is_only_a_name() {
    let database = Database::private().await;
    let producer = granted(&database, "producer").await;
    let odd = r#"o'x"%s %1$I $source$ \' -- {"name":1}"#;
    database
        .endpoint(odd, "http://127.0.0.1:1/")
        .set("tenant", odd)
        .set("event_types", vec![odd])
        .await;
    database
        .sql(&format!("create schema app authorization {producer}"))
        .await;
    let session = session_as(&database, &producer).await;
    let literal = format!("'{}'", odd.replace('\'', "''"));
    let table = r#"app."t""%s $source$ '%1$I""#;
    let quoted = format!("'{}'", table.replace('\'', "''"));

    does(
        &session,
        &format!(
            "select postrider.send({literal}, {literal}, '{{}}', {literal});
             select postrider.publish({literal}, '{{}}', event_id => 'p', tenant => {literal});
             create table {table} (id int, \"c\"\"%I'\" text);
             select postrider.watch({quoted}, event_type => {literal}, tenant => {literal}, without => array['c\"%I'''], name => {literal});
             insert into {table} values (1, 's3cret');
             select postrider.unwatch({literal})"
        ),
    )
    .await;
    let (state, said) = refusal(
        &session,
        "call postrider.deliver_now(e'%s\\'; select 1 %I', 't', '{}')",
    )
    .await;

    assert_eq!(
        (state.code(), said.as_str()),
        ("PR004", "there is no endpoint %s'; select 1 %I")
    );
    let made: String = database
        .value("select string_agg(coalesce(d.payload, e.payload)::text, ' ' order by d.id) from postrider.deliveries d left join postrider.events e on e.id = d.event")
        .await;
    assert!(
        made.starts_with("{} {} {\"type\":") && made.contains("\"record\":{\"id\":1}"),
        "{made}"
    );
    let left: i64 = database
        .value("select count(*) from postrider.watches")
        .await;
    assert_eq!(left, 0);
}

#[tokio::test]
async fn an_error_that_a_producer_provokes_says_nothing_of_rows_that_are_not_its_own() {
    let database = Database::fresh().await;
    database
        .endpoint("shop", "http://u:s3cret@127.0.0.1:1/")
        .set("headers", serde_json::json!({"Authorization": "s3cret"}))
        .await;
    database
        .insert("shop", "{\"s3cret\":1}")
        .set("event_id", "e1")
        .set("headers", serde_json::json!({"X": "s3cret"}))
        .await;
    let producer = granted(&database, "producer").await;
    let session = session_as(&database, &producer).await;
    let insert = |columns: &str, values: &str| {
        format!(
            "insert into postrider.deliveries (endpoint, event_type, {columns}) values ('shop', 't', {values})"
        )
    };

    for statement in [
        insert("event_id, payload", "'e1', '{}'"),
        insert("payload, max_retries", "'{}', -1"),
        insert("payload, body", "'{}', 'x'"),
        insert("payload, headers", "'{}', '[]'"),
        "select event_id::int from postrider.deliveries".to_owned(),
        "select postrider.publish('t', '{}', repeat('x', 501))".to_owned(),
        "select postrider.publish(null, '{}')".to_owned(),
        "select postrider.send('nobody', 't', '{}')".to_owned(),
        "lock table postrider.deliveries in share mode".to_owned(),
        "lock table postrider.endpoints in access share mode".to_owned(),
        "select postrider.take_changes('w', 's', 't', 'insert', 't', 'nobody', null, false, true, true, array['[]'::json], array[null::json], array[null::json])".to_owned(),
    ] {
        let error = session.batch_execute(&statement).await;
        let error = error.expect_err(&statement);
        let shown = format!("{:?}", error.as_db_error().expect("the server's"));
        assert!(!shown.contains("s3cret"), "{statement}: {shown}");
    }
}

#[tokio::test]
async fn no_function_in_a_where_shows_a_reader_what_a_view_leaves_out() {
    let database = Database::private().await;
    database
        .endpoint("shop", "http://u:s3cret@example.com/?s3cret")
        .set("headers", serde_json::json!({"Authorization": "s3cret"}))
        .await;
    let reader = granted(&database, "reader").await;
    database
        .sql(&format!(
            "create schema app authorization {reader}; analyze postrider.endpoints"
        ))
        .await;
    let session = session_as(&database, &reader).await;
    does(
        &session,
        "create table app.seen (what text);
         create function app.leak(text) returns boolean language plpgsql cost 0.0000001 as $$ begin insert into app.seen values ($1); return true; end $$;
         select from postrider.endpoint_urls u where app.leak(u.url) and app.leak(u.header_names::text) and app.leak(u::text)",
    )
    .await;

    let seen = text(&session, "select string_agg(what, ' ') from app.seen").await;
    let (_, cast) = refusal(&session, "select url::int from postrider.endpoint_urls").await;

    for shown in [seen, cast] {
        assert!(
            shown.contains("example.com") && !shown.contains("s3cret"),
            "{shown}"
        );
    }
    let statistics = "select count(*)::text from pg_stats where schemaname = 'postrider' and tablename = 'endpoints' and attname in ('url', 'headers')";
    assert_eq!(text(&session, statistics).await, "0");
}

#[tokio::test]
async fn whoever_could_turn_into_another_role_is_not_bound() {
    let database = Database::private().await;
    let open = granted(&database, "producer").await;
    let bound = role(&database, "bound").await;
    let (aside, maker, member) = (
        role(&database, "aside").await,
        role(&database, "maker").await,
        role(&database, "member").await,
    );
    database
        .sql(&format!(
            "alter role {aside} noinherit; grant {open} to {aside}; alter role {maker} createrole;
             select postrider.grant_producer('{bound}', true); grant {bound} to {member}"
        ))
        .await;

    for (role, says) in [(&aside, "which is not bound"), (&maker, "with CREATEROLE")] {
        let statement = format!("select postrider.grant_producer('{role}', true)");
        let (state, said) = refusal(database.client(), &statement).await;
        assert_eq!(
            (state.code(), said.contains(says)),
            ("22023", true),
            "{said}"
        );
    }
    let of_a_bound_one = format!("select postrider.grant_producer('{member}', true)");
    database.sql(&of_a_bound_one).await;
    let nobody = "select postrider.grant_producer(0::oid::regrole)";
    let (state, said) = refusal(database.client(), nobody).await;
    assert_eq!(
        (state, said.as_str()),
        (SqlState::UNDEFINED_OBJECT, "there is no such role")
    );
}

#[tokio::test]
async fn a_change_of_who_is_bound_lets_go_when_others_come_the_other_way() {
    let database = Database::private().await;
    let bound = role(&database, "bound").await;
    let (other, binding) = (database.connect().await, database.connect().await);
    // As a worker's statement does, one table after the other; of two in a deadlock it would be this one that is ended.
    does(
        &other,
        "set deadlock_timeout = '300 ms'; begin; lock table postrider.endpoints in row exclusive mode",
    )
    .await;
    let grant = format!("select postrider.grant_producer('{bound}', true)");
    let granting = tokio::spawn(async move { binding.batch_execute(&grant).await });
    let waits = async || {
        database
            .value::<bool>(
                "select exists (select from pg_locks l join pg_stat_activity a on a.pid = l.pid
                  where a.datname = current_database() and not l.granted and l.mode = 'AccessExclusiveLock')",
            )
            .await
    };
    wait_until("it waits", waits, |waits| *waits, SOON).await;

    does(
        &other,
        "lock table postrider.deliveries in row exclusive mode; commit",
    )
    .await;

    granting.await.expect("no panic").expect("it is bound");
}

#[tokio::test]
async fn who_is_bound_stays_as_it_was_when_the_tables_cannot_be_had() {
    let database = Database::private().await;
    let bound = role(&database, "bound").await;
    let other = database.connect().await;
    does(&other, "begin; select from postrider.endpoints").await;

    let grant = format!("select postrider.grant_reader('{bound}', true)");
    let (state, _) = refusal(database.client(), &grant).await;

    assert_eq!(state, SqlState::LOCK_NOT_AVAILABLE);
    let session = session_as(&database, &bound).await;
    is_denied(&session, "select from postrider.tenant_due_now").await;
    does(&other, "commit").await;
    database.sql(&grant).await;
}

#[tokio::test]
async fn workers_deliver_on_while_roles_are_bound_and_revoked() {
    let database = Database::private().await;
    let worker = granted(&database, "worker").await;
    let bound = role(&database, "bound").await;
    let receiver = Receiver::start().await;
    for tenant in ["a", "b"] {
        database
            .endpoint(tenant, &receiver.url("/"))
            .set("tenant", tenant)
            .await;
    }
    let running = worker_as(&database, &worker, &[]);

    for _ in 0..5 {
        database
            .sql("insert into postrider.deliveries (endpoint, event_type, payload) select e, 't', '{}' from unnest('{a,b}'::text[]) e, generate_series(1, 20)")
            .await;
        database
            .sql(&format!("select postrider.grant_reader('{bound}', true)"))
            .await;
        database
            .sql(&format!("select postrider.revoke('{bound}')"))
            .await;
    }

    let delivered = async || {
        database
            .value::<i64>("select count(*) from postrider.deliveries where status = 'delivered'")
            .await
    };
    wait_until("all arrive", delivered, |count| *count == 200, SOON).await;
    assert_eq!(receiver.requests().len(), 200, "none twice");
    assert!(!running.said().contains("deadlock"), "{}", running.said());
}

#[tokio::test]
async fn what_drop_owned_leaves_of_a_binding_a_revoke_clears_away() {
    let database = Database::private().await;
    let bound = role(&database, "bound").await;
    database
        .sql(&format!(
            "select postrider.grant_reader('{bound}', true); drop owned by {bound}"
        ))
        .await;

    database
        .sql(&format!(
            "select postrider.revoke('{bound}'); drop role {bound}"
        ))
        .await;

    let left: i64 = database
        .value("select (select count(*) from pg_policy) + (select count(*) from pg_class where relrowsecurity)")
        .await;
    assert_eq!(left, 0);
}

#[tokio::test]
async fn a_readers_psql_describes_every_table_view_and_function() {
    let database = Database::fresh().await;
    let reader = granted(&database, "reader").await;

    let output = Command::new("psql")
        .args(["--no-psqlrc", "--set", "ON_ERROR_STOP=1"])
        .args(["--command", r"\d+ postrider.*"])
        .args(["--command", r"\dv+ postrider.*"])
        .args(["--command", r"\df+ postrider.*"])
        .args(["--command", r"\dp postrider.*"])
        .arg(url_as(&database, &reader))
        .output()
        .expect("PostgreSQL's client programs are on the PATH");

    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(
        said.contains("FILL IN. A name from postrider.endpoints.") && said.contains("grant_reader"),
        "{said}"
    );
}

#[tokio::test]
async fn neither_row_security_off_nor_a_copy_of_the_table_shows_a_bound_reader_more() {
    let database = Database::private().await;
    let reader = role(&database, "bound").await;
    database
        .sql(&format!(
            "insert into postrider.endpoints (name, url, tenant) values ('of a', 'http://a.example/', 'a'), ('of b', 'http://b.example/', 'b');
             select postrider.grant_reader('{reader}', true)"
        ))
        .await;
    let session = session_as(&database, &reader).await;
    does(&session, "set postrider.tenant = 'a'").await;

    does(
        &session,
        "create temporary table copied as select name from postrider.endpoints",
    )
    .await;

    let copied = text(&session, "select string_agg(name, ' ') from copied").await;
    assert_eq!(copied, "of a");
    does(&session, "set row_security = off").await;
    is_denied(&session, "select name from postrider.endpoints").await;
}
