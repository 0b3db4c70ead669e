{{/* Ports of the URLs in texts, without those of the bundled stores. Argument: dict "root" $ "texts" LIST. JSON: {ports: [...]} */}}
{{- define "firn.urlPorts" -}}
{{- $default := dict "http" 80 "https" 443 "postgres" 5432 "postgresql" 5432 "mysql" 3306 "thrift" 9083 -}}
{{- $ports := list -}}
{{- range $text := .texts -}}
  {{- range $url := regexFindAll "[A-Za-z0-9+.-]+://[^/?#\\s]+" (toString $text) -1 -}}
    {{- $parts := splitn "://" 2 $url -}}
    {{- $known := get $default (first (splitList "+" (lower $parts._0))) -}}
    {{- range $host := splitList "," $parts._1 -}}
      {{- if not (and $.root.Values.quickStart.enabled (regexMatch "^firn-(postgres|s3)([.:]|$)" $host)) -}}
        {{- $port := regexFind ":[0-9]+$" $host | trimPrefix ":" -}}
        {{- if or $port $known -}}
          {{- $ports = append $ports (int ($port | default $known)) -}}
        {{- end -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{ dict "ports" $ports | toJson }}
{{- end }}

{{/* Texts with the URLs of an object store. Without an endpoint, it is a service of a cloud. Argument: dict "properties" MAP */}}
{{- define "firn.storeTexts" -}}
{{- $texts := values (.properties | default dict) -}}
{{- if not (regexMatch "https?://" (join " " $texts)) }}{{ $texts = append $texts "https://cloud" }}{{ end -}}
{{ dict "texts" $texts | toJson }}
{{- end }}

{{/* Ports outside of the release that the operator, the drivers and the runs connect to. JSON: {ports: [...]} */}}
{{- define "firn.outsidePorts" -}}
{{- $lake := include "firn.lake" . | fromJson -}}
{{- $texts := values .Values.operator.environment -}}
{{- $brokers := list -}}
{{- range $catalog := $lake.catalogs -}}
  {{- $texts = concat $texts (list ($catalog.uri | default "")) (include "firn.storeTexts" $catalog | fromJson).texts -}}
  {{- if ne $catalog.type "sql" }}{{ $texts = append $texts "https://cloud" }}{{ end -}}
{{- end -}}
{{- range $registry := .Values.registries }}{{ $texts = append $texts $registry.url }}{{ end -}}
{{- range $group := .Values.groups }}{{ $texts = concat $texts (values ($group.environment | default dict)) }}{{ end -}}
{{- $texts = concat $texts (values (.Values.maintenance.environment | default dict)) -}}
{{- range $profile := $lake.profiles -}}
  {{- range $address := splitList "," ($profile.bootstrapServers | default "") -}}
    {{- with regexFind ":[0-9]+$" (trim $address) }}{{ $brokers = append $brokers (int (trimPrefix ":" .)) }}{{ end -}}
  {{- end -}}
  {{- $drivers := $profile.drivers | default dict -}}
  {{- range $client := concat (list $profile.security $drivers.maintenance) (values ($drivers.groups | default dict)) -}}
    {{- $texts = append $texts (dig "url" "" (((($client | default dict).sasl | default dict).tokens) | default dict)) -}}
  {{- end -}}
  {{- if kindIs "map" $profile.directReads -}}
    {{- $texts = concat $texts (include "firn.storeTexts" $profile.objectStore | fromJson).texts (values ($profile.directReads.properties | default dict)) -}}
  {{- end -}}
{{- end -}}
{{- $ports := concat $brokers (include "firn.urlPorts" (dict "root" . "texts" $texts) | fromJson).ports -}}
{{ dict "ports" $ports | toJson }}
{{- end }}

{{/* Ports outside of the release that the brokers of a diskless profile connect to. Argument: dict "root" $ "profile" PROFILE. JSON: {ports: [...]} */}}
{{- define "firn.brokerPorts" -}}
{{- $texts := concat (list .profile.coordinator.uri) (include "firn.storeTexts" .profile.objectStore | fromJson).texts -}}
{{- $texts = concat $texts (values (.profile.environment | default dict)) -}}
{{- range $store := (.profile.history | default dict).stores }}{{ $texts = concat $texts (include "firn.storeTexts" $store | fromJson).texts }}{{ end -}}
{{- range $name := .profile.registries }}{{ $texts = append $texts (get $.root.Values.registries $name).url }}{{ end -}}
{{ include "firn.urlPorts" (dict "root" .root "texts" $texts) }}
{{- end }}

{{/* Egress to DNS. Argument: $ */}}
{{- define "firn.toDns" -}}
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
  {{- with .Values.networkPolicy.dns }}
  to: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{/* Egress to the API server, which is no pod. Argument: $ */}}
{{- define "firn.toApiServer" -}}
- ports:
    {{- range .Values.networkPolicy.apiServer.ports }}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
  {{- with .Values.networkPolicy.apiServer.to }}
  to: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{/* Egress to the bundled stores, to ports outside of the release, and to what the values add. Argument: dict "root" $ "ports" LIST */}}
{{- define "firn.toStores" -}}
{{- if .root.Values.quickStart.enabled }}
- ports: [{port: 5432, protocol: TCP}]
  to: [{podSelector: {matchLabels: {app.kubernetes.io/instance: {{ .root.Release.Name }}, app.kubernetes.io/component: postgres}}}]
