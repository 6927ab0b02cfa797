-- The core: endpoints, deliveries, attempts, and what people call. The essay is in sql/README.md.

do $$
begin
  if current_setting('server_version_num')::integer < 140000 then
    raise exception 'Postrider needs PostgreSQL 14 or later, this server is %', current_setting('server_version') using errcode = '0A000';
  elsif current_setting('server_encoding') <> 'UTF8' then
    raise exception 'Postrider needs a database in UTF8, this one is in %', current_setting('server_encoding') using errcode = '0A000',
      hint = 'Bytes must arrive as they were written. Create one with: create database ... encoding ''UTF8'' template template0';
  end if;
end
$$;

-- ------------------------------------------------------------------ retry policies

create function postrider.lists_statuses(items text[]) returns boolean
language sql immutable strict set search_path = pg_catalog, pg_temp as $$
  select coalesce(bool_and(item is not null and item ~ '^[3-5][0-9]{2}(-[3-5][0-9]{2})?$' and left(item, 3) <= right(item, 3)), true)
    from unnest(items) as item
$$;
comment on function postrider.lists_statuses(text[]) is 'Whether each item is a status (429) or a range from low to high (500-599), from 300 to 599.';

create function postrider.are_waits(waits interval[]) returns boolean
language sql immutable strict set search_path = pg_catalog, pg_temp as $$
  -- In seconds too: comparing takes a year for 360 days, and years and days that cancel out would be a wait of a thousand years.
  select coalesce(bool_and(wait between interval '0' and interval '366 days' and extract(epoch from wait) between 0 and 31622400), true)
    from unnest(waits) as wait
$$;
comment on function postrider.are_waits(interval[]) is 'Whether each wait is between zero and 366 days; NULL is none.';

create table postrider.retry_policies (
  name        text collate "C" primary key,
  kind        text not null,
  delays      interval[] not null default '{}',
  base        interval,
  factor      double precision,
  cap         interval,
  jitter      double precision not null default 0.2,
  max_retries integer not null,
  retry_on    text[],
  constraint retry_policies_kind_is_schedule_or_exponential check (kind in ('schedule', 'exponential')),
  constraint retry_policies_schedule_has_a_delay_for_its_retries
    check (kind <> 'schedule' or max_retries = 0 or cardinality(delays) > 0),
  constraint retry_policies_delays_are_between_zero_and_a_year
    check (array_position(delays, null) is null
           and postrider.are_waits(delays)),
  constraint retry_policies_exponential_has_base_factor_and_cap
    check (kind <> 'exponential' or (base is not null and factor is not null and cap is not null)),
  constraint retry_policies_base_and_cap_are_between_zero_and_a_year
    check (postrider.are_waits(array[base, cap])),
  constraint retry_policies_factor_is_between_1_and_1000 check (factor between 1 and 1000),
  constraint retry_policies_jitter_is_between_0_and_1 check (jitter between 0 and 1),
  constraint retry_policies_max_retries_is_between_0_and_1000 check (max_retries between 0 and 1000),
  constraint retry_policies_retry_on_lists_codes_and_ranges
    check (postrider.lists_statuses(retry_on))
);
comment on table postrider.retry_policies is 'When a failed try is tried again. Add your own with INSERT; endpoints name one in retry_policy.';
comment on column postrider.retry_policies.name is 'What endpoints call it.';
comment on column postrider.retry_policies.kind is 'schedule: the delays in order, the last one repeats. exponential: base * factor^(n-1), at most cap.';
comment on column postrider.retry_policies.delays is 'schedule only: wait before the 1st, 2nd, ... retry.';
comment on column postrider.retry_policies.base is 'exponential only: wait before the first retry.';
comment on column postrider.retry_policies.factor is 'exponential only: each wait is this many times the one before.';
comment on column postrider.retry_policies.cap is 'exponential only: the longest wait.';
comment on column postrider.retry_policies.jitter is 'Share of the delay by which it varies at random, both ways: 0.2 is 80 % to 120 %.';
comment on column postrider.retry_policies.max_retries is 'Retries after the first try; 0 means one try. Endpoint and delivery may override it.';
comment on column postrider.retry_policies.retry_on is
  'Status codes and ranges that are retried, for example {403,429,500-599}. NULL: {429,500-599}. 2xx is always delivered, 410 always gone; connection failures are always retried.';

insert into postrider.retry_policies (name, kind, delays, base, factor, cap, jitter, max_retries) values
  ('standard', 'schedule', '{5 s,5 min,30 min,2 h,5 h,10 h,10 h}', null, null, null, 0.2, 7),
  ('exponential', 'exponential', '{}', '30 s', 2, '1 h', 0.2, 4),
  ('frappe', 'schedule', '{5 min,30 min,2 h,5 h,10 h,10 h}', null, null, null, 0, 3),
  ('once', 'schedule', '{}', null, null, null, 0, 0);

-- ------------------------------------------------------------------ endpoints

create sequence postrider.revisions;
comment on sequence postrider.revisions is 'Numbers the edits of endpoints, so that workers know when to read one again.';

