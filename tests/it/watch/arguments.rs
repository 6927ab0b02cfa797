use super::{count, errors, events, orders, refused};

/// Arguments after the table, the SQLSTATE, and a part of the message.
const NONSENSE: &[(&str, &str, &str)] = &[
    ("operations => '{}'", "PR012", "operations"),
    ("operations => '{truncate}'", "PR012", "truncate"),
    ("operations => '{insert,NULL}'", "PR012", "NULL"),
    ("operations => null", "PR012", "operations"),
    ("endpoint => 'nobody'", "PR004", "nobody"),
    ("condition => 'new.nothing = 1'", "PR012", "nothing"),
    ("condition => 'new.id'", "PR012", "boolean"),
    ("condition => 'new.id = 1)'", "PR012", "does not work"),
    ("condition => 'true; drop table orders'", "PR012", "syntax"),
    ("condition => 'new.id = $1'", "PR012", "parameter"),
    ("condition => 'sum(new.id) > 1'", "PR012", "aggregate"),
    ("condition => ''", "PR012", "syntax"),
    ("columns => '{nothing}'", "PR012", "no column nothing"),
    ("columns => '{}'", "PR012", "columns"),
    ("columns => '{xmin}'", "PR012", "no column xmin"),
    (
        "columns => '{id}', operations => '{insert}'",
        "PR012",
        "columns",
    ),
    ("without => '{nothing}'", "PR012", "no column nothing"),
    ("without => '{NULL}'", "PR012", "no column NULL"),
    ("tenant_column => 'nothing'", "PR012", "no column nothing"),
    (
        "tenant => 'a', tenant_column => 'status'",
        "PR012",
        "only one",
    ),
    ("tenant => 'a', endpoint => 'e'", "PR012", "only one"),
    ("body => 'no_row'", "PR012", "cannot shape"),
    ("body => 'no_json'", "PR012", "cannot shape"),
    ("body => 'many'", "PR012", "cannot shape"),
    ("body => 'strict_two'", "PR012", "strict"),
    ("body => 0::oid::regproc", "PR012", "no such function"),
    ("body => 'twice'", "42725", "more than one"),
    ("body => 'now'", "PR012", "cannot shape"),
    (
        "body => 'twice(orders)'::regprocedure, without => '{id}'",
        "PR012",
        "without",
    ),
    ("strict => null", "PR012", "strict"),
    ("name => ''", "PR012", "name"),
    ("name => E'a\\nb'", "PR012", "name"),
    ("event_type => ''", "PR012", "event_type"),
];

#[tokio::test]
async fn arguments_that_make_no_sense_are_refused_at_once_and_leave_nothing() {
    let database = orders().await;
    database
        .sql(
            "create function no_row(i int) returns json language sql as $$ select '1'::json $$;
             create function no_json(o orders) returns text language sql as $$ select '1' $$;
             create function many(o orders) returns setof json language sql as $$ select '1'::json $$;
             create function strict_two(n orders, o orders) returns json strict language sql as $$ select '1'::json $$;
             create function twice(o orders) returns json language sql as $$ select '1'::json $$;
             create function twice(n orders, o orders) returns json language sql as $$ select '1'::json $$",
        )
        .await;

    for (arguments, state, what) in NONSENSE {
        let (found, said) = refused(
            &database,
            &format!("select postrider.watch('orders', {arguments})"),
        )
        .await;
        assert_eq!(found, *state, "{arguments}: {said}");
        assert!(said.contains(what), "{arguments}: {said}");
    }
    let (state, _) = refused(&database, "select postrider.watch(null)").await;
    assert_eq!(state, "PR012");

    let left: i64 = database
        .value("select count(*) from pg_trigger where tgrelid = 'orders'::regclass")
        .await;
    assert_eq!((left, count(&database, "postrider.watches").await), (0, 0));
}

#[tokio::test]
async fn only_the_tables_owner_watches_it() {
    let database = orders().await;
    let role = format!("{}_other", database.name());
    database
        .sql(&format!(
            "create role {role}; select postrider.grant_producer('{role}'); select postrider.watch('orders', endpoint => 'e'); set role {role}"
        ))
        .await;

    let (watch, said) = refused(&database, "select postrider.watch('orders', name => 'b')").await;
    let (unwatch, _) = refused(&database, "select postrider.unwatch('public.orders')").await;
    database.sql("reset role").await;

    assert_eq!((watch.as_str(), unwatch.as_str()), ("42501", "42501"));
    assert!(said.contains("owner"), "{said}");
    assert_eq!(count(&database, "postrider.watches").await, 1);
}

