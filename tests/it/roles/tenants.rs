use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use postrider::store::queue::STATEMENTS;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::parts::worker_as;
use super::{does, granted, is_denied, refusal, role, session_as, text};
use crate::support::Database;
use crate::support::receiver::Receiver;

/// Endpoints of the tenants a and b and one of nobody's, each with a delivery, a try and an event.
const TWO_TENANTS: &str = "
insert into postrider.endpoints (name, url, tenant)
values ('of a', 'http://a.example/', 'a'), ('of b', 'http://s3cret@b.example/', 'b'), ('of nobody', 'http://n.example/', null);
insert into postrider.deliveries (endpoint, event_id, event_type, payload) select name, 'of ' || name, 't', '{}' from postrider.endpoints;
insert into postrider.events (event_id, event_type, payload, tenant) select name, 't', '{}', tenant from postrider.endpoints;
insert into postrider.attempts (started_at, delivery_id, claim_no, attempt_no, endpoint, outcome)
select now(), id, 1, 1, endpoint, 'lost' from postrider.deliveries;
select postrider.fold_reports();
insert into postrider.attempts (started_at, delivery_id, claim_no, attempt_no, endpoint, outcome)
select now(), id, 2, 2, endpoint, 'lost' from postrider.deliveries;
insert into postrider.deliveries (endpoint, event_type, payload, status, exhausted_reason, next_retry, finished_at)
select name, 't', '{}', 'exhausted', 'lost', null, now() from postrider.endpoints";

/// A database of its own, since row-level security is part of the schema, and a role that is bound in it.
async fn with_bound(part: &str) -> (Database, String) {
    let database = Database::private().await;
    database.sql(TWO_TENANTS).await;
    let role = role(&database, "bound").await;
    database
        .sql(&format!("select postrider.grant_{part}('{role}', true)"))
        .await;
    (database, role)
}

/// What a query counts, per endpoint, in a session's eyes.
async fn endpoints_of(session: &Client, relation: &str, column: &str) -> String {
    let query = format!(
        "select coalesce(string_agg(distinct {column}, ', '), 'none') from postrider.{relation}"
    );
    text(session, &query).await
}

#[tokio::test]
async fn a_bound_reader_sees_its_tenant_in_every_table_and_view_and_nothing_while_none_is_set() {
    let (database, reader) = with_bound("reader").await;
    let session = session_as(&database, &reader).await;
    let relations: Vec<String> = database
        .value(&format!(
            "select array_agg(c.relname || ' ' || a.attname order by c.relname) from pg_class c
               join pg_attribute a on a.attrelid = c.oid and (a.attname = 'endpoint' or (c.relname, a.attname) in (('endpoints', 'name'), ('events', 'event_id')))
              where c.relnamespace = 'postrider'::regnamespace and c.relkind in ('r', 'p', 'v') and not c.relispartition
                and has_column_privilege('{reader}', c.oid, a.attnum, 'select')"
        ))
        .await;
    assert!(relations.len() >= 11, "{relations:?}");

    for relation in &relations {
        let (relation, column) = relation.split_once(' ').expect("both were selected");
        for (setting, sees) in [
            ("reset postrider.tenant", "none"),
            ("set postrider.tenant = ''", "none"),
            ("set postrider.tenant = 'a'", "of a"),
            ("set postrider.tenant = 'b'", "of b"),
            ("set postrider.tenant = 'c'", "none"),
            ("set postrider.tenant = 'a'' or true --'", "none"),
        ] {
            does(&session, setting).await;
            assert_eq!(
                endpoints_of(&session, relation, column).await,
                sees,
                "{relation} {setting}"
            );
        }
    }
    for view in [
        "delivery_state",
        "dead_letters",
        "due_now",
        "success_rate",
        "endpoint_summary",
        "endpoint_urls",
        "workers",
    ] {
        is_denied(&session, &format!("select * from postrider.{view}")).await;
    }
}

#[tokio::test]
async fn an_endpoint_that_gets_another_tenant_takes_its_history_along() {
    let (database, reader) = with_bound("reader").await;
    let session = session_as(&database, &reader).await;
    does(&session, "set postrider.tenant = 'a'").await;

    database
        .sql("update postrider.endpoints set tenant = 'a' where name = 'of b'")
        .await;

    for table in ["deliveries", "attempts", "reports"] {
        let seen = endpoints_of(&session, table, "endpoint").await;
        assert_eq!(seen, "of a, of b", "{table}");
    }
}

