{{- define "minions.labels" -}}
app.kubernetes.io/name: minions
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "minions.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* The database and the keys of models, as variables. */}}
{{- define "minions.environment" -}}
env:
  {{- if .Values.database.bundled }}
  - {name: MINIONS_DB, value: "postgresql://minions@{{ .Release.Name }}-db/minions"}
  - {name: PGPASSWORD, valueFrom: {secretKeyRef: {name: {{ .Values.database.secret }}, key: password}}}
  {{- else }}
  - {name: MINIONS_DB, valueFrom: {secretKeyRef: {name: {{ .Values.database.secret }}, key: url}}}
  {{- end }}
  - {name: MINIONS_LOG_FORMAT, value: json}
  - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
  {{- if .Values.streams.secret }}
  - {name: MINIONS_WORKER_TOKEN, value: "file:/run/minions/streams"}
  {{- end }}
{{- if .Values.environment.secret }}
envFrom:
  - secretRef: {name: {{ .Values.environment.secret }}}
{{- end }}
{{- end }}

{{- define "minions.container" -}}
image: {{ include "minions.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "minions.pod" -}}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- end }}

{{- /* Tokens: a file of a secret is readable for a group, which the server refuses. */}}
{{- define "minions.tokens" -}}
initContainers:
  - name: tokens
    {{- include "minions.container" .root | nindent 4 }}
    command: [sh, -c, "cd /run/secrets/minions && install -m 600 * /run/minions/"]
    volumeMounts:
      - {name: secrets, mountPath: /run/secrets/minions, readOnly: true}
      - {name: tokens, mountPath: /run/minions}
volumes:
  - name: tokens
    emptyDir: {medium: Memory, sizeLimit: 1Mi}
  - name: secrets
    projected:
      sources:
        {{- range $file, $secret := .secrets }}
        {{- if $secret }}
        - secret: {name: {{ $secret }}, items: [{key: token, path: {{ $file }}}]}
        {{- end }}
        {{- end }}
{{- end }}
