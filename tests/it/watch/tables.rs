use super::{count, errors, events, members, orders, refused};
use serde_json::{Value, json};

#[tokio::test]
async fn any_name_will_do() {
    let database = orders().await;
    database
        .sql(
            r#"create schema "sch ""e;ma' %s";
               create table "sch ""e;ma' %s"."we;ird ""x"" $$ %1$s" ("a ""b'" int, "new" text, "%s" text, gone int);
               alter table "sch ""e;ma' %s"."we;ird ""x"" $$ %1$s" drop column gone;
               create function "sch ""e;ma' %s"."f %s"(n "sch ""e;ma' %s"."we;ird ""x"" $$ %1$s") returns json language sql as
                 $f$ select json_build_object('n', n."%s") $f$;
               select postrider.watch('"sch ""e;ma'' %s"."we;ird ""x"" $$ %1$s"', endpoint => 'e', without => '{"a \"b''"}', columns => '{"%s",new}',
                                      condition => $c$new."%s" is distinct from '%1$s $$'$c$);
               select postrider.watch('"sch ""e;ma'' %s"."we;ird ""x"" $$ %1$s"', endpoint => 'e', event_type => 'it''s', name => E'we''ird \\ $$',
                                      body => '"sch ""e;ma'' %s"."f %s"')"#,
        )
        .await;

    database
        .sql(
            r#"insert into "sch ""e;ma' %s"."we;ird ""x"" $$ %1$s" values (1, 'x', '%s');
               update "sch ""e;ma' %s"."we;ird ""x"" $$ %1$s" set "%s" = 'y'"#,
        )
        .await;

    assert_eq!(errors(&database).await, Vec::<String>::new());
    let found = events(&database).await;
    assert_eq!(found.len(), 4, "{found:?}");
    assert_eq!(found[0].0, "we;ird \"x\" $$ %1$s.insert");
    assert_eq!(found[0].1["record"], json!({"new": "x", "%s": "%s"}));
    assert_eq!(found[0].1["schema"], "sch \"e;ma' %s");
    assert_eq!(found[1], ("it's".to_owned(), json!({"n": "%s"})));
    assert_eq!(found[3].1, json!({"n": "y"}));

    database
        .sql("select postrider.unwatch(watch) from postrider.watches")
        .await;
    assert_eq!(count(&database, "postrider.watches").await, 0);
}

#[tokio::test]
async fn rows_of_a_partitioned_table_that_move_are_updates() {
    let database = orders().await;
    database
        .sql(
            "create table parts (id int, region text, note text) partition by list (region);
             create table parts_a (note text, gone int, region text, id int); alter table parts_a drop column gone;
             alter table parts attach partition parts_a for values in ('a');
             create table parts_b partition of parts for values in ('b');
             select postrider.watch('parts', endpoint => 'e')",
        )
        .await;

    database
        .sql(
            "insert into parts values (1, 'a', 'x'), (2, 'b', 'y');
             update parts set region = case region when 'a' then 'b' else 'a' end;
             delete from parts where region = 'a'",
        )
        .await;

    let rows = members(&database, &["/operation", "/record", "/old_record"]).await;
    let row = |id: i32, region: &str, note: &str| json!({"id": id, "region": region, "note": note});
    let mut moved = rows[2..4].to_vec();
    moved.sort_by_key(|one| one[1]["id"].as_i64());
    assert_eq!(
        (rows.len(), &rows[0], &rows[4]),
        (
            5,
            &json!(["insert", row(1, "a", "x"), null]),
            &json!(["delete", null, row(2, "a", "y")])
        )
    );
    assert_eq!(
        moved,
        [
            json!(["update", row(1, "b", "x"), row(1, "a", "x")]),
            json!(["update", row(2, "a", "y"), row(2, "b", "y")])
        ]
    );
}

#[tokio::test]
async fn rows_that_a_trigger_drops_on_the_way_to_another_partition_are_an_error_on_record() {
    let database = orders().await;
    database
        .sql(
            "create table parts (id int, region text) partition by list (region);
             create table parts_a partition of parts for values in ('a');
             create table parts_b partition of parts for values in ('b');
             create function drop_it() returns trigger language plpgsql as $$ begin return null; end $$;
             create trigger drop_it before insert on parts_b for each row execute function drop_it();
             select postrider.watch('parts', endpoint => 'e');
             insert into parts values (1, 'a'), (2, 'a');
             update parts set region = case id when 1 then 'b' else 'a' end",
        )
        .await;

    assert_eq!(errors(&database).await, ["public.parts P0001 1"]);
    assert_eq!(events(&database).await.len(), 2);
}

#[tokio::test]
async fn a_parent_shows_what_is_written_through_it_with_the_columns_it_has() {
    let database = orders().await;
    database
        .sql(
            "create table parent (id int, note text); create table child (more int) inherits (parent);
             select postrider.watch('parent', endpoint => 'e');
             insert into child values (1, 'x', 9);
             insert into parent values (2, 'y');
             update parent set note = note || '!';
             delete from parent where id = 1",
        )
        .await;

    assert_eq!(
        members(&database, &["/operation", "/record", "/old_record"]).await,
        [
            json!(["insert", {"id": 2, "note": "y"}, null]),
            json!(["update", {"id": 2, "note": "y!"}, {"id": 2, "note": "y"}]),
            json!(["update", {"id": 1, "note": "x!"}, {"id": 1, "note": "x"}]),
            json!(["delete", null, {"id": 1, "note": "x!"}]),
        ]
    );
}

