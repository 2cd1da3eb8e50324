{{- define "hutch.labels" -}}
app.kubernetes.io/name: hutch
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "hutch.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- define "hutch.boxNamespace" -}}
{{ .Values.boxes.namespace | default .Release.Namespace }}
{{- end }}
