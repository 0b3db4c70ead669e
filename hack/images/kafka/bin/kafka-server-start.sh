#!/bin/sh
# Becomes a Kafka server: kafka-server-start.sh server.properties [--override name=value]...
if [ $# -lt 1 ]; then
  echo "usage: $0 server.properties [--override name=value]..." >&2
  exit 1
fi
base=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd)
export KAFKA_HEAP_OPTS="${KAFKA_HEAP_OPTS:--Xmx1G -Xms1G}"
export KAFKA_LOG4J_OPTS="${KAFKA_LOG4J_OPTS:--Dlog4j2.configurationFile=$base/config/log4j2.yaml}"
exec "$base/bin/kafka-run-class.sh" kafka.Kafka "$@"
