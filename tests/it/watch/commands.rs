use serde_json::{Value, json};

use super::{events, orders};
use crate::support::Database;
use crate::support::process::on;

/// Exit code, standard output and standard error.
async fn run(database: &Database, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = on(database, arguments);
    let output = tokio::task::spawn_blocking(move || command.output().expect("it runs"))
        .await
        .expect("it does not panic");
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

#[tokio::test]
async fn the_commands_watch_list_and_end() {
    let database = orders().await;

    let watched = run(
        &database,
        &[
            "watch",
            "public.orders",
            "--on",
            "insert,update",
            "--event-type",
            "paid",
            "--endpoint",
            "e",
            "--when",
            "new.status = 'paid'",
            "--columns",
            "status,total",
            "--without",
            "password",
            "--name",
            "w",
        ],
    )
    .await;
    database
        .sql("insert into orders values (1, 'paid'), (2, 'new'); delete from orders")
        .await;
    let (code, listed, _) = run(&database, &["watches", "--json"]).await;
    let listed: Value = serde_json::from_str(&listed).expect("JSON");
    let table = run(&database, &["watches"]).await;
    let ended = run(&database, &["unwatch", "w"]).await;
    let again = run(&database, &["unwatch", "w"]).await;

    assert_eq!(
        (watched.0, watched.1.as_str()),
        (Some(0), "watching as w\n"),
        "{watched:?}"
    );
    assert_eq!(code, Some(0));
    let first = &listed[0];
    assert_eq!(
        json!([
            first["watch"],
            first["table_name"],
            first["operations"],
            first["event_type"],
            first["endpoint"],
            first["condition"],
            first["columns"],
            first["without"],
            first["strict"],
            first["errors"]
        ]),
        json!([
            "w",
            "orders",
            ["insert", "update"],
            "paid",
            "e",
            "new.status = 'paid'",
            ["status", "total"],
            ["password"],
            false,
            0
        ])
    );
    assert!(table.1.contains("public.orders"), "{table:?}");
    assert_eq!(ended.0, Some(0), "{ended:?}");
    assert_eq!(again.0, Some(1), "{again:?}");
    assert!(again.2.contains("postrider watches"), "{again:?}");
    assert_eq!(events(&database).await.len(), 1);
}

#[tokio::test]
async fn a_list_with_errors_shows_them_and_exits_1() {
    let database = orders().await;
    run(
        &database,
        &[
            "watch",
            "orders",
            "--endpoint",
            "e",
            "--when",
            "1 / new.id > 0",
        ],
    )
    .await;
    database.sql("insert into orders values (0)").await;

    let (code, out, err) = run(&database, &["watches"]).await;

    assert_eq!(code, Some(1), "{out}{err}");
    assert!(
        out.contains("division by zero") && err.contains("hint: "),
        "{out}{err}"
    );
}

#[tokio::test]
async fn what_the_command_cannot_watch_is_said_with_the_next_step() {
    let database = orders().await;

    for (arguments, code, what) in [
        (&["watch", "nothing"][..], 2, "there is no such table"),
        (
            &["watch", "orders", "--endpoint", "nobody"],
            1,
            "there is no endpoint nobody",
        ),
        (
            &["watch", "orders", "--when", "new.x"],
            2,
            "the condition does not work",
        ),
        (
            &["watch", "orders", "--body", "nothing"],
            2,
            "no such function",
        ),
        (
            &["watch", "orders", "--body", "nothing(orders)"],
            2,
            "no such function",
        ),
        (&["watch", "orders", "--without", "x,y"], 2, "no column x"),
    ] {
        let (found, out, err) = run(&database, arguments).await;
        assert_eq!(
            (found, out.as_str()),
            (Some(code), ""),
            "{arguments:?} {err}"
        );
        assert!(
            err.contains(what) && err.contains("hint: "),
            "{arguments:?} {err}"
        );
    }
}

#[tokio::test]
async fn the_options_for_body_tenant_and_strict_reach_the_watch() {
    let database = orders().await;
    database
        .sql("create function shape(o orders) returns json language sql as $$ select to_json(o.id) $$")
        .await;

    for arguments in [
        &[
            "watch",
            "orders",
            "--body",
            "public.shape",
            "--name",
            "a",
            "--strict",
        ][..],
        &[
            "watch",
            "orders",
            "--body",
            "shape(orders)",
            "--name",
            "b",
            "--tenant",
            "t",
        ],
        &[
            "watch",
            "orders",
            "--tenant-column",
            "status",
            "--name",
            "c",
        ],
    ] {
        assert_eq!(run(&database, arguments).await.0, Some(0), "{arguments:?}");
    }

    let shown: Vec<String> = database
        .value("select array_agg(concat_ws(' ', watch, body, tenant, tenant_column, strict) order by watch) from postrider.watches")
        .await;
    assert_eq!(
        shown,
        [
            "a public.shape(public.orders) t",
            "b public.shape(public.orders) t f",
            "c status f"
        ]
    );
}
