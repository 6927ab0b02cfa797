use super::{does, is_denied, refusal, role, session_as};
use crate::support::Database;

#[tokio::test]
async fn only_the_owner_of_the_schema_or_a_superuser_grants() {
    let database = Database::private().await;
    let owner = role(&database, "owner").await;
    let stranger = role(&database, "stranger").await;
    database
        .sql(&format!(
            "grant execute on all functions in schema postrider to {stranger};
             grant usage on schema postrider to {stranger};
             do $$ declare o record; begin
               alter schema postrider owner to {owner};
               for o in select case c.relkind when 'v' then 'view' when 'S' then 'sequence' else 'table' end as kind, c.oid::regclass as name from pg_class c
                         where c.relnamespace = 'postrider'::regnamespace and c.relkind in ('r', 'p', 'v', 'S')
                           and not exists (select from pg_depend d where d.objid = c.oid and d.deptype = 'i' and c.relkind = 'S') loop
                 execute format('alter %s %s owner to {owner}', o.kind, o.name);
               end loop;
               for o in select p.oid::regprocedure as name from pg_proc p where p.pronamespace = 'postrider'::regnamespace loop
                 execute format('alter routine %s owner to {owner}', o.name);
               end loop;
             end $$"
        ))
        .await;
    let producer = role(&database, "producer").await;

    let session = session_as(&database, &stranger).await;
    let (state, said) = refusal(
        &session,
        &format!("select postrider.grant_producer('{producer}')"),
    )
    .await;
    assert_eq!(
        (state.code(), said.contains("may not grant")),
        ("42501", true),
        "{said}"
    );
    let (state, _) = refusal(&session, &format!("select postrider.revoke('{producer}')")).await;
    assert_eq!(state.code(), "42501");

    let session = session_as(&database, &owner).await;
    does(&session, &format!("select postrider.grant_producer('{producer}', true); select postrider.revoke('{producer}'); select postrider.grant_producer('{producer}')")).await;
    database.endpoint("shop", "http://127.0.0.1:1/").await;
    let session = session_as(&database, &producer).await;
    does(&session, "select postrider.send('shop', 't', '{}')").await;
}

#[tokio::test]
async fn granted_twice_is_granted_once_and_what_is_revoked_can_be_dropped() {
    let database = Database::fresh().await;
    let acls = "select md5(string_agg(acl, ' ' order by acl)) from (
                  select c.relacl::text from pg_class c where c.relnamespace = 'postrider'::regnamespace
                  union all select a.attacl::text from pg_attribute a join pg_class c on c.oid = a.attrelid where c.relnamespace = 'postrider'::regnamespace
                  union all select p.proacl::text from pg_proc p where p.pronamespace = 'postrider'::regnamespace) o (acl)";
    let role = role(&database, "all").await;
    let grant_all = format!(
        "select postrider.grant_producer('{role}'), postrider.grant_worker('{role}'), postrider.grant_reader('{role}'), postrider.grant_operator('{role}')"
    );

    database.sql(&grant_all).await;
    let once: String = database.value(acls).await;
    database.sql(&grant_all).await;
    assert_eq!(database.value::<String>(acls).await, once);
    for _ in 0..2 {
        database
            .sql(&format!("select postrider.revoke('{role}')"))
            .await;
    }

    database.sql(&format!("drop role {role}")).await;
}

#[tokio::test]
async fn a_role_may_have_any_name_and_be_a_group() {
    let database = Database::private().await;
    database
        .endpoint("shop", "http://127.0.0.1:1/")
        .set("tenant", "a")
        .await;
    let member = role(&database, "member").await;
    let name = format!("{}_Shop \"App\", x; drop", database.name());
    let quoted = format!("\"{}\"", name.replace('"', "\"\""));
    let literal = quoted.replace('\'', "''");
    database
        .sql(&format!(
            "drop role if exists {quoted}; create role {quoted}; grant {quoted} to {member};
             select postrider.grant_producer('{literal}', true), postrider.grant_reader('{literal}', true)"
        ))
        .await;

    let session = session_as(&database, &member).await;
    does(
        &session,
        "set postrider.tenant = 'a'; select postrider.send('shop', 't', '{}')",
    )
    .await;
    is_denied(
        &session,
        "set postrider.tenant = 'b'; select postrider.send('shop', 't', '{}')",
    )
    .await;

    drop(session);
    database
        .sql(&format!(
            "select postrider.revoke('{literal}'); drop role {quoted}"
        ))
        .await;
}