#[tokio::test]
async fn copy_on_conflict_and_merge_are_what_they_do_to_each_row() {
    let database = orders().await;
    database
        .sql("select postrider.watch('orders', endpoint => 'e')")
        .await;

    database
        .sql(
            "create temp table source as select n as id from generate_series(1, 3) n;
             do $$ begin
               if current_setting('server_version_num')::int >= 150000 then
                 execute 'merge into orders o using source s on o.id = s.id when not matched then insert values (s.id, ''merged'')';
                 execute 'merge into orders o using source s on o.id = s.id when matched and s.id = 1 then delete when matched and s.id = 2 then update set total = 2';
               else
                 insert into orders select id, 'merged' from source; update orders set total = 2 where id = 2; delete from orders where id = 1;
               end if;
             end $$;
             insert into orders values (3, 'conflict'), (4, 'new') on conflict (id) do update set status = excluded.status;
             insert into orders values (4, 'ignored') on conflict do nothing;
             with gone as (delete from orders where id = 4 returning *) insert into orders select id + 10, status from gone",
        )
        .await;

    let mut found = members(&database, &["/operation", "/record/id", "/old_record/id"]).await;
    let text = |one: &Value| one.to_string();
    found.sort_by_key(text);
    let mut expected = [
        json!(["insert", 1, null]),
        json!(["insert", 2, null]),
        json!(["insert", 3, null]),
        json!(["delete", null, 1]),
        json!(["update", 2, 2]),
        json!(["update", 3, 3]),
        json!(["insert", 4, null]),
        json!(["delete", null, 4]),
        json!(["insert", 14, null]),
    ];
    expected.sort_by_key(text);
    assert_eq!(found, expected);
}

#[tokio::test]
async fn copy_from_is_one_statement() {
    let database = orders().await;
    database
        .sql("select postrider.watch('orders', endpoint => 'e')")
        .await;

    let sink = database
        .client()
        .copy_in("copy orders (id, status) from stdin")
        .await
        .expect("a copy");
    let mut sink = std::pin::pin!(sink);
    futures_util::SinkExt::send(&mut sink, bytes::Bytes::from_static(b"1\ta\n2\tb\n"))
        .await
        .expect("two rows");
    sink.finish().await.expect("the end");

    assert_eq!(
        members(&database, &["/record/id"]).await,
        [json!([1]), json!([2])]
    );
}

#[tokio::test]
async fn columns_that_are_generated_dropped_or_added_are_no_trouble() {
    let database = orders().await;
    database
        .sql(
            "create table made (id int, gone text, twice int generated always as (id * 2) stored, b text);
             alter table made drop column gone;
             create function pair(n made, o made) returns json language sql as $$ select json_build_array(n.b, o.b, n.twice) $$;
             select postrider.watch('made', endpoint => 'e', columns => '{b,twice}');
             select postrider.watch('made', endpoint => 'e', event_type => 'pair', name => 'pair', body => 'pair');
             insert into made values (1, default, 'x');
             alter table made add column later int default 5;
             update made set id = 2, b = 'y'",
        )
        .await;

    let found = events(&database).await;
    assert_eq!(errors(&database).await, Vec::<String>::new());
    // The triggers of a statement run in the order of their names.
    let [first, _, pair, made] = &found[..] else {
        panic!("{found:?}");
    };
    assert_eq!(first.1, json!(["x", null, 2]));
    assert_eq!(pair.1, json!(["y", "x", 4]));
    assert_eq!(
        made.1["record"],
        json!({"id": 2, "twice": 4, "b": "y", "later": 5})
    );
    assert_eq!(made.1["old_record"]["twice"], 2);
}

#[tokio::test]
async fn a_table_that_is_renamed_says_its_new_name_and_keeps_its_event_types() {
    let database = orders().await;
    database
        .sql(
            "select postrider.watch('orders', endpoint => 'e');
             alter table orders rename to purchases; create schema shop; alter table purchases set schema shop;
             insert into shop.purchases values (1)",
        )
        .await;

    let found = events(&database).await;
    assert_eq!(found[0].0, "orders.insert");
    assert_eq!(
        (&found[0].1["schema"], &found[0].1["table"]),
        (&json!("shop"), &json!("purchases"))
    );
}

#[tokio::test]
async fn what_cannot_be_watched_is_refused() {
    let database = orders().await;
    database
        .sql(
            "create view a_view as select 1 as id; create materialized view matter as select 1 as id; create temp table fleeting (id int);
             create foreign data wrapper nothing; create server nowhere foreign data wrapper nothing;
             create foreign table far (id int) server nowhere;
             create table parts (id int) partition by list (id);
             create foreign table parts_far partition of parts for values in (1) server nowhere",
        )
        .await;

    for table in [
        "a_view",
        "matter",
        "fleeting",
        "far",
        "parts",
        "postrider.deliveries",
        "pg_class",
        "orders_pkey",
    ] {
        let (state, said) = refused(
            &database,
            &format!("select postrider.watch('{table}', endpoint => 'e')"),
        )
        .await;
        assert_eq!(state, "PR012", "{table}: {said}");
    }
    assert_eq!(count(&database, "postrider.watches").await, 0);
    database
        .sql("drop foreign data wrapper nothing cascade")
        .await;
}
