#!/bin/sh
# Creates the database on an empty volume, then runs PostgreSQL. The variables are those of the official image:
# POSTGRES_USER (postgres), POSTGRES_PASSWORD or POSTGRES_PASSWORD_FILE (one is required), POSTGRES_DB (the user's name), PGDATA.
set -eu
if [ "${1:-postgres}" != postgres ]; then
  exec "$@"
fi
user=${POSTGRES_USER:-postgres}
database=${POSTGRES_DB:-$user}
mkdir -p "$PGDATA"
chmod 700 "$PGDATA" 2>/dev/null || true
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  if [ -n "${POSTGRES_PASSWORD_FILE:-}" ]; then
    password=$(cat "$POSTGRES_PASSWORD_FILE")
  else
    password=${POSTGRES_PASSWORD:-}
  fi
  if [ -z "$password" ]; then
    echo "firn-postgres: no password for user $user: set POSTGRES_PASSWORD_FILE or POSTGRES_PASSWORD" >&2
    exit 1
  fi
  # Create the database in another directory and move it. The file that marks it as complete moves last, so a pod that died before starts again.
  unfinished="$PGDATA/.unfinished"
  if [ -d "$unfinished" ]; then
    find "$PGDATA" -mindepth 1 -delete
  fi
  secret=$(mktemp)
  printf '%s' "$password" > "$secret"
  initdb --pgdata="$unfinished" --username="$user" --pwfile="$secret" --encoding=UTF8 --locale=C.UTF-8 \
    --auth-local=trust --auth-host=scram-sha-256
  rm -f "$secret"
  {
    echo "listen_addresses = '*'"
    echo "log_destination = 'stderr'"
  } >> "$unfinished/postgresql.conf"
  echo 'host all all all scram-sha-256' >> "$unfinished/pg_hba.conf"
  if [ "$database" != postgres ]; then
    echo "CREATE DATABASE \"$database\"" | postgres --single -j -D "$unfinished" postgres > /dev/null
  fi
  find "$unfinished" -mindepth 1 -maxdepth 1 ! -name PG_VERSION -exec mv -t "$PGDATA" {} +
  mv "$unfinished/PG_VERSION" "$PGDATA/"
  rmdir "$unfinished"
fi
shift || true
exec postgres -D "$PGDATA" "$@"