create table postrider.endpoints (
  name             text collate "C" primary key default 'ep_' || replace(gen_random_uuid()::text, '-', ''),
  url              text not null,
  enabled          boolean not null default true,
  disabled_at      timestamptz,
  disabled_reason  text,
  paused           boolean not null default false,
  paused_reason    text,
  retry_policy     text collate "C" not null default 'standard' references postrider.retry_policies (name),
  max_retries      integer,
  timeout          interval not null default '15 s',
  max_in_flight    integer not null default 64,
  rate_limit       double precision,
  ordered          boolean not null default false,
  event_types      text[],
  filter           jsonpath,
  tenant           text,
  headers          jsonb,
  method           text not null default 'POST',
  signature_scheme text not null default 'standard',
  signature_header text,
  revision         bigint not null default nextval('postrider.revisions'),
  created_at       timestamptz not null default now(),
  updated_at       timestamptz not null default now(),
  constraint endpoints_name_is_1_to_200_printable_characters check (name ~ '^[^[:cntrl:]]{1,200}$'),
  constraint endpoints_url_is_not_empty check (url <> ''),
  constraint endpoints_disabled_at_says_when_it_was_disabled check (enabled = (disabled_at is null)),
  constraint endpoints_max_retries_is_between_0_and_1000 check (max_retries between 0 and 1000),
  -- Comparing takes a month for 30 days, adding does not: months and days that cancel out would overflow every claim.
  constraint endpoints_timeout_is_between_100_ms_and_1_hour
    check (timeout between interval '100 ms' and interval '1 h' and extract(day from timeout) = 0 and extract(month from timeout) = 0 and extract(year from timeout) = 0),
  constraint endpoints_max_in_flight_is_between_1_and_10000 check (max_in_flight between 1 and 10000),
  constraint endpoints_rate_limit_is_between_a_millionth_and_a_million check (rate_limit between 0.000001 and 1000000),
  constraint endpoints_ordered_is_not_offered_yet check (not ordered),
  constraint endpoints_event_types_has_no_nulls check (array_position(event_types, null) is null),
  constraint endpoints_headers_is_a_json_object check (jsonb_typeof(headers) = 'object'),
  constraint endpoints_method_is_post_put_or_patch check (method in ('POST', 'PUT', 'PATCH')),
  constraint endpoints_signature_scheme_is_known
    check (signature_scheme in ('standard', 'github', 'stripe', 'body-base64', 'none')),
  constraint endpoints_signature_header_goes_with_body_base64
    check (signature_header is null or signature_scheme = 'body-base64')
);
comment on table postrider.endpoints is 'Where deliveries go. Edits reach the next try, not only new deliveries.';
comment on column postrider.endpoints.name is 'How deliveries name it; generated when you leave it out.';
comment on column postrider.endpoints.url is 'http or https. Credentials in it (user:password@) become a Basic header and are shown nowhere.';
comment on column postrider.endpoints.enabled is 'false: its open deliveries end as exhausted, endpoint_disabled. Use postrider.disable and postrider.enable.';
comment on column postrider.endpoints.disabled_at is 'When it was disabled; set by itself.';
comment on column postrider.endpoints.disabled_reason is 'Why, for people. A 410 from the receiver disables and says so here.';
comment on column postrider.endpoints.paused is 'true: its deliveries wait, nothing ends. Use postrider.pause and postrider.resume.';
comment on column postrider.endpoints.paused_reason is 'Why, for people.';
comment on column postrider.endpoints.retry_policy is 'A row of retry_policies.';
comment on column postrider.endpoints.max_retries is 'Retries after the first try; NULL: the policy''s. 0 means one try.';
comment on column postrider.endpoints.timeout is 'Budget of one whole try: DNS, connect, TLS, headers and body.';
comment on column postrider.endpoints.max_in_flight is 'Requests at a time, over all workers.';
comment on column postrider.endpoints.rate_limit is 'Requests per second over all workers; NULL: no limit.';
comment on column postrider.endpoints.ordered is 'Reserved: delivery in order of insertion is not offered yet.';
comment on column postrider.endpoints.event_types is 'Reserved for fan-out by event type: exact types or order.* patterns; NULL: all.';
comment on column postrider.endpoints.filter is 'Reserved for fan-out: a jsonpath predicate over the payload; NULL: everything matches.';
comment on column postrider.endpoints.tenant is 'Whose endpoint it is, when you have tenants.';
comment on column postrider.endpoints.headers is 'Sent with every delivery: an object of strings, for example {"Authorization": "Bearer ..."}.';
comment on column postrider.endpoints.method is 'POST, PUT or PATCH.';
comment on column postrider.endpoints.signature_scheme is
  'standard (Standard Webhooks), github, stripe, body-base64 or none. webhook-id and webhook-timestamp are sent with each.';
comment on column postrider.endpoints.signature_header is 'body-base64 only: the header that carries the signature; NULL: X-Hmac-Sha256.';
comment on column postrider.endpoints.revision is 'Changes with every edit of the endpoint, its secrets or its policy; set by itself.';
comment on column postrider.endpoints.created_at is 'When it was made.';
comment on column postrider.endpoints.updated_at is 'When it was last edited; set by itself.';
create index endpoints_by_policy on postrider.endpoints (retry_policy);

