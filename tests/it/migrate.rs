//! The schema is created once, whoever runs at the same time, and never built upon when it is not what we think.

use std::sync::Arc;
use std::time::{Duration, Instant};

use postrider::store::Error;
use postrider::store::migrate::{self, Content, UpOptions};
use tokio::sync::Barrier;

use crate::server::Database;

/// Far above what a lock should take, far below the deadline of a hanging test.
const SOON: Duration = Duration::from_secs(20);

fn impatient() -> UpOptions {
    UpOptions {
        lock_timeout: Duration::from_millis(50),
        patience: Duration::from_millis(300),
    }
}

async fn up(database: &Database, options: UpOptions) -> Result<usize, Error> {
    let applied = migrate::up(&mut database.open().await, options, |_| ()).await?;
    Ok(applied.len())
}

async fn status(database: &Database) -> Vec<(i32, Content)> {
    let rows = migrate::status(&database.open().await)
        .await
        .expect("the status can be read");
    rows.iter().map(|row| (row.version, row.content)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn twenty_at_once_apply_each_migration_once() {
    let database = Database::create().await;
    let gate = Arc::new(Barrier::new(20));
    let mut runners = Vec::new();
    for _ in 0..20 {
        let (mut client, gate) = (database.open().await, Arc::clone(&gate));
        runners.push(tokio::spawn(async move {
            gate.wait().await;
            migrate::up(&mut client, UpOptions::default(), |_| ())
                .await
                .map(|applied| applied.len())
        }));
    }

    let mut applied = 0;
    for runner in runners {
        applied += runner
            .await
            .expect("no runner panics")
            .expect("every runner succeeds");
    }

    assert_eq!(i32::try_from(applied), Ok(migrate::newest()));
    let rows = database
        .value("select count(*)::text from postrider.schema_migrations")
        .await;
    assert_eq!(rows, migrate::newest().to_string());
    migrate::check(&database.open().await)
        .await
        .expect("the schema fits");
}

#[tokio::test]
async fn an_empty_database_has_all_pending_and_is_refused_as_without_schema() {
    let database = Database::create().await;

    assert_eq!(status(&database).await[0], (1, Content::Pending));
    let error = migrate::check(&database.open().await)
        .await
        .expect_err("there is no schema");
    assert!(matches!(error, Error::SchemaMissing), "{error:?}");
    assert_eq!(
        database
            .value("select count(*)::text from pg_namespace where nspname = 'postrider'")
            .await,
        "0"
    );
}

#[tokio::test]
async fn an_applied_migration_of_another_content_stops_everything_and_is_named() {
    let database = Database::create().await;
    up(&database, UpOptions::default())
        .await
        .expect("it applies");
    database
        .run("update postrider.schema_migrations set checksum = repeat('0', 64) where version = 1")
        .await;

    let error = up(&database, UpOptions::default())
        .await
        .expect_err("the content differs");

    assert!(matches!(error, Error::MigrationChanged { .. }), "{error:?}");
    assert!(error.to_string().contains("0001_core.sql"), "{error}");
    assert_eq!(status(&database).await[0], (1, Content::Changed));
}

#[tokio::test]
async fn a_schema_that_is_newer_is_refused_with_both_versions() {
    let database = Database::create().await;
    up(&database, UpOptions::default())
        .await
        .expect("it applies");
    database.run("insert into postrider.schema_migrations (version, name, checksum) values (4711, 'x', 'y')").await;

    let checked = migrate::check(&database.open().await)
        .await
        .expect_err("it is newer");
    let migrated = up(&database, UpOptions::default())
        .await
        .expect_err("it is newer");

    for error in [checked, migrated] {
        assert!(
            matches!(error, Error::SchemaTooNew { found: 4711, .. }),
            "{error:?}"
        );
        let said = error.to_string();
        assert!(
            said.contains("4711") && said.contains(&migrate::newest().to_string()),
            "{said}"
        );
    }
    assert_eq!(
        status(&database).await.last(),
        Some(&(4711, Content::Unknown))
    );
}

#[tokio::test]
async fn a_schema_that_is_older_is_refused_with_both_versions() {
    let database = Database::create().await;
    up(&database, UpOptions::default())
        .await
        .expect("it applies");
    database.run("delete from postrider.schema_migrations where version = (select max(version) from postrider.schema_migrations)").await;

    let error = migrate::check(&database.open().await)
        .await
        .expect_err("it is older");

    let found = migrate::newest() - 1;
    assert!(matches!(error, Error::SchemaTooOld { .. }), "{error:?}");
    let said = error.to_string();
    assert!(
        said.contains(&found.to_string()) && said.contains(&migrate::newest().to_string()),
        "{said}"
    );
}

#[tokio::test]
async fn a_lock_that_is_held_elsewhere_ends_the_wait_in_time_and_is_named() {
    let database = Database::create().await;
    let mut other = database.open().await;
    let held = other.transaction().await.expect("a transaction");
    held.batch_execute(&format!("select pg_advisory_xact_lock({})", migrate::LOCK))
        .await
        .expect("it is free");
    let pid: i32 = held
        .query_one("select pg_backend_pid()", &[])
        .await
        .expect("a row")
        .try_get(0)
        .expect("a pid");

    let started = Instant::now();
    let error = up(&database, impatient())
        .await
        .expect_err("the lock is held");

    assert!(started.elapsed() < SOON);
    assert!(
        matches!(error, Error::MigrationBusy { .. }) && error.is_transient(),
        "{error:?}"
    );
    assert!(error.to_string().contains(&format!("pid {pid}")), "{error}");
    held.rollback().await.expect("the lock is free again");
    up(&database, UpOptions::default())
        .await
        .expect("nobody is in the way");
}

#[tokio::test]
async fn a_table_that_stays_locked_ends_the_wait_in_time() {
    let database = Database::create().await;
    up(&database, UpOptions::default())
        .await
        .expect("it applies");
    let mut other = database.open().await;
    let held = other.transaction().await.expect("a transaction");
    held.batch_execute("lock table postrider.schema_migrations in access exclusive mode")
        .await
        .expect("it is free");

    let started = Instant::now();
    let error = up(&database, impatient())
        .await
        .expect_err("the table is locked");

    assert!(started.elapsed() >= impatient().lock_timeout && started.elapsed() < SOON);
    assert!(
        error.is_transient() && !error.needs_new_connection(),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_migration_that_fails_is_rolled_back_whole_and_named() {
    let database = Database::create().await;
    // A table of a name that the first migration wants.
    database
        .run("create schema postrider; create table postrider.attempts (other int)")
        .await;

    let error = up(&database, UpOptions::default())
        .await
        .expect_err("the name is taken");

    assert!(matches!(error, Error::MigrationFailed { .. }), "{error:?}");
    assert!(error.to_string().contains("0001_core.sql"), "{error}");
    let tables = database.value("select string_agg(relname, ',') from pg_class where relnamespace = 'postrider'::regnamespace and relkind = 'r'").await;
    assert_eq!(tables, "attempts");
}

#[tokio::test]
async fn a_role_without_privileges_is_told_so() {
    let database = Database::create().await;
    let stranger = database.stranger().await;

    let mut client = crate::server::open(&stranger).await;
    let creating = migrate::up(&mut client, UpOptions::default(), |_| ())
        .await
        .expect_err("it may not create");
    up(&database, UpOptions::default())
        .await
        .expect("the superuser may");
    let reading = migrate::check(&client).await.expect_err("it may not read");

    assert!(
        matches!(creating, Error::NotPermitted { .. }),
        "{creating:?}"
    );
    assert!(matches!(reading, Error::NotPermitted { .. }), "{reading:?}");
}
