{{/* Labels of an object. Argument: dict "root" $ "component" NAME */}}
{{- define "firn.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{ include "firn.podLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end }}

{{/* Labels of a pod: no version in them, so that an upgrade of the chart alone restarts nothing. */}}
{{- define "firn.podLabels" -}}
{{ include "firn.selector" . }}
app.kubernetes.io/part-of: firn
{{- end }}

{{- define "firn.selector" -}}
app.kubernetes.io/name: firn
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Reference of an image of ours. Argument: dict "root" $ "name" (operator | spark | broker) */}}
{{- define "firn.image" -}}
{{- $images := .root.Values.images -}}
{{- $digest := get ($images.digests | default dict) .name -}}
{{- if get $images .name -}}
{{- if $digest -}}
{{- fail (printf "images.digests.%s: images.%s is a full reference. Write it as NAME@%s instead, or remove it" .name .name $digest) -}}
{{- end -}}
{{ get $images .name }}
{{- else -}}
{{ required (printf "images.registry is empty: set it to where firn-%s was pushed, or give the full reference in images.%s" .name .name) $images.registry }}/firn-{{ .name }}{{ if $digest }}@{{ $digest }}{{ else }}:{{ $images.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end }}

{{- define "firn.pullSecrets" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Pod-level security context that PodSecurity `restricted` asks for. Argument: the uid, group and fsGroup */}}
{{- define "firn.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: {{ . }}
  runAsGroup: {{ . }}
  fsGroup: {{ . }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{- define "firn.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{/* The volume of a container's scratch files. It has no more space than the container may use. Argument: resources of the container */}}
{{- define "firn.scratch" -}}
{{- with dig "limits" "ephemeral-storage" "" . -}}
{sizeLimit: {{ . }}}
{{- else -}}
{}
{{- end -}}
{{- end }}

{{/* Argument: scheduling as in the configuration (nodeSelector, tolerations, affinity, ...) */}}
{{- define "firn.scheduling" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .topologySpreadConstraints }}
topologySpreadConstraints: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{/* Profiles and catalogs, with what the quick start adds, and the names of diskless profiles. JSON: {profiles, catalogs, diskless} */}}
{{- define "firn.lake" -}}
{{- $profiles := deepCopy .Values.profiles -}}
{{- $catalogs := deepCopy .Values.catalogs -}}
{{- if .Values.quickStart.enabled -}}
  {{- if hasKey $profiles "classic" -}}
    {{- fail "profiles.classic: the quick start has a profile of that name. Set quickStart.profile instead, or quickStart.enabled=false" -}}
  {{- end -}}
  {{- if hasKey $catalogs "lake" -}}
    {{- fail "catalogs.lake: the quick start has a catalog of that name. Choose another one, or set quickStart.enabled=false" -}}
  {{- end -}}
  {{- $_ := set $profiles "classic" .Values.quickStart.profile -}}
  {{- if .Values.quickStart.diskless.enabled -}}
    {{- if hasKey $profiles "diskless" -}}
      {{- fail "profiles.diskless: the quick start has a profile of that name. Set quickStart.diskless.profile instead, or quickStart.diskless.enabled=false" -}}
    {{- end -}}
    {{- $_ := set $profiles "diskless" (include "firn.quickStartDiskless" . | fromYaml) -}}
  {{- end -}}
  {{- $_ := set $catalogs "lake" (include "firn.quickStartCatalog" . | fromYaml) -}}
{{- end -}}
{{- range $key, $known := dict "defaultProfile" $profiles "defaultCatalog" $catalogs "defaultGroup" .Values.groups -}}
  {{- $name := get $.Values $key -}}
  {{- if not (hasKey $known $name) -}}
    {{- fail (printf "%s: %q is not among [%s]" $key $name (keys $known | sortAlpha | join ", ")) -}}
  {{- end -}}
{{- end -}}
{{- $diskless := list -}}
{{- range $name, $profile := $profiles -}}
  {{- if eq ($profile.kind | default "Kafka") "Diskless" }}{{ $diskless = append $diskless $name }}{{ end -}}
{{- end -}}
{{ dict "profiles" $profiles "catalogs" $catalogs "diskless" $diskless | toJson }}
{{- end }}

{{/* Diskless profiles whose bucket ingestion reads itself. JSON: {profiles} */}}
{{- define "firn.directReads" -}}
{{- $lake := include "firn.lake" . | fromJson -}}
{{- $found := dict -}}
{{- range $name := $lake.diskless -}}
  {{- $profile := get $lake.profiles $name -}}
  {{- if kindIs "map" $profile.directReads }}{{ $_ := set $found $name $profile }}{{ end -}}
{{- end -}}
{{ dict "profiles" $found | toJson }}
{{- end }}

{{/* Secrets with the CAs of the brokers of profiles that have a secure listener, the present source first. JSON: {profiles: {NAME: [SECRET]}} */}}
{{- define "firn.access" -}}
{{- $lake := include "firn.lake" . | fromJson -}}
{{- $found := dict -}}
{{- range $name, $profile := $lake.profiles -}}
  {{- $access := $profile.access -}}
  {{- if kindIs "map" $access -}}
    {{- $secrets := list -}}
    {{- range $source := list $access.certificate $access.certificate.previous -}}
      {{- if kindIs "map" $source }}{{ $secrets = append $secrets (include "firn.certificateSecret" (dict "name" $name "certificate" $source) | trim) }}{{ end -}}
    {{- end -}}
    {{- $_ := set $found $name $secrets -}}
  {{- end -}}
{{- end -}}
{{ dict "profiles" $found | toJson }}
{{- end }}

{{/* The Secret with the certificate of a source. Argument: dict "name" PROFILE "certificate" (as in access, or its previous) */}}
{{- define "firn.certificateSecret" -}}
{{- if kindIs "map" .certificate.certManager -}}
{{ printf "firn-broker-%s-tls-%s" .name .certificate.certManager.name }}
{{- else -}}
{{ .certificate.secret | default (printf "firn-broker-%s-tls" .name) }}
{{- end -}}
{{- end }}

{{/* Profiles whose certificates have this source, also before a change, sorted, and the Secrets of these certificates.
Argument: dict "root" $ "source" (selfSigned | certManager). JSON: {profiles: [NAME], secrets: [SECRET]} */}}
{{- define "firn.certificatesFrom" -}}
{{- $kind := .source -}}
{{- $found := list -}}
{{- $secrets := list -}}
{{- range $name, $profile := (include "firn.lake" .root | fromJson).profiles -}}
  {{- $certificate := ($profile.access | default dict).certificate | default dict -}}
  {{- range $source := list $certificate ($certificate.previous | default dict) -}}
    {{- if kindIs "map" (get $source $kind) -}}
      {{- $found = append $found $name -}}
      {{- $secrets = append $secrets (include "firn.certificateSecret" (dict "name" $name "certificate" $source) | trim) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{ dict "profiles" ($found | uniq | sortAlpha) "secrets" ($secrets | sortAlpha) | toJson }}
{{- end }}

{{/* Profiles of Apache Kafka whose port without encryption stays open beside the secure one, sorted. JSON: {profiles: [NAME]} */}}
{{- define "firn.plaintextKept" -}}
{{- $found := list -}}
{{- range $name, $profile := (include "firn.lake" . | fromJson).profiles -}}
  {{- $kept := eq (dig "plaintext" "Close" ($profile.access | default dict)) "Keep" -}}
  {{- if and $kept (eq ($profile.kind | default "Kafka") "Kafka") }}{{ $found = append $found $name }}{{ end -}}
{{- end -}}
{{ dict "profiles" ($found | sortAlpha) | toJson }}
{{- end }}

{{/* Profiles whose brokers the operator runs, and whose clients need no encryption, sorted. JSON: {profiles: [NAME]} */}}
{{- define "firn.openProfiles" -}}
{{- $found := list -}}
{{- range $name, $profile := (include "firn.lake" . | fromJson).profiles -}}
  {{- $access := $profile.access -}}
  {{- $open := or (not (kindIs "map" $access)) (eq (dig "plaintext" "Close" ($access | default dict)) "Keep") -}}
  {{- if and $open (not $profile.bootstrapServers) }}{{ $found = append $found $name }}{{ end -}}
{{- end -}}
{{ dict "profiles" ($found | sortAlpha) | toJson }}
{{- end }}

{{/* Profiles of the quick start that this release closes, although the values do not say so: those without access.plaintext. A list for
--closes of firn-signer. JSON: {profiles: {NAME: KEY}} */}}
{{- define "firn.undecidedProfiles" -}}
{{- $found := dict -}}
{{- if .Values.quickStart.enabled -}}
  {{- $keys := dict "classic" "quickStart.profile" -}}
  {{- if .Values.quickStart.diskless.enabled }}{{ $_ := set $keys "diskless" "quickStart.diskless.profile" }}{{ end -}}
  {{- $profiles := (include "firn.lake" . | fromJson).profiles -}}
  {{- range $name, $key := $keys -}}
    {{- $profile := get $profiles $name -}}
    {{- $undecided := and (kindIs "map" $profile.access) (not (hasKey ($profile.access | default dict) "plaintext")) -}}
    {{- if $undecided }}{{ $_ := set $found $name $key }}{{ end -}}
  {{- end -}}
{{- end -}}
{{ dict "profiles" $found | toJson }}
{{- end }}

{{/* What firn-signer issues certificates for. JSON: {profiles: [NAME], stores: [NAME], needed: BOOL} */}}
{{- define "firn.selfSigned" -}}
{{- $profiles := (include "firn.certificatesFrom" (dict "root" . "source" "selfSigned") | fromJson).profiles -}}
{{- $stores := include "firn.storesHaveTls" . | eq "true" | ternary (list "postgres" "s3") list -}}
{{ dict "profiles" $profiles "stores" $stores "needed" (or $profiles $stores | empty | not) | toJson }}
{{- end }}

{{/* "true" if the stores of the quick start have TLS, otherwise empty. */}}
{{- define "firn.storesHaveTls" -}}
{{- if and .Values.quickStart.enabled (ne (toString .Values.quickStart.tls) "false") }}true{{ end -}}
{{- end }}

{{/* The volume with the certificate of a store, for its server. Argument: name of the store */}}
{{- define "firn.storeCertificate" -}}
- name: certificate
  secret:
    secretName: firn-{{ . }}-tls
    defaultMode: 0440
    items:
      - {key: tls.crt, path: tls.crt}
      - {key: tls.key, path: tls.key}
{{- end }}

{{/* Shell lines after the start of a server in the background. They stop it with the container, and send it SIGHUP after a renewal of its
certificate. Argument: the signal that stops the server */}}
{{- define "firn.serveAndReload" -}}
server=$!
trap 'stopped=yes; kill -{{ . }} $server' INT TERM
while sleep 30 && kill -0 $server 2> /dev/null; do
  now=$(cksum < "$certificate") || continue
  if [ "$now" != "$used" ]; then kill -HUP $server; used=$now; fi
done &
status=127
while true; do
  stopped=
  if wait $server; then ended=0; else ended=$?; fi
  # 127: an earlier wait has returned the status of the server, or the program is missing.
  if [ $ended != 127 ]; then status=$ended; fi
  # A signal ends wait before the server has ended.
  if [ -z "$stopped" ]; then exit $status; fi
done
{{- end }}

{{/* Secrets that the chart generates once: passwords of the quick start, and tokens of direct reads. JSON: {secrets: [{name, keys}]} */}}
{{- define "firn.generatedSecrets" -}}
{{- $secrets := list -}}
{{- if .Values.quickStart.enabled -}}
  {{- $secrets = list (dict "name" "firn-postgres" "keys" "password") (dict "name" "firn-s3" "keys" "access-key,secret-key") -}}
{{- end -}}
{{- range $name, $profile := (include "firn.directReads" . | fromJson).profiles -}}
  {{- if not (or $profile.directReads.token $profile.access) -}}
    {{- $secrets = append $secrets (dict "name" (printf "firn-direct-reads-%s" $name) "keys" "token") -}}
  {{- end -}}
{{- end -}}
{{ dict "secrets" $secrets | toJson }}
{{- end }}

{{/* The profile `diskless` of the quick start. Without TLS of the stores, it connects to them without TLS. */}}
{{- define "firn.quickStartDiskless" -}}
{{- $profile := deepCopy .Values.quickStart.diskless.profile -}}
{{- if not (include "firn.storesHaveTls" .) -}}
  {{- $coordinator := $profile.coordinator -}}
  {{- $store := $profile.objectStore -}}
  {{- if eq (dig "ca" "secret" "" ($coordinator.tls | default dict)) "firn-postgres-tls" }}{{ $_ := unset $coordinator "tls" }}{{ end -}}
  {{- if eq (dig "ca" "secret" "" ($store.tls | default dict)) "firn-s3-tls" }}{{ $_ := unset $store "tls" }}{{ end -}}
  {{- if eq (dig "aws_endpoint" "" ($store.properties | default dict)) "https://firn-s3:7070" -}}
    {{- $_ := set $store.properties "aws_endpoint" "http://firn-s3:7070" -}}
  {{- end -}}
{{- end -}}
{{ toYaml $profile }}
{{- end }}

{{- define "firn.quickStartCatalog" -}}
type: sql
{{- $tls := include "firn.storesHaveTls" . | eq "true" }}
uri: postgresql://firn-postgres.{{ .Release.Namespace }}.svc:5432/firn
{{- if $tls }}
tls: {ca: {secret: firn-postgres-tls}}
objectStore: {tls: {ca: {secret: firn-s3-tls}}}
{{- end }}
warehouse: s3://firn/warehouse
tenancy: {adopt: Any}
properties:
  user: firn
  io-impl: org.apache.iceberg.aws.s3.S3FileIO
  s3.endpoint: {{ $tls | ternary "https" "http" }}://firn-s3.{{ .Release.Namespace }}.svc:7070
  s3.path-style-access: "true"
  client.region: us-east-1
secretProperties:
  password: {secret: firn-postgres, key: password}
  s3.access-key-id: {secret: firn-s3, key: access-key}
  s3.secret-access-key: {secret: firn-s3, key: secret-key}
{{- end }}

{{/* The operator's configuration document (firn/model/config.py). Free values as JSON, which every YAML reader takes for the same strings. */}}
{{- define "firn.config" -}}
{{- $lake := include "firn.lake" . | fromJson -}}
namespace: {{ .Release.Namespace }}
watchNamespaces: {{ .Values.watchNamespaces | uniq | sortAlpha | toJson }}
formerClusters: {{ .Values.formerClusters | default list | toJson }}
images:
  spark:
    image: {{ include "firn.image" (dict "root" . "name" "spark") | quote }}
    pullPolicy: {{ .Values.images.pullPolicy }}
  kafka:
    image: {{ .Values.images.kafka | quote }}
    pullPolicy: {{ .Values.images.pullPolicy }}
  {{- if $lake.diskless }}
  broker:
    image: {{ include "firn.image" (dict "root" . "name" "broker") | quote }}
    pullPolicy: {{ .Values.images.pullPolicy }}
  {{- end }}
  pullSecrets: {{ .Values.images.pullSecrets | toJson }}
defaultProfile: {{ .Values.defaultProfile }}
profiles: {{- toPrettyJson $lake.profiles | nindent 2 }}
defaultCatalog: {{ .Values.defaultCatalog }}
catalogs: {{- toPrettyJson $lake.catalogs | nindent 2 }}
registries: {{- toPrettyJson .Values.registries | nindent 2 }}
{{- with .Values.salts }}
salts: {{- toPrettyJson . | nindent 2 }}
{{- end }}
defaultGroup: {{ .Values.defaultGroup }}
groups: {{- toPrettyJson .Values.groups | nindent 2 }}
maintenance: {{- toPrettyJson .Values.maintenance | nindent 2 }}
users: {enabled: {{ include "firn.usersEnabled" . | default "false" }}}
resync: {{ .Values.operator.resync }}
progressInterval: {{ .Values.operator.progressInterval }}
workers: {{ .Values.operator.workers }}
writesPerSecond: {{ .Values.operator.writesPerSecond }}
writeBurst: {{ .Values.operator.writeBurst }}
logLevel: {{ .Values.operator.logLevel }}
{{- end }}

{{/* Secrets that the configuration refers to, sorted. JSON: {names: [...]} */}}
{{- define "firn.secrets" -}}
{{- $lake := include "firn.lake" . | fromJson -}}
{{- $names := list -}}
{{- range $profile := $lake.profiles -}}
  {{- $security := $profile.security | default dict -}}
  {{- range $reference := list $security.ca $security.certificate $security.certificateKey (dig "password" nil ($security.sasl | default dict)) (dig "ca" nil ((($security.sasl | default dict).tokens) | default dict)) -}}
    {{- if $reference }}{{ $names = append $names $reference.secret }}{{ end -}}
  {{- end -}}
{{- end -}}
{{- $names = concat $names (include "firn.catalogSecrets" . | fromJson).names -}}
{{- range $registry := .Values.registries -}}
  {{- range $reference := list $registry.password $registry.token -}}
    {{- if $reference }}{{ $names = append $names $reference.secret }}{{ end -}}
  {{- end -}}
{{- end -}}
{{ dict "names" ($names | uniq | sortAlpha) | toJson }}
{{- end }}

{{/* CA certificates of private servers that the operator needs: {"KIND/NAME": [KEY, ...]}. KIND is secret or configmap. JSON: {sources} */}}
{{- define "firn.trust" -}}
{{- $lake := include "firn.lake" . | fromJson -}}
{{- $found := list -}}
{{- range $catalog := $lake.catalogs -}}
  {{- $found = append $found (dig "ca" nil ($catalog.tls | default dict)) -}}
  {{- $found = append $found (dig "ca" nil ((($catalog.objectStore | default dict).tls) | default dict)) -}}
{{- end -}}
{{- range $registry := .Values.registries -}}
  {{- $found = append $found (dig "ca" nil ($registry.tls | default dict)) -}}
{{- end -}}
{{- $sources := dict -}}
{{- range $authority := $found -}}
  {{- if $authority -}}
    {{- $source := printf "configmap/%s" $authority.configMap -}}
    {{- if $authority.secret }}{{ $source = printf "secret/%s" $authority.secret }}{{ end -}}
    {{- $keys := append (get $sources $source | default list) ($authority.key | default "ca.crt") -}}
    {{- $_ := set $sources $source ($keys | uniq | sortAlpha) -}}
  {{- end -}}
{{- end -}}
{{ dict "sources" $sources | toJson }}
{{- end }}

{{/* Mounts of the volumes in firn.trustVolumes. Argument: $ */}}
{{- define "firn.trustMounts" -}}
{{- $number := 0 -}}
{{- range $source, $keys := (include "firn.trust" . | fromJson).sources }}
- name: trust-{{ $number }}
  mountPath: /etc/firn/trust/{{ $source | replace "/" "-" }}
  readOnly: true
{{- $number = add1 $number }}
{{- end }}
{{- end }}

{{/* Volumes with the CA certificates of private servers, without the other keys of their objects. Argument: $ */}}
{{- define "firn.trustVolumes" -}}
{{- $number := 0 -}}
{{- range $source, $keys := (include "firn.trust" . | fromJson).sources }}
- name: trust-{{ $number }}
  {{- if hasPrefix "secret/" $source }}
  secret:
    secretName: {{ trimPrefix "secret/" $source }}
  {{- else }}
  configMap:
    name: {{ trimPrefix "configmap/" $source }}
  {{- end }}
    defaultMode: 0440
    optional: true
    items:
      {{- range $keys }}
      - {key: {{ . | quote }}, path: {{ . | quote }}}
      {{- end }}
{{- $number = add1 $number }}
{{- end }}
{{- end }}

{{/* Secrets of the catalogs, sorted. JSON: {names: [...]} */}}
{{- define "firn.catalogSecrets" -}}
{{- $names := list -}}
{{- range $catalog := (include "firn.lake" . | fromJson).catalogs -}}
  {{- range $reference := $catalog.secretProperties | default dict -}}
    {{- $names = append $names $reference.secret -}}
  {{- end -}}
  {{- with dig "secret" "" ((($catalog.tls | default dict).certificate) | default dict) }}{{ $names = append $names . }}{{ end -}}
{{- end -}}
{{ dict "names" ($names | uniq | sortAlpha) | toJson }}
{{- end }}

{{/* Service accounts of the ingestion groups; with executors: only of those that have executors. Argument: dict "root" $ "executors" BOOL. JSON: {names: [...]} */}}
{{- define "firn.ingestAccounts" -}}
{{- $names := list -}}
{{- range $name, $group := .root.Values.groups -}}
  {{- if or (not $.executors) $group.executors -}}
    {{- $names = append $names (include "firn.ingestAccount" (dict "root" $.root "name" $name)) -}}
  {{- end -}}
{{- end -}}
{{ dict "names" ($names | uniq | sortAlpha) | toJson }}
{{- end }}

{{/* Service account of an ingestion group. Argument: dict "root" $ "name" NAME. */}}
{{- define "firn.ingestAccount" -}}
{{- $default := eq .name .root.Values.defaultGroup | ternary "firn-ingest" (printf "firn-ingest-%s" .name) -}}
{{- (get .root.Values.groups .name).serviceAccount | default $default -}}
{{- end }}

{{/* What executors may use, by the account of their drivers: images, the Secrets and claims that sparkConf names, and the groups that their
labels may name. `runs` has the account of maintenance runs. JSON: {accounts: {NAME: {images, secrets, claims, groups}}, runs: [NAME]} */}}
{{- define "firn.executorAccounts" -}}
{{- $spark := include "firn.image" (dict "root" . "name" "spark") -}}
{{- $users := list -}}
{{- range $name, $group := .Values.groups -}}
  {{- if $group.executors -}}
    {{- $users = append $users (dict "account" (include "firn.ingestAccount" (dict "root" $ "name" $name)) "image" (dig "image" $spark ($group.image | default dict)) "conf" ($group.sparkConf | default dict) "groups" (list $name)) -}}
  {{- end -}}
{{- end -}}
{{- $runs := list -}}
{{- range $size := .Values.maintenance.sizes -}}
  {{- if $size.executors -}}
    {{- $maintenance := $.Values.maintenance -}}
    {{- $runs = list ($maintenance.serviceAccount | default "firn-maintain") -}}
    {{- $users = append $users (dict "account" (first $runs) "image" (dig "image" $spark ($maintenance.image | default dict)) "conf" ($maintenance.sparkConf | default dict) "groups" list) -}}
  {{- end -}}
{{- end -}}
{{- $accounts := dict -}}
{{- range $user := $users -}}
  {{- $known := get $accounts $user.account | default (dict "images" list "secrets" list "claims" list "groups" list) -}}
  {{- $secrets := $known.secrets -}}
  {{- $claims := $known.claims -}}
  {{- range $key, $value := $user.conf -}}
    {{- if hasPrefix "spark.kubernetes.executor.secrets." $key -}}
      {{- $secrets = append $secrets (trimPrefix "spark.kubernetes.executor.secrets." $key) -}}
    {{- else if hasPrefix "spark.kubernetes.executor.secretKeyRef." $key -}}
      {{- $secrets = append $secrets (splitList ":" $value | first) -}}
    {{- else if and (hasPrefix "spark.kubernetes.executor.volumes.persistentVolumeClaim." $key) (hasSuffix ".options.claimName" $key) -}}
      {{- $claims = append $claims $value -}}
    {{- end -}}
  {{- end -}}
  {{- $_ := set $accounts $user.account (dict "images" (append $known.images $user.image | uniq | sortAlpha) "secrets" ($secrets | uniq | sortAlpha) "claims" ($claims | uniq | sortAlpha) "groups" (concat $known.groups $user.groups | uniq | sortAlpha)) -}}
{{- end -}}
{{ dict "accounts" $accounts "runs" $runs | toJson }}
{{- end }}

{{/* The claim `data` of a StatefulSet. Immutable, so no label in it may change with the chart. Argument: storage */}}
{{- define "firn.volumeClaim" -}}
metadata:
  name: data
spec:
  accessModes: [ReadWriteOnce]
  {{- with .storageClassName }}
  storageClassName: {{ . }}
  {{- end }}
  resources:
    requests:
      storage: {{ .size }}
{{- end }}

{{/* The runbook of an alert: the section of its name on the page at metrics.prometheusRule.runbookUrl. Takes root and alert. */}}
{{- define "firn.runbook" -}}
{{- with .root.Values.metrics.prometheusRule.runbookUrl -}}
runbook_url: {{ printf "%s#%s" . (lower $.alert) | quote }}
{{- end -}}
{{- end }}

{{/* Increase of a counter in a window. `increase` alone sees 0 if the first scrape of a series already finds N, as after a
restart or for a loss in the first round. So a series without a sample in the hour before the window counts whole.
Argument: dict "counter" SELECTOR "window" DURATION */}}
{{- define "firn.increase" -}}
({{ .counter }} unless present_over_time({{ .counter }}[1h] offset {{ .window }})) or increase({{ .counter }}[{{ .window }}])
{{- end }}

{{/* "true" if the operator manages TopicUsers, otherwise empty. */}}
{{- define "firn.usersEnabled" -}}
{{- $enabled := .Values.users.enabled -}}
{{- $quickStart := .Values.quickStart -}}
{{- if and (kindIs "invalid" $enabled) $quickStart.enabled -}}
  {{- $enabled = or (kindIs "map" $quickStart.profile.users) (and $quickStart.diskless.enabled (kindIs "map" $quickStart.diskless.profile.users)) -}}
{{- end -}}
{{- if $enabled }}true{{ end -}}
{{- end }}