create table postrider.endpoint_secrets (
  id         bigint generated always as identity primary key,
  endpoint   text collate "C" not null references postrider.endpoints (name) on update cascade on delete cascade,
  secret     text not null,
  created_at timestamptz not null default clock_timestamp(),
  expires_at timestamptz,
  constraint endpoint_secrets_secret_is_whsec_and_base64_of_24_to_64_bytes
    check (secret ~ '^whsec_([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$'
           and (length(secret) - 6) / 4 * 3 - (length(secret) - length(rtrim(secret, '='))) between 24 and 64)
);
comment on table postrider.endpoint_secrets is 'Signing secrets. All that have not expired sign, the newest first; rotate with postrider.rotate_secret.';
comment on column postrider.endpoint_secrets.id is 'Given by the table.';
comment on column postrider.endpoint_secrets.endpoint is 'Whose secret it is.';
comment on column postrider.endpoint_secrets.secret is '"whsec_" and the base64 of 24 to 64 random bytes. Give it to the receiver, and to nobody else.';
comment on column postrider.endpoint_secrets.created_at is 'The newest signs first.';
comment on column postrider.endpoint_secrets.expires_at is 'Signs until then; NULL: without end.';
create index endpoint_secrets_by_endpoint on postrider.endpoint_secrets (endpoint);

create table postrider.endpoint_health (
  endpoint             text collate "C" primary key references postrider.endpoints (name) on update cascade on delete cascade,
  consecutive_failures integer not null default 0,
  failing_since        timestamptz,
  last_success_at      timestamptz,
  circuit_open_until   timestamptz,
  rate_tokens          double precision not null default 1,
  rate_filled_at       timestamptz not null default now(),
  -- The claim counts with them; an overflow there would stop every worker.
  constraint endpoint_health_rate_can_be_counted check (rate_tokens between -1000000 and 1000000 and isfinite(rate_filled_at))
) with (fillfactor = 50);
comment on table postrider.endpoint_health is 'What workers learn about endpoints. Workers write it; read it, do not edit it.';
comment on column postrider.endpoint_health.endpoint is 'postrider.endpoints.name.';
comment on column postrider.endpoint_health.consecutive_failures is 'Failed tries since the last success.';
comment on column postrider.endpoint_health.failing_since is 'When the first of them was recorded; NULL: healthy.';
comment on column postrider.endpoint_health.last_success_at is 'The success that ended the last run of failures, or the first one.';
comment on column postrider.endpoint_health.circuit_open_until is 'Nothing is sent to it before then.';
comment on column postrider.endpoint_health.rate_tokens is 'Requests it may get at rate_filled_at, when it has a rate_limit.';
comment on column postrider.endpoint_health.rate_filled_at is 'When rate_tokens was counted.';

-- ------------------------------------------------------------------ events and deliveries

create table postrider.events (
  id         bigint generated always as identity primary key,
  event_id   text not null default 'evt_' || replace(gen_random_uuid()::text, '-', ''),
  event_type text not null,
  payload    json not null,
  tenant     text,
  created_at timestamptz not null default now()
);
comment on table postrider.events is 'Published events: bytes stored once for all the deliveries that name them in deliveries.event.';
comment on column postrider.events.id is 'What deliveries.event names.';
comment on column postrider.events.event_id is 'The event_id of all its deliveries.';
comment on column postrider.events.event_type is 'For example order.paid.';
comment on column postrider.events.payload is 'JSON text; sent byte for byte as it was written.';
comment on column postrider.events.tenant is 'Whose event it is, when you have tenants.';
comment on column postrider.events.created_at is 'Start of the transaction that published it.';

create table postrider.deliveries (
  id               bigint generated always as identity primary key,
  next_retry       timestamptz default now(),
  lease_expires_at timestamptz,
  claim_no         bigint not null default 0,
  event            bigint references postrider.events (id),
  created_at       timestamptz not null default now(),
  finished_at      timestamptz,
  attempt_count    integer not null default 0,
  budget_from      integer not null default 0,
  max_retries      integer,
  last_status_code integer,
  status           text not null default 'queued',
  endpoint         text collate "C" not null,
  event_id         text collate "C" not null default 'evt_' || replace(gen_random_uuid()::text, '-', ''),
  event_type       text not null,
  exhausted_reason text,
  leased_by        text,
  last_error       text,
  content_type     text,
  headers          jsonb,
  payload          json,
  body             bytea,
  constraint deliveries_endpoint_exists foreign key (endpoint) references postrider.endpoints (name),
  constraint deliveries_event_id_is_unique_per_endpoint unique (endpoint, event_id),
  constraint deliveries_event_id_is_1_to_500_bytes check (octet_length(event_id) between 1 and 500),
  constraint deliveries_have_one_of_payload_body_event check (num_nonnulls(payload, body, event) = 1),
  constraint deliveries_content_type_goes_with_body check (content_type is null or body is not null),
  constraint deliveries_headers_is_a_json_object check (jsonb_typeof(headers) = 'object'),
  constraint deliveries_status_is_known check (status in ('queued', 'failed', 'delivered', 'exhausted')),
  constraint deliveries_queued_or_failed_means_scheduled
    check ((status in ('queued', 'failed')) = (next_retry is not null)),
  constraint deliveries_exhausted_has_a_reason check ((status = 'exhausted') = (exhausted_reason is not null)),
  constraint deliveries_exhausted_reason_is_known
    check (exhausted_reason in ('retries_used', 'rejected', 'gone', 'unbuildable', 'blocked',
                                'endpoint_disabled', 'cancelled', 'deadline', 'lost')),
  constraint deliveries_finished_means_never_tried_again
    check ((status in ('delivered', 'exhausted')) = (finished_at is not null)),
  constraint deliveries_only_open_rows_are_leased check (lease_expires_at is null or next_retry is not null),
  constraint deliveries_max_retries_is_between_0_and_1000 check (max_retries between 0 and 1000),
  constraint deliveries_counts_are_not_negative check (attempt_count >= 0 and budget_from between 0 and attempt_count and claim_no >= 0)
) with (
  fillfactor = 50,
  autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
  autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 5000
);
create index deliveries_due on postrider.deliveries (status, next_retry) where next_retry is not null;
-- The id makes the order one and the same for all rows of a bulk insert, which share a next_retry: what is in flight stays in front.
create index deliveries_lane on postrider.deliveries (endpoint, next_retry, id) where next_retry is not null;

