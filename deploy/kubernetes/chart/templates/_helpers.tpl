{{- /* The name of all objects. Pods have a suffix, and the policy and the configuration have one, too. */ -}}
{{- define "harvest.name" -}}
{{- $name := .Release.Name -}}
{{- if not (contains .Chart.Name $name) -}}
{{- $name = printf "%s-%s" $name .Chart.Name -}}
{{- end -}}
{{- .Values.fullnameOverride | default $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "harvest.serviceAccount" -}}
{{- .Values.rights.serviceAccount | default (include "harvest.name" .) -}}
{{- end -}}

{{- /* The labels by which the service and the StatefulSet find the server's pod. They never change. */ -}}
{{- define "harvest.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- /* Helm itself adds app.kubernetes.io/managed-by. */ -}}
{{- define "harvest.labels" -}}
{{- include "harvest.labelsWith" (list . dict) -}}
{{- end -}}

{{- /* The labels of an object, from a list: the root context, and further labels, which precede those of values. */ -}}
{{- define "harvest.labelsWith" -}}
{{- $root := index . 0 -}}
{{- include "harvest.selector" $root -}}
{{- $all := merge dict (index . 1 | default dict) ($root.Values.labels | default dict) -}}
{{- with omit $all "app.kubernetes.io/name" "app.kubernetes.io/instance" }}
{{ toYaml . }}
{{- end -}}
{{- end -}}

{{- /* An image, from a list: the root context, and the name of the value. */ -}}
{{- define "harvest.image" -}}
{{- $root := index . 0 -}}
{{- $value := index . 1 -}}
{{- $image := index $root.Values $value -}}
{{- $hint := printf "name the image without its tag, as in --set %s.repository=registry.example.org/…" $value -}}
{{- $repository := required (printf "%s.repository: %s" $value $hint) $image.repository -}}
{{- printf "%s:%s" $repository ($image.tag | default $root.Chart.AppVersion) -}}
{{- end -}}

{{- /* The URL of the server for browsers; empty if nothing says one. */ -}}
{{- define "harvest.publicURL" -}}
{{- if .Values.publicURL -}}
{{- .Values.publicURL -}}
{{- else if .Values.ingress.enabled -}}
{{- ternary "https" "http" .Values.ingress.tls.enabled }}://{{ include "harvest.host" . -}}
{{- end -}}
{{- end -}}

{{- define "harvest.host" -}}
{{- required "ingress.host: name the host, as in --set ingress.host=harvest.example.org" .Values.ingress.host -}}
{{- end -}}

{{- /* The names of the server in the cluster, that of the Ingress, and those of the values. */ -}}
{{- define "harvest.publicNames" -}}
{{- $name := include "harvest.name" . -}}
{{- $service := printf "%s.%s" $name .Release.Namespace -}}
{{- $names := list $name $service (printf "%s.svc" $service) -}}
{{- if .Values.ingress.enabled -}}
{{- $names = append $names (include "harvest.host" .) -}}
{{- end -}}
{{- concat $names (.Values.publicNames | default list) | uniq | join "," -}}
{{- end -}}
