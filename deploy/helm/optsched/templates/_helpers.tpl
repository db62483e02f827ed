{{/* Every helper of a component takes (dict "root" $ "of" "scheduler"), or controller, or admission. */}}

{{- define "optsched.names" -}}
scheduler: scheduler
controller: controllers
admission: admission
{{- end }}

{{/* The file in rights/ that says what a component may do. */}}
{{- define "optsched.rights" -}}
scheduler: scheduler-rbac.yaml
controller: controllers-rbac.yaml
admission: webhook-rbac.yaml
{{- end }}

{{/* Files of rights/ that belong to features which are on, with commas between. */}}
{{- define "optsched.features" -}}
{{- $custom := .root.Values.custom }}
{{- $files := list }}
{{- if eq .of "scheduler" }}
{{- if has "SchedulingGatesQueueAdmission=true" (splitList "," (nospace (toString $custom.admission_feature_gates))) }}
{{- $files = append $files "scheduler-gates-rbac.yaml" }}
{{- end }}
{{- if $custom.scheduler_node_lock_enable }}{{ $files = append $files "scheduler-node-lock-rbac.yaml" }}{{ end }}
{{- if $custom.scheduler_budget_override_enable }}{{ $files = append $files "scheduler-budget-override-rbac.yaml" }}{{ end }}
{{- end }}
{{- if eq .of "controller" }}
{{- if $custom.job_ssh_enable }}{{ $files = append $files "controllers-ssh-rbac.yaml" }}{{ end }}
{{- if $custom.controller_ufm_secret }}{{ $files = append $files "controllers-ufm-rbac.yaml" }}{{ end }}
{{- end }}
{{- if $custom.metrics_auth_enable }}
{{- $files = append $files (get (include "optsched.rights" . | fromYaml) .of | replace "-rbac" "-metrics-rbac") }}
{{- end }}
{{- join "," $files }}
{{- end }}

{{/* The port of /metrics: (dict "root" "of" "httpPort"), the port of health. */}}
{{- define "optsched.metricsPort" -}}
{{- if .root.Values.custom.metrics_tls_secret }}8444{{ else }}{{ .httpPort }}{{ end }}
{{- end }}

{{/* The name of that port. */}}
{{- define "optsched.metricsTarget" -}}
{{- if .Values.custom.metrics_tls_secret }}metrics{{ else }}http{{ end }}
{{- end }}

{{/* Flags of metrics over TLS. */}}
{{- define "optsched.metrics.flags" -}}
{{- if .Values.custom.metrics_tls_secret }}
- --metrics-tls-cert-file=/metrics-tls/tls.crt
- --metrics-tls-private-key-file=/metrics-tls/tls.key
- --metrics-address=:8444
{{- if .Values.custom.metrics_auth_enable }}
- --metrics-auth
{{- end }}
{{- else if .Values.custom.metrics_auth_enable }}
{{- fail "custom.metrics_auth_enable is true and custom.metrics_tls_secret is empty: tokens travel over TLS alone; name a Secret with tls.crt and tls.key" }}
{{- end }}
{{- end }}

{{/* Their port and their mount. */}}
{{- define "optsched.metrics.ports" -}}
{{- if .Values.custom.metrics_tls_secret }}
- {name: metrics, containerPort: 8444}
{{- end }}
{{- end }}
{{- define "optsched.metrics.mounts" -}}
{{- if .Values.custom.metrics_tls_secret }}
- {name: metrics-tls, mountPath: /metrics-tls, readOnly: true}
{{- end }}
{{- end }}

{{/* The Service in front of the webhook, after which its configurations are named. */}}
{{- define "optsched.service" -}}
{{ include "optsched.name" (dict "root" . "of" "admission") }}-service
{{- end }}

{{/* A file of rights/ with the names of this release: (dict "root" "file"). */}}
{{- define "optsched.adapted" -}}
{{- .root.Files.Get (printf "rights/%s" .file)
  | replace "system:serviceaccount:volcano-system:optsched-controllers" (printf "system:serviceaccount:%s:%s" .root.Release.Namespace (include "optsched.name" (dict "root" .root "of" "controller")))
  | replace "system:serviceaccount:volcano-system:volcano-controllers" (printf "system:serviceaccount:%s:%s" .root.Release.Namespace (include "optsched.name" (dict "root" .root "of" "controller")))
  | replace "system:serviceaccount:volcano-system:optsched-scheduler" (printf "system:serviceaccount:%s:%s" .root.Release.Namespace (include "optsched.name" (dict "root" .root "of" "scheduler")))
  | replace "system:serviceaccount:volcano-system:volcano-scheduler" (printf "system:serviceaccount:%s:%s" .root.Release.Namespace (include "optsched.name" (dict "root" .root "of" "scheduler")))
  | replace "volcano-admission-service" (include "optsched.service" .root)
  | replace "volcano-admission-secret" .root.Values.basic.admission_secret_name
  | replace "namespace: volcano-system" (printf "namespace: %s" .root.Release.Namespace)
  | replace "- volcano-system" (printf "- %s" .root.Release.Namespace) }}
{{- end }}