comment on table postrider.deliveries is
  'One row per event and endpoint: insert endpoint, event_type and payload (or body); workers do the rest.';
comment on column postrider.deliveries.id is 'Given by the table.';
comment on column postrider.deliveries.endpoint is 'FILL IN. A name from postrider.endpoints.';
comment on column postrider.deliveries.event_id is
  'Your idempotency key, unique per endpoint; sent as webhook-id, the same on every try. Generated when you leave it out.';
comment on column postrider.deliveries.event_type is 'FILL IN. For example order.paid.';
comment on column postrider.deliveries.payload is 'FILL IN this or body. JSON text; sent byte for byte as you wrote it.';
comment on column postrider.deliveries.body is 'Instead of payload: any bytes, with content_type.';
comment on column postrider.deliveries.content_type is 'Media type of body; NULL: application/octet-stream.';
comment on column postrider.deliveries.event is 'Instead of payload: a row of postrider.events, whose payload is sent.';
comment on column postrider.deliveries.headers is 'Extra headers: an object of strings. They win over the endpoint''s.';
comment on column postrider.deliveries.status is
  'queued: waits for its first try. failed: waits for a retry. delivered. exhausted: will never be tried again.';
comment on column postrider.deliveries.exhausted_reason is
  'retries_used, rejected, gone, unbuildable, blocked, endpoint_disabled, cancelled, deadline or lost.';
comment on column postrider.deliveries.max_retries is 'Override for this delivery; NULL: the endpoint''s, then its policy''s. 0 means one try.';
comment on column postrider.deliveries.attempt_count is 'Physical tries on record in postrider.attempts.';
comment on column postrider.deliveries.budget_from is 'attempt_count when the present retry budget began; a replay begins a new one.';
comment on column postrider.deliveries.next_retry is 'When it is due. Insert a later time to schedule it. NULL once it is finished.';
comment on column postrider.deliveries.claim_no is 'Fencing token: + 1 at every change of ownership. Who holds an older one changes nothing.';
comment on column postrider.deliveries.lease_expires_at is 'In flight while this is in the future.';
comment on column postrider.deliveries.leased_by is 'The worker that holds the lease.';
comment on column postrider.deliveries.last_status_code is 'HTTP status of the newest try, if it got one.';
comment on column postrider.deliveries.last_error is 'Why the newest try did not deliver.';
comment on column postrider.deliveries.created_at is 'Start of the transaction that inserted it.';
comment on column postrider.deliveries.finished_at is 'When it was delivered or exhausted.';

-- ------------------------------------------------------------------ attempts

create table postrider.attempts (
  started_at         timestamptz not null,
  delivery_id        bigint not null,
  claim_no           bigint not null,
  next_retry         timestamptz,
  attempt_no         integer not null,
  duration_ms        integer,
  status_code        integer,
  response_truncated boolean not null default false,
  endpoint           text collate "C" not null,
  outcome            text not null,
  error_kind         text,
  error              text,
  worker             text,
  remote_addr        text,
  request_headers    jsonb,
  response_headers   jsonb,
  response_body      bytea,
  constraint attempts_pkey primary key (delivery_id, claim_no, started_at),
  constraint attempts_outcome_is_known
    check (outcome in ('delivered', 'retry', 'rejected', 'blocked', 'unbuildable', 'lost'))
) partition by range (started_at);
comment on table postrider.attempts is 'Every physical HTTP try, one row each, partitioned by day (UTC) on started_at.';
comment on column postrider.attempts.delivery_id is 'postrider.deliveries.id.';
comment on column postrider.attempts.attempt_no is '1, 2, 3 ... within its delivery, replays included.';
comment on column postrider.attempts.claim_no is 'The claim under which it was made.';
comment on column postrider.attempts.endpoint is 'Where it went.';
comment on column postrider.attempts.started_at is 'When the try began, in the database''s time.';
comment on column postrider.attempts.duration_ms is 'From the first look-up to the last byte read, in milliseconds; NULL for lost.';
comment on column postrider.attempts.outcome is
  'delivered; retry: failed for now; rejected: failed for good; blocked and unbuildable: no byte was sent; lost: its worker never reported.';
comment on column postrider.attempts.status_code is 'HTTP status, if one arrived.';
comment on column postrider.attempts.error_kind is 'dns, connect, tls, timeout, protocol, blocked, unbuildable or lost; NULL when a status arrived.';
comment on column postrider.attempts.error is 'What went wrong, for people.';
comment on column postrider.attempts.request_headers is 'What was sent, as [[name, value], ...]; credentials and signatures masked.';
comment on column postrider.attempts.response_headers is 'All that came back, in order, as [[name, value], ...]; bytes that are not UTF-8 as \xNN.';
comment on column postrider.attempts.response_body is 'The first 16 KiB.';
comment on column postrider.attempts.response_truncated is 'Whether the receiver sent more than response_body holds, or broke off.';
comment on column postrider.attempts.remote_addr is 'The address that answered.';
comment on column postrider.attempts.worker is 'Who made it.';
comment on column postrider.attempts.next_retry is 'What was decided: when it is tried again; NULL: not again.';

