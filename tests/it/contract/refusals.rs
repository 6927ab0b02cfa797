use std::collections::BTreeSet;

use crate::support::Database;

/// A CHECK, and something that only this one refuses.
const NONSENSE: &[(&str, &str)] = &[
    (
        "changes_operation_is_insert_update_or_delete",
        "insert into postrider.changes (watch, schema_name, table_name, operation, event_type, records, tries) values ('w', 's', 't', 'truncate', 'e', '[]', 0)",
    ),
    (
        "changes_have_records_or_old_records",
        "insert into postrider.changes (watch, schema_name, table_name, operation, event_type, records, tries) values ('w', 's', 't', 'insert', 'e', null, 0)",
    ),
    (
        "changes_tries_are_not_negative",
        "insert into postrider.changes (watch, schema_name, table_name, operation, event_type, records, tries) values ('w', 's', 't', 'insert', 'e', '[]', -1)",
    ),
    (
        "attempts_outcome_is_known",
        "insert into postrider.attempts (started_at, delivery_id, claim_no, attempt_no, endpoint, outcome) values (now(), 1, 1, 1, 'shop', 'lucky')",
    ),
    (
        "deliveries_content_type_goes_with_body",
        "update postrider.deliveries set content_type = 'text/plain'",
    ),
    (
        "deliveries_counts_are_not_negative",
        "update postrider.deliveries set attempt_count = -1",
    ),
    (
        "deliveries_counts_are_not_negative",
        "update postrider.deliveries set claim_no = -1",
    ),
    (
        "deliveries_counts_are_not_negative",
        "update postrider.deliveries set budget_from = attempt_count + 1",
    ),
    (
        "deliveries_event_id_is_1_to_500_bytes",
        "update postrider.deliveries set event_id = ''",
    ),
    (
        "deliveries_event_id_is_1_to_500_bytes",
        "update postrider.deliveries set event_id = repeat('é', 251)",
    ),
    (
        "deliveries_exhausted_has_a_reason",
        "update postrider.deliveries set status = 'exhausted', next_retry = null, finished_at = now()",
    ),
    (
        "deliveries_exhausted_has_a_reason",
        "update postrider.deliveries set exhausted_reason = 'lost'",
    ),
    (
        "deliveries_exhausted_reason_is_known",
        "update postrider.deliveries set status = 'exhausted', next_retry = null, finished_at = now(), exhausted_reason = 'boredom'",
    ),
    (
        "deliveries_finished_means_never_tried_again",
        "update postrider.deliveries set finished_at = now()",
    ),
    (
        "deliveries_finished_means_never_tried_again",
        "update postrider.deliveries set status = 'delivered', next_retry = null",
    ),
    (
        "deliveries_have_one_of_payload_body_event",
        "update postrider.deliveries set body = 'x'",
    ),
    (
        "deliveries_have_one_of_payload_body_event",
        "update postrider.deliveries set payload = null",
    ),
    (
        "deliveries_have_one_of_payload_body_event",
        "update postrider.deliveries set status = 'delivered', next_retry = null, finished_at = now(), payload_purged_at = now()",
    ),
    (
        "deliveries_only_finished_rows_are_purged",
        "update postrider.deliveries set payload = null, payload_purged_at = now()",
    ),
    (
        "retention_kind_is_known",
        "insert into postrider.retention (kind, age) values ('workers', '1 day')",
    ),
    (
        "retention_age_is_between_a_minute_and_a_century",
        "update postrider.retention set age = '0'",
    ),
    (
        "retention_age_is_between_a_minute_and_a_century",
        "update postrider.retention set age = '-30 days'",
    ),
    (
        "retention_age_is_between_a_minute_and_a_century",
        "update postrider.retention set age = '101 years'",
    ),
    (
        "retention_keeps_replies_and_attempts_for_a_day",
        "update postrider.retention set age = '23 hours' where kind = 'attempts'",
    ),
    (
        "deliveries_headers_is_a_json_object",
        "update postrider.deliveries set headers = '[]'",
    ),
    (
        "deliveries_max_retries_is_between_0_and_1000",
        "update postrider.deliveries set max_retries = -1",
    ),
    (
        "deliveries_max_retries_is_between_0_and_1000",
        "update postrider.deliveries set max_retries = 1001",
    ),
    (
        "deliveries_only_open_rows_are_leased",
        "update postrider.deliveries set status = 'delivered', next_retry = null, finished_at = now(), lease_expires_at = now()",
    ),
    (
        "deliveries_queued_or_failed_means_scheduled",
        "update postrider.deliveries set next_retry = null",
    ),
    (
        "deliveries_status_is_known",
        "update postrider.deliveries set status = 'sending', next_retry = null",
    ),
    (
        "endpoint_secrets_secret_is_whsec_and_base64_of_24_to_64_bytes",
        "insert into postrider.endpoint_secrets (endpoint, secret) values ('shop', 'hunter2')",
    ),
    (
        "endpoint_secrets_secret_is_whsec_and_base64_of_24_to_64_bytes",
        "insert into postrider.endpoint_secrets (endpoint, secret) values ('shop', 'whsec_' || encode(repeat('x', 23)::bytea, 'base64'))",
    ),
    (
        "endpoint_secrets_secret_is_whsec_and_base64_of_24_to_64_bytes",
        "insert into postrider.endpoint_secrets (endpoint, secret) values ('shop', 'whsec_' || replace(encode(repeat('x', 65)::bytea, 'base64'), E'\\n', ''))",
    ),
    (
        "endpoint_health_rate_can_be_counted",
        "update postrider.endpoint_health set rate_tokens = 'NaN'",
    ),
    (
        "endpoint_health_rate_can_be_counted",
        "update postrider.endpoint_health set rate_filled_at = '-infinity'",
    ),
    (
        "endpoints_disabled_at_says_when_it_was_disabled",
        "alter table postrider.endpoints disable trigger endpoints_before_write; update postrider.endpoints set enabled = false",
    ),
    (
        "endpoints_event_types_are_types_or_end_in_dot_star",
        "update postrider.endpoints set event_types = '{order.paid,order*}'",
    ),
    (
        "endpoints_event_types_has_no_nulls",
        "update postrider.endpoints set event_types = '{order.paid,null}'",
    ),
    (
        "endpoints_tenant_is_at_most_200_characters",
        "update postrider.endpoints set tenant = repeat('é', 201)",
    ),
    (
        "endpoints_headers_is_a_json_object",
        "update postrider.endpoints set headers = '\"x\"'",
    ),
    (
        "endpoints_max_in_flight_is_between_1_and_10000",
        "update postrider.endpoints set max_in_flight = 0",
    ),
    (
        "endpoints_max_in_flight_is_between_1_and_10000",
        "update postrider.endpoints set max_in_flight = 10001",
    ),
    (
        "endpoints_max_retries_is_between_0_and_1000",
        "update postrider.endpoints set max_retries = -1",
    ),
    (
        "endpoints_method_is_post_put_or_patch",
        "update postrider.endpoints set method = 'GET'",
    ),
    (
        "endpoints_name_is_1_to_200_printable_characters",
        "insert into postrider.endpoints (name, url) values ('', 'http://a.test/')",
    ),
    (
        "endpoints_name_is_1_to_200_printable_characters",
        "insert into postrider.endpoints (name, url) values (E'a\\nb', 'http://a.test/')",
    ),
    (
        "endpoints_rate_limit_is_between_a_millionth_and_a_million",
        "update postrider.endpoints set rate_limit = 0",
    ),
    (
        "endpoints_rate_limit_is_between_a_millionth_and_a_million",
        "update postrider.endpoints set rate_limit = '5e-324'",
    ),
    (
        "endpoints_rate_limit_is_between_a_millionth_and_a_million",
        "update postrider.endpoints set rate_limit = 'NaN'",
    ),
    (
        "endpoints_rate_limit_is_between_a_millionth_and_a_million",
        "update postrider.endpoints set rate_limit = 'infinity'",
    ),
    (
        "endpoints_signature_header_goes_with_body_base64",
        "update postrider.endpoints set signature_header = 'X-Mine'",
    ),
    (
        "endpoints_signature_scheme_is_known",
        "update postrider.endpoints set signature_scheme = 'rot13'",
    ),
    (
        "endpoints_timeout_is_between_100_ms_and_1_hour",
        "update postrider.endpoints set timeout = '99 ms'",
    ),
    (
        "endpoints_timeout_is_between_100_ms_and_1_hour",
        "update postrider.endpoints set timeout = '61 min'",
    ),
    (
        "endpoints_timeout_is_between_100_ms_and_1_hour",
        "update postrider.endpoints set timeout = '300000 years -108000000 days 1 min'",
    ),
    (
        "endpoints_url_is_not_empty",
        "update postrider.endpoints set url = ''",
    ),
    (
        "report_changes_add_or_take_away",
        "insert into postrider.report_changes (endpoint, hour, change, codes) values ('shop', now(), 2, '{7}')",
    ),
    (
        "reports_count_each_bucket",
        "insert into postrider.reports (endpoint, hour, tries, delivered, first_tries, first_delivered, ended, ended_delivered, buckets, counts)
         values ('shop', now(), 1, 1, 1, 1, 1, 1, '{5}', '{}')",
    ),
    (
        "retry_policies_base_and_cap_are_between_zero_and_a_year",
        "update postrider.retry_policies set base = '-1 s' where name = 'exponential'",
    ),
    (
        "retry_policies_base_and_cap_are_between_zero_and_a_year",
        "update postrider.retry_policies set cap = '367 days' where name = 'exponential'",
    ),
    (
        "retry_policies_delays_are_between_zero_and_a_year",
        "update postrider.retry_policies set delays = '{-1 s}'",
    ),
    (
        "retry_policies_delays_are_between_zero_and_a_year",
        "update postrider.retry_policies set delays = '{-20000 years 7200000 days 1 min}'",
    ),
    (
        "retry_policies_delays_are_between_zero_and_a_year",
        "update postrider.retry_policies set delays = '{1 s,null}'",
    ),
    (
        "retry_policies_exponential_has_base_factor_and_cap",
        "update postrider.retry_policies set factor = null where name = 'exponential'",
    ),
    (
        "retry_policies_factor_is_between_1_and_1000",
        "update postrider.retry_policies set factor = 0.5 where name = 'exponential'",
    ),
    (
        "retry_policies_jitter_is_between_0_and_1",
        "update postrider.retry_policies set jitter = 'NaN'",
    ),
    (
        "retry_policies_kind_is_schedule_or_exponential",
        "insert into postrider.retry_policies (name, kind, max_retries) values ('mine', 'never', 0)",
    ),
    (
        "retry_policies_max_retries_is_between_0_and_1000",
        "update postrider.retry_policies set max_retries = -1",
    ),
    (
        "retry_policies_retry_on_lists_codes_and_ranges",
        "update postrider.retry_policies set retry_on = '{5xx}'",
    ),
    (
        "retry_policies_retry_on_lists_codes_and_ranges",
        "update postrider.retry_policies set retry_on = '{200-299}'",
    ),
    (
        "retry_policies_schedule_has_a_delay_for_its_retries",
        "update postrider.retry_policies set delays = '{}' where name = 'standard'",
    ),
];