{{/* The name of a component's objects, such as volcano-scheduler in the release volcano. */}}
{{- define "optsched.name" -}}
{{ .root.Release.Name }}-{{ get (include "optsched.names" . | fromYaml) .of }}
{{- end }}

{{/* "true" if a component is installed, by either spelling. */}}
{{- define "optsched.on" -}}
{{- $custom := get .root.Values.custom (printf "%s_enable" .of) }}
{{- $basic := (get .root.Values.basic .of | default dict).enabled }}
{{- if and (kindIs "bool" $custom) (kindIs "bool" $basic) (ne $custom $basic) }}
{{- fail (printf "basic.%s.enabled is %t and custom.%s_enable is %t: they mean the same, give one of them" .of $basic .of $custom) }}
{{- end }}
{{- if kindIs "bool" $custom }}{{ $custom }}{{ else if kindIs "bool" $basic }}{{ $basic }}{{ else }}true{{ end }}
{{- end }}

{{/* The image of a component. */}}
{{- define "optsched.image" -}}
{{- $basic := .root.Values.basic }}
{{- $name := .root.Values.image.name }}
{{- $tag := .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- $own := get $basic (printf "%s_image_name" .of) }}
{{- if and $own (not (contains "volcanosh/vc-" $own)) }}
{{- $name = $own }}
{{- $tag = $basic.image_tag_version | default $tag }}
{{- end }}
{{- with $basic.image_registry }}{{ . }}/{{ end }}{{ $name }}:{{ $tag }}
{{- end }}

{{/* A setting of a component, else the one for all of them, else what the chart says, as YAML. */}}
{{- define "optsched.setting" -}}
{{- $custom := .root.Values.custom }}
{{- $name := trimPrefix "default_" .name }}
{{- $chart := .root.Files.Get "config/components.yaml" | fromYaml }}
{{- $value := coalesce
      (get $custom (printf "%s_%s" .of .name))
      (get $custom (printf "default_%s" $name))
      (get (get $chart .of) $name)
      (get $chart.default $name) }}
{{- with $value }}{{ toYaml . }}{{ end }}
{{- end }}

{{/* Labels of everything. */}}
{{- define "optsched.labels" -}}
app: {{ include "optsched.name" . }}
app.kubernetes.io/name: optsched
app.kubernetes.io/component: {{ .of }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- with .root.Values.custom.common_labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* How many replicas; several need an election. */}}
{{- define "optsched.replicas" -}}
{{- $elects := or (eq .of "admission") .root.Values.custom.leader_elect_enable }}
{{- $given := get .root.Values.custom (printf "%s_replicas" .of) }}
{{- $isMissing := or (kindIs "invalid" $given) (kindIs "string" $given) }}
{{- $number := ternary (ternary 2 1 (not (not $elects))) ($given | int) $isMissing }}
{{- if and (gt $number 1) (ne .of "admission") (not .root.Values.custom.leader_elect_enable) }}
{{- fail (printf "custom.%s_replicas is %d and custom.leader_elect_enable is false: several at once would contradict each other; enable the election or ask for 1 replica" .of $number) }}
{{- end }}
{{- $number }}
{{- end }}