create function postrider.make_attempt_partitions(first_day date, last_day date) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  day date;
  made integer := 0;
  partition text;
begin
  if first_day is null or last_day is null or last_day - first_day > 400 then
    raise exception 'make_attempt_partitions takes two days at most 400 apart, not % and %', first_day, last_day;
  end if;
  for day in select first_day + n from generate_series(0, last_day - first_day) as n loop
    partition := 'attempts_' || to_char(day, 'YYYYMMDD');
    continue when to_regclass('postrider.' || partition) is not null;
    -- Two workers may get here at once: the second waits for this lock and then finds the table.
    perform pg_advisory_xact_lock(hashtext('postrider.make_attempt_partitions'));
    continue when to_regclass('postrider.' || partition) is not null;
    -- Attaching takes a weaker lock on the parent than CREATE ... PARTITION OF: tries go on being recorded.
    execute format('create table postrider.%I (like postrider.attempts including defaults including constraints including comments)', partition);
    execute format('alter table postrider.%I set (autovacuum_vacuum_insert_scale_factor = 0.05)', partition);
    execute format('alter table postrider.attempts attach partition postrider.%I for values from (%L) to (%L)',
                   partition, day::text || ' 00:00:00+00', (day + 1)::text || ' 00:00:00+00');
    made := made + 1;
  end loop;
  return made;
end
$$;
comment on function postrider.make_attempt_partitions(date, date) is
  'Makes the day partitions of attempts that are missing from first_day to last_day (UTC); returns how many. Workers call it.';
select postrider.make_attempt_partitions((now() at time zone 'utc')::date - 1, (now() at time zone 'utc')::date + 7);

-- ------------------------------------------------------------------ workers and the doorbell

create table postrider.workers (
  id             text collate "C" primary key,
  hostname       text not null,
  pid            integer not null,
  version        text not null,
  started_at     timestamptz not null default now(),
  last_seen_at   timestamptz not null default now(),
  sleeping_until timestamptz
) with (fillfactor = 50);
comment on table postrider.workers is 'Workers that run, or ran and were killed. A worker that stops removes its row.';
comment on column postrider.workers.id is 'Its --name, or host, process id and a random part.';
comment on column postrider.workers.hostname is 'The machine that it runs on.';
comment on column postrider.workers.pid is 'Its process id there.';
comment on column postrider.workers.version is 'Of the program.';
comment on column postrider.workers.started_at is 'When it put itself on this list.';
comment on column postrider.workers.last_seen_at is 'Renewed every few seconds.';
comment on column postrider.workers.sleeping_until is 'It has nothing to do and wants the doorbell; NULL: it looks by itself.';

create function postrider.ring() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  -- NOTIFY takes a lock at commit that all committers share, so nobody rings while all workers are awake.
  if exists (select from postrider.workers w where w.sleeping_until > clock_timestamp()) then
    perform pg_notify('postrider', '');
  end if;
end
$$;
comment on function postrider.ring() is 'Wakes sleeping workers when the transaction commits. They find new rows without it, one poll later.';

create function postrider.ring_doorbell() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform postrider.ring();
  return null;
end
$$;
comment on function postrider.ring_doorbell() is 'Trigger: rings after each INSERT statement into deliveries.';
create trigger deliveries_ring_doorbell after insert on postrider.deliveries
  for each statement execute function postrider.ring_doorbell();

create function postrider.refuse_counts() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  raise exception 'a new delivery cannot begin at claim_no %, attempt_count % and a lease until %', new.claim_no, new.attempt_count, new.lease_expires_at
    using errcode = '23514', hint = 'Leave claim_no, attempt_count, budget_from and lease_expires_at out: workers count them.';
end
$$;
comment on function postrider.refuse_counts() is 'Trigger: refuses a new delivery whose counters would soon overflow, and with them every claim, or that no worker could ever take.';
create trigger deliveries_refuse_counts before insert on postrider.deliveries for each row
  when (new.claim_no > 1000000000000 or new.attempt_count > 1000000 or new.lease_expires_at = 'infinity')
  execute function postrider.refuse_counts();

create function postrider.lane_in_flight(
  endpoint text, max_in_flight integer, worker text, out in_flight integer, out by_worker integer
)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
  -- Until its transaction ends, a claim has the lane for itself. It must count after it has the lock, and in a snapshot of that
  -- moment, to see what the claim before it took: hence a function, whose queries see more than the statement that calls it.
  if not pg_try_advisory_xact_lock(hashtextextended('postrider.lane ' || lane_in_flight.endpoint, 0)) then
    return;
  end if;
  -- What is in flight stands in front, but for rows that others lock, and older ones that were committed late: 32 of them are
  -- looked past.
  select count(*), count(*) filter (where head.leased_by = lane_in_flight.worker)
    into lane_in_flight.in_flight, lane_in_flight.by_worker
    from (select d.lease_expires_at, d.leased_by
            from postrider.deliveries d
           where d.endpoint = lane_in_flight.endpoint and d.next_retry is not null and d.next_retry <= clock_timestamp()
           order by d.next_retry, d.id
           limit lane_in_flight.max_in_flight + 32) head
   where head.lease_expires_at > clock_timestamp();