#[tokio::test]
async fn every_check_refuses_its_nonsense_by_name() {
    let database = Database::fresh().await;
    database.endpoint("shop", "http://127.0.0.1:1/").await;
    database.insert("shop", "{}").await;

    for (check, nonsense) in NONSENSE {
        let attempt = format!("begin; {nonsense}; commit");
        let refused = database.client().batch_execute(&attempt).await;
        database.sql("rollback").await;

        let refused = refused.expect_err(nonsense);
        let refused = refused.as_db_error().expect("the server refused it");
        assert_eq!(refused.constraint(), Some(*check), "{nonsense}: {refused}");
    }
}

#[tokio::test]
async fn no_check_is_without_a_test() {
    let database = Database::fresh().await;

    let checks: Vec<String> = database
        .value(
            "select array_agg(c.conname::text) from pg_constraint c join pg_class t on t.oid = c.conrelid
              where t.relnamespace = 'postrider'::regnamespace and c.contype = 'c' and not t.relispartition",
        )
        .await;

    let tested: BTreeSet<&str> = NONSENSE.iter().map(|(check, _)| *check).collect();
    let checks: BTreeSet<&str> = checks.iter().map(String::as_str).collect();
    assert_eq!(checks, tested);
}

#[tokio::test]
async fn an_endpoint_that_is_not_there_is_refused_at_the_insert() {
    let database = Database::fresh().await;
    let insert = "insert into postrider.deliveries (endpoint, event_type, payload) values ('nobody', 't', '{}')";

    let refused = database.client().batch_execute(insert).await;

    let refused = refused.expect_err("there is no such endpoint");
    let refused = refused.as_db_error().expect("the server refused it");
    assert_eq!(refused.constraint(), Some("deliveries_endpoint_exists"));
}
