{{- define "late.name" -}}
{{- if contains "late" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-late" (.Release.Name | trunc 40 | trimSuffix "-") }}{{ end }}
{{- end }}

{{/* What never changes of a component: (dict "root" $ "component" "worker"). */}}
{{- define "late.selector" -}}
app.kubernetes.io/name: late
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "late.labels" -}}
{{ include "late.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "late.podMeta" -}}
labels:
  {{- include "late.labels" . | nindent 2 }}
{{- with .root.Values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "late.pod" -}}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "late.container" -}}
image: {{ printf "%s:%s" .Values.image.repository .Values.image.tag | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* LATE_URL, and what is for every process. */}}
{{- define "late.env" -}}
- name: LATE_URL
  valueFrom: {secretKeyRef: {name: {{ .Values.database.secret }}, key: {{ .Values.database.urlKey }}}}
{{- range $name, $value := .Values.env }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{/* The health check of workers and servers: open where the kubelet asks, and nowhere else. */}}
{{- define "late.health" -}}
- {name: LATE_GRACE_S, value: {{ .Values.worker.graceSeconds | quote }}}
- {name: LATE_HEALTH_PORT, value: "8080"}
- name: LATE_HEALTH_HOST
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- end }}

{{- define "late.probes" -}}
# Only a process that stalls is restarted; one whose database is away is not.
livenessProbe:
  httpGet: {path: /livez, port: health}
  periodSeconds: 10
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /readyz, port: health}
  periodSeconds: 5
{{- end }}

{{- define "late.small" -}}
resources:
  requests: {cpu: 50m, memory: 128Mi}
  limits: {memory: 256Mi}
{{- end }}

{{- define "late.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "late.name" .root }}-{{ .component }}
  labels:
    {{- include "late.labels" . | nindent 4 }}
spec:
  maxUnavailable: {{ .root.Values.disruptionBudget.maxUnavailable }}
  selector:
    matchLabels:
      {{- include "late.selector" . | nindent 6 }}
{{- end }}