#[tokio::test]
async fn a_name_is_given_once_and_several_watches_of_a_table_have_several() {
    let database = orders().await;
    database
        .sql("select postrider.watch('orders', endpoint => 'e'); select postrider.watch('orders', endpoint => 'e', name => 'b', operations => '{delete}')")
        .await;

    let (state, said) = refused(
        &database,
        "select postrider.watch('orders', event_type => 'x')",
    )
    .await;
    database
        .sql("insert into orders values (1); delete from orders")
        .await;

    assert_eq!(
        (state.as_str(), said.as_str()),
        ("PR013", "there is a watch public.orders already")
    );
    assert_eq!(events(&database).await.len(), 3);
}

#[tokio::test]
async fn an_end_takes_triggers_function_and_errors_away_and_what_was_seen_is_published() {
    let database = orders().await;
    database
        .sql(
            "select postrider.watch('orders', endpoint => 'e', condition => '1 / new.id >= 0');
             insert into orders values (0); insert into orders select n from generate_series(1, 200) n;
             select postrider.unwatch('public.orders'); insert into orders values (999)",
        )
        .await;
    let left: i64 = database
        .value(
            "select (select count(*) from pg_trigger where tgrelid = 'orders'::regclass)
                  + (select count(*) from pg_proc where proname like 'postrider_watch\\_%' and pronamespace = 'public'::regnamespace)",
        )
        .await;

    database.sql("select postrider.publish_changes()").await;
    let (state, _) = refused(&database, "select postrider.unwatch('public.orders')").await;

    assert_eq!((left, events(&database).await.len()), (0, 200));
    assert_eq!(errors(&database).await, Vec::<String>::new());
    assert_eq!(state, "PR014");
}

#[tokio::test]
async fn the_view_says_what_watch_was_told_and_psql_shows_the_triggers() {
    let database = orders().await;
    database
        .sql(
            "select postrider.watch('orders', '{delete,insert,update}', 'changed', 'e', E'new.id >\n 1', '{status,total}', '{password}', null, null, null, true, 'w');
             select postrider.watch('orders', '{insert}', tenant => 'a', name => 'x');
             alter table orders disable trigger user",
        )
        .await;

    let shown: Vec<String> = database
        .value("select array_agg(w::text order by watch) from postrider.watches w")
        .await;
    let triggers: Vec<String> = database
        .value("select array_agg(pg_get_triggerdef(oid) order by tgname) from pg_trigger where tgrelid = 'orders'::regclass")
        .await;

    assert_eq!(
        shown,
        [
            "(w,public,orders,\"{insert,update,delete}\",changed,e,\"new.id >\n 1\",\"{status,total}\",{password},,,,t,f,0,0,,)",
            "(x,public,orders,{insert},,,,{},{},,a,,f,f,0,0,,)"
        ]
    );
    assert_eq!(triggers.len(), 4);
    assert!(
        triggers
            .iter()
            .all(|one| one.contains("postrider_watch_") && one.contains("FOR EACH STATEMENT")),
        "{triggers:?}"
    );
}

#[tokio::test]
async fn a_watch_whose_table_was_dropped_is_shown_so_and_gives_its_name_back() {
    let database = orders().await;
    database
        .sql("select postrider.watch('orders', endpoint => 'e'); drop table orders")
        .await;
    let gone: bool = database
        .value("select table_name is null and not enabled from postrider.watches")
        .await;

    database
        .sql("create table orders (id int); select postrider.watch('orders', endpoint => 'e'); insert into orders values (1)")
        .await;

    assert!(gone);
    assert_eq!(events(&database).await.len(), 1);
    assert_eq!(count(&database, "postrider.watches").await, 1);
}

#[tokio::test]
async fn messages_of_others_tables_are_not_shown_to_everybody() {
    let database = orders().await;
    let role = format!("{}_other", database.name());
    database
        .sql(&format!(
            "create role {role}; select postrider.grant_producer('{role}');
             select postrider.watch('orders', endpoint => 'e', condition => 'new.status::int > 0');
             insert into orders values (1, 's3cret'); set role {role}"
        ))
        .await;

    let seen: String = database
        .value("select errors || coalesce(last_error, ' hidden') from postrider.watches")
        .await;
    database.sql("reset role").await;
    let whole: String = database
        .value("select last_error from postrider.watches")
        .await;

    assert_eq!(seen, "1 hidden");
    assert!(whole.contains("s3cret"), "{whole}");
}