end
$$;
comment on function postrider.lane_in_flight(text, integer, text) is
  'How many of an endpoint''s deliveries are in flight, in all and by one worker, for its claim; NULL while another claim is at them.';

-- ------------------------------------------------------------------ what keeps endpoints consistent

create function postrider.new_secret() returns text
language sql volatile set search_path = pg_catalog, pg_temp as $$
  -- Each uuid is 122 bits of the server's strong randomness; the hash spreads 244 of them over 32 bytes.
  select 'whsec_' || encode(sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())), 'base64')
$$;
comment on function postrider.new_secret() is 'A fresh signing secret.';

create function postrider.endpoints_before_write() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if new.enabled then
    new.disabled_at := null;
    new.disabled_reason := null;
  else
    new.disabled_at := coalesce(new.disabled_at, now());
  end if;
  if not new.paused then
    new.paused_reason := null;
  end if;
  if tg_op = 'UPDATE' then
    new.revision := nextval('postrider.revisions');
    new.updated_at := now();
  end if;
  return new;
end
$$;
comment on function postrider.endpoints_before_write() is 'Trigger: fills in what follows from the rest of the row, and numbers the edit.';
create trigger endpoints_before_write before insert or update on postrider.endpoints
  for each row execute function postrider.endpoints_before_write();

create function postrider.endpoints_after_insert() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  insert into postrider.endpoint_secrets (endpoint, secret) values (new.name, postrider.new_secret());
  insert into postrider.endpoint_health (endpoint) values (new.name);
  return null;
end
$$;
comment on function postrider.endpoints_after_insert() is 'Trigger: gives a new endpoint its secret and its health record.';
create trigger endpoints_after_insert after insert on postrider.endpoints
  for each row execute function postrider.endpoints_after_insert();

create function postrider.endpoint_secrets_after_write() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  update postrider.endpoints e set revision = nextval('postrider.revisions')
   where e.name in (old.endpoint, new.endpoint);
  return null;
end
$$;
comment on function postrider.endpoint_secrets_after_write() is 'Trigger: a change of secrets is an edit of their endpoint.';
create trigger endpoint_secrets_after_write after insert or update or delete on postrider.endpoint_secrets
  for each row execute function postrider.endpoint_secrets_after_write();

create function postrider.retry_policies_after_update() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  update postrider.endpoints e set revision = nextval('postrider.revisions') where e.retry_policy = new.name;
  return null;
end
$$;
comment on function postrider.retry_policies_after_update() is 'Trigger: a change of a policy is an edit of the endpoints that name it.';
create trigger retry_policies_after_update after update on postrider.retry_policies
  for each row execute function postrider.retry_policies_after_update();

-- ------------------------------------------------------------------ what people call
-- Errors of our own: PR001 no such delivery, PR002 in flight, PR003 already finished,
-- PR004 no such endpoint, PR005 endpoint disabled.

create function postrider.send(
  endpoint text, event_type text, payload json, event_id text default null, deliver_at timestamptz default null
) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  delivery bigint;
begin
  insert into postrider.deliveries as d (endpoint, event_type, payload, event_id, next_retry)
  values (send.endpoint, send.event_type, send.payload,
          coalesce(send.event_id, 'evt_' || replace(gen_random_uuid()::text, '-', '')),
          coalesce(send.deliver_at, now()))
  on conflict on constraint deliveries_event_id_is_unique_per_endpoint do nothing
  returning d.id into delivery;
  if delivery is null then
    select d.id into delivery from postrider.deliveries d
     where d.endpoint = send.endpoint and d.event_id = send.event_id;
  end if;
  return delivery;
end
$$;
comment on function postrider.send(text, text, json, text, timestamptz) is
  'Queues one delivery in your transaction and returns its id. The same event_id to the same endpoint again changes nothing and returns the first one''s id.';

create function postrider.replay(id bigint, seen_claim_no bigint default null) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  d record;
begin
  select r.status, r.claim_no, r.lease_expires_at > clock_timestamp() as in_flight, r.endpoint, e.enabled
    into d
    from postrider.deliveries r join postrider.endpoints e on e.name = r.endpoint
   where r.id = replay.id for no key update of r;
  if not found then
    raise exception 'there is no delivery %', replay.id using errcode = 'PR001',
      hint = 'Its id is in postrider.deliveries; finished rows may have been pruned.';
  elsif d.in_flight then
    raise exception 'delivery % is in flight', replay.id using errcode = 'PR002',
      hint = 'Wait for the result of this try, then replay it if it is still needed.';
  elsif d.status in ('queued', 'failed') or d.claim_no <> replay.seen_claim_no then
    return false;
  elsif not d.enabled then
    raise exception 'endpoint % is disabled, a replay would end at once', d.endpoint using errcode = 'PR005',
      hint = format('Call postrider.enable(%L) first.', d.endpoint);
  end if;
  update postrider.deliveries r
     set status = 'queued', exhausted_reason = null, finished_at = null, next_retry = now(),
         budget_from = r.attempt_count, claim_no = r.claim_no + 1
   where r.id = replay.id;
  perform postrider.ring();
  return true;
