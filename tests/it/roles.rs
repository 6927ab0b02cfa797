//! Who may do what: each role does its part, and no more.

/// Every object of the schema is decided on, for every role.
mod matrix;
/// Each role at its work.
mod parts;
/// Who grants, to whom, and what is left after a revoke.
mod granting;
/// What a producer tries that means harm, and what others may learn.
mod hostile;
/// A role bound to a tenant sees that tenant, whatever it tries.
mod tenants;

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::support::Database;

/// A role of this database, without any privilege yet. It goes when the database is lent again.
async fn role(database: &Database, part: &str) -> String {
    let role = format!("{}_{part}", database.name());
    database
        .sql(&format!(
            "do $$ begin
               if exists (select from pg_roles where rolname = '{role}') then
                 drop owned by {role};
                 drop role {role};
               end if;
             end $$;
             create role {role} login password 's3cret'"
        ))
        .await;
    role
}

/// A role that `postrider.grant_<part>` was called for.
async fn granted(database: &Database, part: &str) -> String {
    let role = role(database, part).await;
    database
        .sql(&format!("select postrider.grant_{part}('{role}')"))
        .await;
    role
}

/// The database's address for a session that acts as this role from its beginning.
fn url_as(database: &Database, role: &str) -> String {
    let joint = if database.url().contains('?') {
        '&'
    } else {
        '?'
    };
    format!("{}{joint}options=-crole%3D{role}", database.url())
}

/// A session that acts as this role.
async fn session_as(database: &Database, role: &str) -> Client {
    let session = database.connect().await;
    session
        .batch_execute(&format!("set role {role}"))
        .await
        .expect("a superuser may be anybody");
    session
}

/// Its SQLSTATE and its message.
async fn refusal(session: &Client, statement: &str) -> (SqlState, String) {
    let error = session.batch_execute(statement).await;
    let error = error.expect_err(statement);
    let said = error
        .as_db_error()
        .unwrap_or_else(|| panic!("{statement}: {error}"));
    (said.code().clone(), said.message().to_owned())
}

/// PostgreSQL's own "permission denied", and not only something that went wrong.
async fn is_denied(session: &Client, statement: &str) {
    let (state, said) = refusal(session, statement).await;
    assert_eq!(
        state,
        SqlState::INSUFFICIENT_PRIVILEGE,
        "{statement}: {said}"
    );
}

async fn does(session: &Client, statement: &str) {
    session
        .batch_execute(statement)
        .await
        .unwrap_or_else(|error| panic!("{statement}: {error:?}"));
}

/// The one text of the one row.
async fn text(session: &Client, query: &str) -> String {
    let row = session.query_one(query, &[]).await;
    let row = row.unwrap_or_else(|error| panic!("{query}: {error:?}"));
    row.try_get(0).expect("a text")
}