- ports: [{port: 7070, protocol: TCP}]
  to: [{podSelector: {matchLabels: {app.kubernetes.io/instance: {{ .root.Release.Name }}, app.kubernetes.io/component: s3}}}]
{{- end }}
{{- if .ports }}
# The hosts of the configuration. A NetworkPolicy cannot name hosts.
- ports:
    {{- range uniq .ports }}
    - {port: {{ int . }}, protocol: TCP}
    {{- end }}
  {{- with .root.Values.networkPolicy.stores }}
  to: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- with .root.Values.networkPolicy.egress }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Egress to the brokers that the operator runs. Argument: $ */}}
{{- define "firn.toBrokers" -}}
- ports: [{port: 9092, protocol: TCP}, {port: 9095, protocol: TCP}, {port: 9096, protocol: TCP}]
  to: [{podSelector: {matchLabels: {app.kubernetes.io/component: broker}}}]
{{- end }}

{{/* Peers: the operator, drivers and executors, maintenance runs and their executors. Argument: $ */}}
{{- define "firn.ourPods" -}}
- podSelector: {matchLabels: {app.kubernetes.io/instance: {{ .Release.Name }}, app.kubernetes.io/component: operator}}
- podSelector: {matchExpressions: [{key: firn.dev/group, operator: Exists}]}
- podSelector: {matchExpressions: [{key: firn.dev/run, operator: Exists}]}
{{- end }}

{{/* Peers that may connect as clients to the brokers of a profile. No text: all. Argument: dict "root" $ "name" NAME "profile" PROFILE */}}
{{- define "firn.clients" -}}
{{- $named := get .root.Values.networkPolicy.clientsFrom .name -}}
{{- $namespaces := concat (.profile.namespaces | default list) (dig "namespaces" list (.profile.users | default dict)) | uniq | sortAlpha -}}
{{- if $named -}}
{{ toYaml $named }}
{{- else if .profile.namespaces -}}
- namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: {{ $namespaces | toJson }}}]}
{{- end -}}
{{- end }}

{{/* Peers at the external listener of a profile: its Gateways. No text: all. Argument: dict "root" $ "name" NAME "profile" PROFILE */}}
{{- define "firn.gateways" -}}
{{- if eq (dig "type" "NodePort" (.profile.external | default dict)) "TLSRoute" -}}
{{- $namespaces := list -}}
{{- range .profile.external.tlsRoute.parentRefs }}{{ $namespaces = append $namespaces (.namespace | default $.root.Release.Namespace) }}{{ end -}}
{{- with get .root.Values.networkPolicy.gatewaysFrom .name -}}
{{ toYaml . }}
{{- else -}}
- namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: {{ $namespaces | uniq | sortAlpha | toJson }}}]}
{{- end -}}
{{- end -}}
{{- end }}