#[tokio::test]
async fn no_function_in_a_where_and_no_plan_shows_a_bound_reader_what_others_have() {
    let (database, reader) = with_bound("reader").await;
    database
        .sql(&format!(
            "create schema app; grant all on schema app to {reader}"
        ))
        .await;
    let session = session_as(&database, &reader).await;
    does(
        &session,
        "set postrider.tenant = 'a'; create table app.seen (what text);
         create function app.leak(text) returns boolean language plpgsql cost 0.0000001 as $$ begin insert into app.seen values ($1); return true; end $$",
    )
    .await;

    for (relation, column) in [
        ("deliveries", "endpoint"),
        ("attempts", "endpoint"),
        ("endpoints", "name"),
        ("endpoint_health", "endpoint"),
        ("events", "event_id"),
        ("tenant_delivery_state", "endpoint"),
        ("tenant_endpoint_urls", "endpoint"),
        ("tenant_success_rate", "endpoint"),
        ("tenant_endpoint_summary", "endpoint"),
    ] {
        let query = format!("select from postrider.{relation} t where app.leak(t.{column})");
        does(&session, &query).await;
        let seen = text(
            &session,
            "select coalesce(string_agg(distinct what, ', '), 'none') from app.seen",
        )
        .await;
        assert_eq!(seen, "of a", "{relation}");
        // A value in an error message is the same leak.
        does(&session, &format!("select from postrider.{relation} t where t.{column} <> 'of a' and t.{column}::int = 1")).await;
        let shown = session
            .query(&format!("explain analyze {query}"), &[])
            .await
            .expect("it explains");
        let shown: Vec<String> = shown
            .iter()
            .map(|row| row.try_get(0).expect("a line"))
            .collect();
        assert!(!shown.iter().any(|line| line.contains("of b")), "{shown:?}");
        does(&session, "delete from app.seen").await;
    }
    let statistics = "select count(*)::text from pg_stats s where s.schemaname = 'postrider' and s.tablename in ('endpoints', 'deliveries', 'events')";
    database
        .sql("analyze postrider.endpoints, postrider.deliveries, postrider.events")
        .await;
    assert_eq!(text(&session, statistics).await, "0");
}

#[tokio::test]
async fn a_bound_producer_queues_for_its_tenant_only_and_cannot_tell_others_from_none() {
    let (database, producer) = with_bound("producer").await;
    let session = session_as(&database, &producer).await;
    let insert = |endpoint: &str, rest: &str| {
        format!(
            "insert into postrider.deliveries (endpoint, event_id, event_type, payload) values ('{endpoint}', 'of of b', 't', '{{}}') {rest}"
        )
    };
    is_denied(&session, &insert("of a", "")).await;
    is_denied(&session, "select postrider.send('of a', 't', '{}')").await;
    does(&session, "set postrider.tenant = 'a'").await;

    does(&session, &insert("of a", "returning id")).await;
    does(
        &session,
        &insert("of a", "on conflict (endpoint, event_id) do nothing"),
    )
    .await;
    does(&session, "select postrider.send('of a', 't', '{}')").await;

    // The delivery 'of of b' is there, 'missing' is not even an endpoint: the answer is the same.
    for rest in [
        "",
        "on conflict do nothing",
        "on conflict (endpoint, event_id) do nothing",
        "returning id",
    ] {
        let mut answers = Vec::new();
        for endpoint in ["of b", "of nobody", "missing"] {
            answers.push(refusal(&session, &insert(endpoint, rest)).await);
        }
        assert_eq!(answers[0].0, SqlState::INSUFFICIENT_PRIVILEGE);
        assert!(
            answers.iter().all(|answer| *answer == answers[0]),
            "{answers:?}"
        );
    }
    for endpoint in ["of b", "missing"] {
        is_denied(
            &session,
            &format!("select postrider.send('{endpoint}', 't', '{{}}', 'of of b')"),
        )
        .await;
    }
    assert_eq!(
        endpoints_of(&session, "deliveries", "endpoint").await,
        "of a"
    );
    assert_eq!(endpoints_of(&session, "endpoints", "name").await, "of a");
    // Even where somebody granted more by hand, another's event is not to be sent.
    database
        .sql(&format!(
            "grant insert (event) on postrider.deliveries to {producer}"
        ))
        .await;
    is_denied(&session, "insert into postrider.deliveries (endpoint, event_type, event) values ('of a', 't', (select 2))").await;
}

