# Postrider as an image: the worker, and every other subcommand.
#
#   docker build --tag postrider .
#   docker run --rm --env POSTRIDER_DATABASE_URL postrider worker
#
# The worker is process 1, so `docker stop` reaches it. It lets tries in flight go on for 20 s (--grace), and Docker kills
# after 10: stop it with `docker stop -t 30`, or set the grace period of your orchestrator to match.

FROM rust:1.95-slim-trixie AS build
WORKDIR /src
COPY . .
# What was downloaded and compiled stays with the builder, so a change of the source costs only its own compilation. Cargo
# goes by file times, and a file may be older than the last build and yet another one: hence `touch`.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    touch src/lib.rs src/main.rs \
 && cargo build --release --locked --bin postrider \
 && cp target/release/postrider /usr/local/bin/postrider

FROM debian:trixie-slim
LABEL org.opencontainers.image.title="postrider" \
      org.opencontainers.image.description="Delivers webhooks out of PostgreSQL" \
      org.opencontainers.image.licenses="MIT OR Apache-2.0"
# By number, so that an orchestrator can tell that it is not root; by name, since libpq's rules ask what the user is called.
RUN useradd --uid 65532 --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin postrider
# Without CA certificates no https:// endpoint could be reached.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /usr/local/bin/postrider /usr/local/bin/postrider
USER 65532:65532
ENTRYPOINT ["postrider"]
CMD ["--help"]