end
$$;
comment on function postrider.replay(bigint, bigint) is
  'Sends a finished delivery again: same event_id, same bytes, a fresh retry budget. True: it is queued. False: it was open already, or seen_claim_no is no longer its claim_no. Raises PR002 while it is in flight.';

create function postrider.replay_matching(
  endpoint text default null, reason text default null, status text default 'exhausted',
  since timestamptz default null, until timestamptz default null, max_rows integer default 1000
) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  replayed bigint;
begin
  if replay_matching.status not in ('exhausted', 'delivered') then
    raise exception 'only exhausted or delivered deliveries can be replayed, not %', replay_matching.status;
  end if;
  with chosen as materialized (
    select r.id from postrider.deliveries r join postrider.endpoints e on e.name = r.endpoint and e.enabled
     where r.status = replay_matching.status and r.next_retry is null
       and (replay_matching.endpoint is null or r.endpoint = replay_matching.endpoint)
       and (replay_matching.reason is null or r.exhausted_reason = replay_matching.reason)
       and (replay_matching.since is null or r.finished_at >= replay_matching.since)
       and (replay_matching.until is null or r.finished_at < replay_matching.until)
     order by r.id limit replay_matching.max_rows for no key update of r skip locked
  )
  update postrider.deliveries r
     set status = 'queued', exhausted_reason = null, finished_at = null, next_retry = now(),
         budget_from = r.attempt_count, claim_no = r.claim_no + 1
    from chosen c where r.id = c.id;
  get diagnostics replayed = row_count;
  if replayed > 0 then
    perform postrider.ring();
  end if;
  return replayed;
end
$$;
comment on function postrider.replay_matching(text, text, text, timestamptz, timestamptz, integer) is
  'Replays finished deliveries of enabled endpoints, oldest first, at most max_rows; returns how many. Call it again until it returns 0.';

create function postrider.cancel(id bigint) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  d record;
begin
  select r.* into d from postrider.deliveries r where r.id = cancel.id for no key update;
  if not found then
    raise exception 'there is no delivery %', cancel.id using errcode = 'PR001',
      hint = 'Its id is in postrider.deliveries; finished rows may have been pruned.';
  elsif d.status = 'exhausted' and d.exhausted_reason = 'cancelled' then
    return false;
  elsif d.next_retry is null then
    raise exception 'delivery % is already %', cancel.id, d.status using errcode = 'PR003',
      hint = 'Only queued and failed deliveries can be cancelled.';
  end if;
  if d.lease_expires_at is not null then
    -- Whoever takes over a lease puts that try on record; its own result, if one comes, replaces the row.
    insert into postrider.attempts (started_at, delivery_id, claim_no, attempt_no, endpoint, outcome, error_kind, error, worker)
    values (now(), d.id, d.claim_no, d.attempt_count + 1, d.endpoint, 'lost', 'lost', 'cancelled while it was in flight', d.leased_by);
  end if;
  update postrider.deliveries r
     set status = 'exhausted', exhausted_reason = 'cancelled', finished_at = now(), next_retry = null,
         lease_expires_at = null, leased_by = null, claim_no = r.claim_no + 1,
         attempt_count = r.attempt_count + case when d.lease_expires_at is null then 0 else 1 end
   where r.id = cancel.id;
  return true;
end
$$;
comment on function postrider.cancel(bigint) is
  'Ends an open delivery as exhausted, cancelled. True: cancelled now. False: it was cancelled before. A try that is in flight cannot be called back; its result goes on record. Raises PR003 when it is finished.';