#[tokio::test]
async fn deliver_now_delivers_for_the_tenant_and_knows_no_other_endpoint() {
    let (database, producer) = with_bound("producer").await;
    let worker = granted(&database, "worker").await;
    let receiver = Receiver::start().await;
    database
        .sql(&format!("update postrider.endpoints set url = '{}'; update postrider.endpoints set paused = true where name = 'of b'", receiver.url("/")))
        .await;
    let _running = worker_as(&database, &worker, &[]);
    let session = session_as(&database, &producer).await;
    let call = |endpoint: &str| format!("call postrider.deliver_now('{endpoint}', 't', '{{}}')");
    is_denied(&session, &call("of a")).await;
    does(&session, "set postrider.tenant = 'a'").await;

    does(&session, &call("of a")).await;

    for endpoint in ["of b", "of nobody", "missing"] {
        let (state, said) = refusal(&session, &call(endpoint)).await;
        assert_eq!(
            (state.code(), said),
            ("PR004", format!("there is no endpoint {endpoint}"))
        );
    }
}

#[tokio::test]
async fn a_function_with_its_owners_rights_learns_for_which_tenant_it_may_act() {
    let (database, bound) = with_bound("producer").await;
    let unbound = granted(&database, "producer").await;
    let member = role(&database, "member").await;
    let owner = role(&database, "bypass").await;
    database
        .sql(&format!(
            "create function public.acts_for() returns text language sql security definer set search_path = pg_catalog, pg_temp
               as $$ select coalesce(postrider.tenant_of_caller(), 'any') $$;
             create function public.for_bound() returns text language sql security definer set search_path = pg_catalog, pg_temp
               as $$ select public.acts_for() $$;
             grant {bound} to {member};
             alter role {owner} bypassrls"
        ))
        .await;
    let asks = "select public.acts_for()";

    let mut logged_in = url::Url::parse(database.url()).expect("a URL");
    logged_in.set_username(&member).expect("it has a host");
    logged_in
        .set_password(Some("s3cret"))
        .expect("it has a host");
    let (login, connection) = tokio_postgres::connect(logged_in.as_str(), tokio_postgres::NoTls)
        .await
        .expect("it may log in");
    let connection = tokio::spawn(connection);
    let sessions = [
        session_as(&database, &bound).await,
        session_as(&database, &member).await,
        login,
    ];
    for session in &sessions {
        for ask in [asks, "select public.for_bound()"] {
            does(session, "reset postrider.tenant").await;
            is_denied(session, ask).await;
            does(session, "set postrider.tenant = ''").await;
            is_denied(session, ask).await;
            does(session, "set postrider.tenant = 'a'").await;
            assert_eq!(text(session, ask).await, "a");
        }
    }
    for free in [unbound.as_str(), &owner, "none"] {
        let session = session_as(&database, free).await;
        assert_eq!(text(&session, asks).await, "any", "{free}");
        does(&session, "set postrider.tenant = 'a'").await;
        assert_eq!(text(&session, asks).await, "a", "{free}");
    }
    drop(sessions);
    connection.await.expect("it ends").expect("in peace");
}