{{/* A Deployment but for its container: (dict "root" "of" "port"), the container as "container", volumes as "volumes". */}}
{{- define "optsched.deployment" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "optsched.name" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "optsched.labels" . | nindent 4 }}
    {{- with get .root.Values.custom (printf "%s_labels" .of) }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  replicas: {{ include "optsched.replicas" . }}
  selector:
    matchLabels:
      app: {{ include "optsched.name" . }}
  template:
    metadata:
      labels:
        {{- include "optsched.labels" . | nindent 8 }}
        {{- with get .root.Values.custom (printf "%s_podLabels" .of) }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      annotations:
        {{- if and (get .root.Values.custom (printf "%s_metrics_enable" .of)) .httpPort }}
        prometheus.io/scrape: "true"
        prometheus.io/port: {{ include "optsched.metricsPort" . | quote }}
        prometheus.io/path: /metrics
        {{- if .root.Values.custom.metrics_tls_secret }}
        prometheus.io/scheme: https
        {{- end }}
        {{- end }}
        {{- with .checksum }}
        optsched.io/configuration: {{ . }}
        {{- end }}
    spec:
      serviceAccountName: {{ include "optsched.name" . }}
      priorityClassName: system-cluster-critical
      terminationGracePeriodSeconds: 40
      {{- with .root.Values.basic.image_pull_secret }}
      imagePullSecrets:
      {{- range (kindIs "slice" . | ternary . (list .)) }}
      - name: {{ . }}
      {{- end }}
      {{- end }}
      {{- range $field, $name := dict "tolerations" "tolerations" "affinity" "affinity" "nodeSelector" "ns" "securityContext" "sc" }}
      {{- with include "optsched.setting" (dict "root" $.root "of" $.of "name" $name) }}
      {{ $field }}:
        {{- . | nindent 8 }}
      {{- end }}
      {{- end }}
      containers:
      - name: {{ include "optsched.name" . }}
        image: {{ include "optsched.image" . }}
        imagePullPolicy: {{ .root.Values.basic.image_pull_policy }}
        {{- .container | nindent 8 }}
        env:
        - name: POD_NAME
          valueFrom: {fieldRef: {fieldPath: metadata.name}}
        - name: POD_NAMESPACE
          valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
        - name: POD_UID
          valueFrom: {fieldRef: {fieldPath: metadata.uid}}
        {{- range $name, $value := .env }}
        - name: {{ $name }}
          value: {{ $value }}
        {{- end }}
        {{- with include "optsched.setting" (dict "root" .root "of" .of "name" "default_csc") }}
        securityContext:
          {{- . | nindent 10 }}
        {{- end }}
        {{- with include "optsched.setting" (dict "root" .root "of" .of "name" "resources") }}
        resources:
          {{- . | nindent 10 }}
        {{- end }}
      volumes:
      - name: tmp
        emptyDir: {}
      {{- with .root.Values.custom.metrics_tls_secret }}
      - name: metrics-tls
        secret:
          secretName: {{ . }}
          items:
          - {key: tls.crt, path: tls.crt}
          - {key: tls.key, path: tls.key}
      {{- end }}
      {{- with .volumes }}
      {{- . | nindent 6 }}
      {{- end }}
{{- end }}

{{/* Who may reach a component, and that not all of its replicas are evicted together: (dict "root" "of" "ports"). */}}
{{- define "optsched.guards" -}}
{{- if .root.Values.custom.network_policy_enable }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "optsched.name" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "optsched.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels:
      app: {{ include "optsched.name" . }}
  policyTypes: [Ingress]
  ingress:
  {{- if .webhookPort }}
  # API servers ask, from outside of the network of pods.
  - ports:
    - {port: {{ .webhookPort }}, protocol: TCP}
  {{- end }}
  - ports:
    - {port: {{ include "optsched.metricsPort" . }}, protocol: TCP}
    {{- with .root.Values.custom.metrics_from }}
    from:
      {{- toYaml . | nindent 6 }}
    {{- end }}
{{- end }}
{{- if gt (int (include "optsched.replicas" .)) 1 }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "optsched.name" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "optsched.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      app: {{ include "optsched.name" . }}
{{- end }}
{{- end }}

{{/* Who a component is and what it may do, as rights/ says; "lock" is the name of its lease, if it has one. */}}
{{- define "optsched.account" -}}
{{- $it := . }}
{{- $name := include "optsched.name" . }}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "optsched.name" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "optsched.labels" . | nindent 4 }}
{{- $file := get (include "optsched.rights" . | fromYaml) .of }}
{{- range splitList "\n---\n" (include "optsched.adapted" (dict "root" .root "file" $file)) }}
{{- $document := fromYaml . }}
{{- if has $document.kind (list "ClusterRole" "Role") }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $document.kind }}
metadata:
  name: {{ include "optsched.name" $it }}
  {{- if eq $document.kind "Role" }}
  namespace: {{ $it.root.Release.Namespace }}
  {{- end }}
  labels:
    {{- include "optsched.labels" $it | nindent 4 }}
rules:
{{- range $document.rules }}
{{- if and (has "leases" .resources) .resourceNames }}{{/* the election's */}}
{{- $_ := set . "resourceNames" (list $it.lock) }}
{{- end }}
- {{ toYaml . | nindent 2 | trim }}
{{- end }}
{{- end }}
{{- end }}
{{- range $file := compact (splitList "," (include "optsched.features" .)) }}
{{- range splitList "\n---\n" (include "optsched.adapted" (dict "root" $it.root "file" $file)) }}
{{- $document := fromYaml . }}
{{- $feature := regexReplaceAll "^optsched-[a-z]+" $document.metadata.name $name }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $document.kind }}
metadata:
  name: {{ $feature }}
  {{- with $document.metadata.namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "optsched.labels" $it | nindent 4 }}
{{- with $document.rules }}
rules:
{{- range . }}
{{- if .resourceNames }}
{{- $_ := set . "resourceNames" (list $it.root.Values.custom.controller_ufm_secret) }}
{{- end }}
- {{ toYaml . | nindent 2 | trim }}
{{- end }}
{{- end }}
{{- with $document.roleRef }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .kind }}
  name: {{ $feature }}
subjects:
- kind: ServiceAccount
  name: {{ $name }}
  namespace: {{ $it.root.Release.Namespace }}
{{- end }}
{{- end }}
{{- end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ include "optsched.name" . }}
  labels:
    {{- include "optsched.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ include "optsched.name" . }}
subjects:
- kind: ServiceAccount
  name: {{ include "optsched.name" . }}
  namespace: {{ .root.Release.Namespace }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ include "optsched.name" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "optsched.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ include "optsched.name" . }}
subjects:
- kind: ServiceAccount
  name: {{ include "optsched.name" . }}
  namespace: {{ .root.Release.Namespace }}
{{- end }}