create function postrider.edit_endpoint(endpoint text, enabled boolean, paused boolean, reason text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  update postrider.endpoints e
     set enabled = coalesce(edit_endpoint.enabled, e.enabled),
         paused = coalesce(edit_endpoint.paused, e.paused),
         disabled_reason = case when edit_endpoint.enabled is null then e.disabled_reason else edit_endpoint.reason end,
         paused_reason = case when edit_endpoint.paused is null then e.paused_reason else edit_endpoint.reason end
   where e.name = edit_endpoint.endpoint;
  if not found then
    raise exception 'there is no endpoint %', edit_endpoint.endpoint using errcode = 'PR004',
      hint = 'List them: select name, url from postrider.endpoints.';
  end if;
  perform postrider.ring();
end
$$;
comment on function postrider.edit_endpoint(text, boolean, boolean, text) is 'What pause, resume, enable and disable share; call those.';

create function postrider.pause(endpoint text, reason text default null) returns void
language sql set search_path = pg_catalog, pg_temp as $$ select postrider.edit_endpoint(endpoint, null, true, reason) $$;
comment on function postrider.pause(text, text) is 'Its deliveries wait from now on; tries in flight finish.';

create function postrider.resume(endpoint text) returns void
language sql set search_path = pg_catalog, pg_temp as $$ select postrider.edit_endpoint(endpoint, null, false, null) $$;
comment on function postrider.resume(text) is 'Ends a pause.';

create function postrider.disable(endpoint text, reason text default null) returns void
language sql set search_path = pg_catalog, pg_temp as $$ select postrider.edit_endpoint(endpoint, false, null, reason) $$;
comment on function postrider.disable(text, text) is 'Its open deliveries end as exhausted, endpoint_disabled; replay them when it is enabled again.';

create function postrider.enable(endpoint text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform postrider.edit_endpoint(enable.endpoint, true, null, null);
  update postrider.endpoint_health h
     set consecutive_failures = 0, failing_since = null, circuit_open_until = null
   where h.endpoint = enable.endpoint;
end
$$;
comment on function postrider.enable(text) is 'Sends to it again, with a clean health record.';

create function postrider.rotate_secret(endpoint text, overlap interval default '24 hours') returns text
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  fresh text := postrider.new_secret();
begin
  if overlap is null or overlap < interval '0' then
    raise exception 'overlap must be zero or longer, not %', overlap using errcode = '22023',
      hint = 'For how long the old secrets go on signing, for example interval ''24 hours''.';
  end if;
  perform from postrider.endpoints e where e.name = rotate_secret.endpoint for no key update;
  if not found then
    raise exception 'there is no endpoint %', rotate_secret.endpoint using errcode = 'PR004',
      hint = 'List them: select name, url from postrider.endpoints.';
  end if;
  update postrider.endpoint_secrets s
     set expires_at = least(s.expires_at, clock_timestamp() + overlap)
   where s.endpoint = rotate_secret.endpoint and (s.expires_at is null or s.expires_at > clock_timestamp());
  insert into postrider.endpoint_secrets (endpoint, secret) values (rotate_secret.endpoint, fresh);
  return fresh;
end
$$;
comment on function postrider.rotate_secret(text, interval) is
  'Gives the endpoint a new secret and returns it; the old ones go on signing beside it for the overlap.';

-- ------------------------------------------------------------------ what people read

create view postrider.delivery_state as
select d.id, d.endpoint, d.event_id, d.event_type,
       case when d.lease_expires_at > now() then 'sending'
            when d.next_retry is not null and (e.paused or not e.enabled) then 'held'
            when d.status = 'queued' and d.next_retry > now() then 'scheduled'
            else d.status end as state,
       d.status, d.exhausted_reason, d.attempt_count, d.next_retry, d.lease_expires_at, d.leased_by,
       d.last_status_code, d.last_error, d.created_at, d.finished_at
  from postrider.deliveries d join postrider.endpoints e on e.name = d.endpoint;
comment on view postrider.delivery_state is
  'Deliveries with what they do right now: sending (in flight), scheduled (first try is later), held (endpoint paused or disabled), or their status.';

create view postrider.dead_letters as
select d.id, d.endpoint, d.event_id, d.event_type, d.exhausted_reason, d.attempt_count,
       d.last_status_code, d.last_error, d.created_at, d.finished_at
  from postrider.deliveries d where d.status = 'exhausted' and d.next_retry is null;
comment on view postrider.dead_letters is 'Deliveries that will never be tried again, and why. Send one again with postrider.replay(id).';

create view postrider.due_now as
select d.endpoint, count(*) as due, min(d.next_retry) as oldest_due
  from postrider.deliveries d join postrider.endpoints e on e.name = d.endpoint and e.enabled and not e.paused
 where d.next_retry <= now() and (d.lease_expires_at is null or d.lease_expires_at <= now())
 group by d.endpoint;
comment on view postrider.due_now is 'Deliveries that wait for a worker at this moment, per endpoint that is neither paused nor disabled.';

create view postrider.success_rate as
select a.endpoint, date_trunc('hour', a.started_at) as hour,
       count(*) as tries,
       count(*) filter (where a.outcome = 'delivered') as delivered_tries,
       count(*) filter (where a.attempt_no = 1) as first_tries,
       count(*) filter (where a.attempt_no = 1 and a.outcome = 'delivered') as first_try_delivered,
       count(*) filter (where a.attempt_no = 1 and d.status = 'delivered') as eventually_delivered,
       round(100.0 * count(*) filter (where a.outcome = 'delivered') / count(*), 2) as success_percent,
       percentile_cont(0.5) within group (order by a.duration_ms) as p50_ms,
       percentile_cont(0.95) within group (order by a.duration_ms) as p95_ms,
       percentile_cont(0.99) within group (order by a.duration_ms) as p99_ms
  from postrider.attempts a
  left join postrider.deliveries d on d.id = a.delivery_id and a.attempt_no = 1
 group by a.endpoint, date_trunc('hour', a.started_at);
comment on view postrider.success_rate is
  'Per endpoint and hour: tries and how many delivered, events first tried in that hour and how many arrived at once and by now, and how long tries took.';

create view postrider.endpoint_summary as
select e.name as endpoint, e.enabled, e.paused, e.disabled_reason,
       coalesce(o.open, 0) as open, coalesce(o.due, 0) as due, coalesce(o.in_flight, 0) as in_flight,
       coalesce(o.failed, 0) as failed, o.oldest_due,
       h.consecutive_failures, h.failing_since, h.last_success_at
  from postrider.endpoints e
  left join postrider.endpoint_health h on h.endpoint = e.name
  left join (
    select d.endpoint, count(*) as open,
           count(*) filter (where d.next_retry <= now() and coalesce(d.lease_expires_at <= now(), true)) as due,
           count(*) filter (where d.lease_expires_at > now()) as in_flight,
           count(*) filter (where d.status = 'failed') as failed,
           min(d.next_retry) filter (where coalesce(d.lease_expires_at <= now(), true)) as oldest_due
      from postrider.deliveries d where d.next_retry is not null group by d.endpoint
  ) o on o.endpoint = e.name;
comment on view postrider.endpoint_summary is 'Each endpoint with its open deliveries and its health.';