#[tokio::test]
async fn only_a_role_that_row_level_security_holds_can_be_bound() {
    let database = Database::private().await;
    let plain = role(&database, "plain").await;
    let above = role(&database, "above").await;
    let group = granted(&database, "reader").await;
    let worker = granted(&database, "worker").await;
    database.sql(&format!("alter role {above} bypassrls")).await;
    let bind = |role: &str| format!("select postrider.grant_reader('{role}', true)");

    for (statement, says) in [
        (bind(&above), "does not apply"),
        (bind(&worker), "serve every tenant"),
        (
            format!("grant {group} to {plain}; {}", bind(&plain)),
            "which is not bound",
        ),
    ] {
        let (state, said) = refusal(database.client(), &statement).await;
        assert_eq!(
            (state.code(), said.contains(says)),
            ("22023", true),
            "{said}"
        );
    }
    database
        .sql(&format!("{}; {}", bind(&plain), bind(&plain)))
        .await;
    for part in ["worker", "operator"] {
        let (_, said) = refusal(
            database.client(),
            &format!("select postrider.grant_{part}('{plain}')"),
        )
        .await;
        assert!(said.contains("is bound to a tenant"), "{said}");
    }

    // Granting again without the word does not set free.
    database
        .sql(&format!("{TWO_TENANTS}; select postrider.grant_reader('{plain}'), postrider.grant_producer('{plain}')"))
        .await;
    let session = session_as(&database, &plain).await;
    assert_eq!(
        endpoints_of(&session, "deliveries", "endpoint").await,
        "none"
    );
    is_denied(&session, "select * from postrider.delivery_state").await;
    database
        .sql(&format!(
            "select postrider.revoke('{plain}'), postrider.grant_reader('{plain}')"
        ))
        .await;
    assert_eq!(
        endpoints_of(&session, "deliveries", "endpoint").await,
        "of a, of b, of nobody"
    );
}

#[tokio::test]
async fn who_is_not_bound_notices_nothing_but_that_copy_into_tables_is_off_until_the_last_is_revoked()
 {
    let (database, bound) = with_bound("producer").await;
    let second = role(&database, "second").await;
    let producer = granted(&database, "producer").await;
    let worker = granted(&database, "worker").await;
    let receiver = Receiver::start().await;
    database
        .sql(&format!(
            "select postrider.grant_reader('{second}', true);
             update postrider.endpoints set url = '{}'",
            receiver.url("/")
        ))
        .await;
    let _running = worker_as(&database, &worker, &[]);
    for id in 1..=3 {
        database.wait_for_status(id, "delivered").await;
    }
    let session = session_as(&database, &producer).await;
    does(
        &session,
        "select postrider.send(e, 't', '{}') from unnest('{of a,of b,of nobody}'::text[]) e",
    )
    .await;
    // Each in a session of its own: a COPY that is refused is the end of it.
    let copies = async || {
        let session = session_as(&database, &producer).await;
        let copy = "copy postrider.deliveries (endpoint, event_type, payload) from stdin";
        let sink = session.copy_in::<_, bytes::Bytes>(copy).await;
        sink.map(drop).map_err(|error| error.code().cloned())
    };

    // PostgreSQL offers no COPY into a table with row-level security.
    let not_offered = Err(Some(SqlState::FEATURE_NOT_SUPPORTED));
    assert_eq!(copies().await, not_offered);
    database
        .sql(&format!("select postrider.revoke('{bound}')"))
        .await;
    assert_eq!(copies().await, not_offered, "the second one is bound still");
    database
        .sql(&format!("select postrider.revoke('{second}')"))
        .await;

    assert_eq!(copies().await, Ok(()), "it is offered again");
    let left: i64 = database
        .value("select (select count(*) from pg_policy) + (select count(*) from pg_class where relrowsecurity)")
        .await;
    assert_eq!(left, 0);
    database
        .sql(&format!("drop role {bound}; drop role {second}"))
        .await;
}

#[tokio::test]
async fn the_plans_of_workers_are_the_same_with_and_without_tenants() {
    let database = Database::private().await;
    let worker = granted(&database, "worker").await;
    database
        .sql(
            "insert into postrider.endpoints (name, url, tenant) select 'e' || n, 'http://127.0.0.1:1/', 't' || n % 3 from generate_series(1, 50) n;
             insert into postrider.deliveries (endpoint, event_type, payload) select 'e' || 1 + n % 50, 't', '{}' from generate_series(1, 5000) n;
             analyze postrider.endpoints, postrider.deliveries",
        )
        .await;
    let session = session_as(&database, &worker).await;
    let plans = async || {
        let mut plans = String::new();
        for statement in STATEMENTS {
            does(&session, &format!("prepare explained as {}", statement.sql)).await;
            let parameters: i64 = session
                .query_one("select cardinality(parameter_types)::bigint from pg_prepared_statements where name = 'explained'", &[])
                .await
                .and_then(|row| row.try_get(0))
                .expect("it was prepared");
            let nulls = vec!["null"; usize::try_from(parameters).expect("a few")].join(", ");
            let arguments = if nulls.is_empty() {
                String::new()
            } else {
                format!("({nulls})")
            };
            does(&session, "set plan_cache_mode = force_generic_plan").await;
            let rows = session
                .query(
                    &format!("explain (costs off, verbose) execute explained{arguments}"),
                    &[],
                )
                .await;
            for row in rows.unwrap_or_else(|error| panic!("{}: {error:?}", statement.name)) {
                plans += &format!(
                    "{}: {}\n",
                    statement.name,
                    row.try_get::<_, String>(0).expect("a line")
                );
            }
            does(&session, "deallocate explained").await;
        }
        plans
    };

    let without = plans().await;
    let bound = role(&database, "bound").await;
    database
        .sql(&format!("select postrider.grant_producer('{bound}', true)"))
        .await;
    let with = plans().await;

    assert!(
        with.contains("claim: ") && with.contains("record: "),
        "{with}"
    );
    assert_eq!(with, without);
}

