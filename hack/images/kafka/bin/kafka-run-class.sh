#!/bin/sh
# Runs a class of Kafka: kafka-run-class.sh CLASS ARGUMENT... It reads the variables of Kafka's script of this name:
# KAFKA_HEAP_OPTS, KAFKA_JVM_PERFORMANCE_OPTS, KAFKA_GC_LOG_OPTS, KAFKA_JMX_OPTS, KAFKA_LOG4J_OPTS, KAFKA_OPTS, CLASSPATH, LOG_DIR.
base=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd)
exec java ${KAFKA_HEAP_OPTS:--Xmx256m} \
  ${KAFKA_JVM_PERFORMANCE_OPTS:--server -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35 -XX:+ExplicitGCInvokesConcurrent -Djava.awt.headless=true} \
  ${KAFKA_GC_LOG_OPTS:-} ${KAFKA_JMX_OPTS:-} "-Dkafka.logs.dir=${LOG_DIR:-/tmp/kafka-logs}" \
  ${KAFKA_LOG4J_OPTS:--Dlog4j2.configurationFile=$base/config/tools-log4j2.yaml} \
  -cp "${CLASSPATH:+$CLASSPATH:}$base/libs/*" ${KAFKA_OPTS:-} "$@"