#[tokio::test]
async fn a_dump_keeps_who_may_do_what_and_who_is_bound() {
    let (database, _) = with_bound("reader").await;
    granted(&database, "producer").await;
    // An owner's own privileges are written out or not, which is the same.
    let facts = "select coalesce(string_agg(line, E'\\n' order by line), '') from (
        select o.name || ' ' || a.grantee::regrole || ' ' || a.privilege_type from (
            select c.oid::regclass::text, c.relowner, coalesce(c.relacl, acldefault('r', c.relowner)) from pg_class c where c.relnamespace = 'postrider'::regnamespace
            union all select c.oid::regclass || '.' || a.attname, c.relowner, a.attacl from pg_attribute a join pg_class c on c.oid = a.attrelid where c.relnamespace = 'postrider'::regnamespace
            union all select p.oid::regprocedure::text, p.proowner, coalesce(p.proacl, acldefault('f', p.proowner)) from pg_proc p where p.pronamespace = 'postrider'::regnamespace
            union all select n.nspname::text, n.nspowner, n.nspacl from pg_namespace n where n.nspname = 'postrider'
          ) o (name, owner, acl) cross join aclexplode(o.acl) a where a.grantee <> o.owner
        union all select c.oid::regclass || ' has row-level security' from pg_class c where c.relrowsecurity
        union all select p.tablename || p.policyname || p.permissive || p.roles::text || p.qual || p.with_check from pg_policies p where p.schemaname = 'postrider') l (line)";
    database.sql("set search_path = pg_catalog").await;
    let before: String = database.value(facts).await;
    let name = format!("{}_restored", database.name());
    database
        .sql(&format!("drop database if exists {name}"))
        .await;
    database
        .sql(&format!(
            "create database {name} template template0 encoding 'UTF8'"
        ))
        .await;
    let mut restored = url::Url::parse(database.url()).expect("a URL");
    restored.set_path(&name);

    let dump = Command::new("pg_dump")
        .args(["--schema", "postrider", database.url()])
        .output()
        .expect("PostgreSQL's client programs are on the PATH");
    assert!(dump.status.success(), "{dump:?}");
    let mut psql = Command::new("psql")
        .args([
            "--no-psqlrc",
            "--quiet",
            "--set",
            "ON_ERROR_STOP=1",
            restored.as_str(),
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("they are on the PATH");
    std::io::Write::write_all(&mut psql.stdin.take().expect("it is piped"), &dump.stdout)
        .expect("psql reads");
    assert!(psql.wait().expect("it ends").success());

    let (client, connection) = tokio_postgres::connect(restored.as_str(), tokio_postgres::NoTls)
        .await
        .expect("it is there");
    let connection = tokio::spawn(connection);
    does(&client, "set search_path = pg_catalog").await;
    let after = text(&client, facts).await;
    drop(client);
    connection.await.expect("it ends").expect("in peace");
    database.sql(&format!("drop database {name}")).await;
    let lines = |facts: &str| facts.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let (before, after) = (lines(&before), lines(&after));
    assert!(before.len() > 60, "{before:?}");
    let changed: Vec<_> = before.symmetric_difference(&after).collect();
    assert!(changed.is_empty(), "{changed:#?}");
}
