{{/* Names of objects: the first part, what it is, and the release. */}}

{{- define "determined.prefix" -}}
{{- .Values.fullnamePrefix | default "determined" -}}
{{- end -}}

{{/* Name of an object of the release: include "determined.name" (list . "master-service"). */}}
{{- define "determined.name" -}}
{{- $root := index . 0 -}}
{{- $name := printf "%s-%s-%s" (include "determined.prefix" $root) (index . 1) $root.Release.Name -}}
{{- if gt (len $name) 63 -}}
{{- fail (printf "the name %q is longer than 63 characters: give the release a name that is %d characters shorter than %q" $name (sub (len $name) 63) $root.Release.Name) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{/* Name of a cluster-scoped object. */}}
{{- define "determined.clusterName" -}}
{{- $root := index . 0 -}}
{{- printf "%s%s" (include "determined.name" .) (ternary (printf "-%s" $root.Values.clusterScopedSuffix) "" (not (empty $root.Values.clusterScopedSuffix))) -}}
{{- end -}}

{{- define "determined.labels" -}}
{{- $root := index . 0 -}}
app: {{ include "determined.name" . }}
release: {{ $root.Release.Name }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
app.kubernetes.io/part-of: determined
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Labels of pods, which are those that Deployments select and what belongs to them. */}}
{{- define "determined.podLabels" -}}
{{- $root := index . 0 -}}
app: {{ include "determined.name" . }}
release: {{ $root.Release.Name }}
determined-system: {{ index . 1 }}
release-namespace: {{ $root.Release.Namespace }}
{{- end -}}

{{/* Name of a PriorityClass: include "determined.priorityClass" (list . "system"). A release that makes none uses the common ones. */}}
{{- define "determined.priorityClass" -}}
{{- $root := index . 0 -}}
{{- $isOwn := and $root.Values.createNonNamespacedObjects (not (empty $root.Values.clusterScopedSuffix)) -}}
{{- printf "determined-%s-priority%s" (index . 1) (ternary (printf "-%s" $root.Values.clusterScopedSuffix) "" $isOwn) -}}
{{- end -}}

{{/* Namespaces that tasks may be in, as a JSON list in order: that of the release, the default one, those of pools, and further ones. */}}
{{- define "determined.namespaces" -}}
{{- $manager := .Values.resourceManager | default dict -}}
{{- $all := list .Release.Namespace ($manager.defaultNamespace | default .Release.Namespace) -}}
{{- range .Values.resourcePools -}}
{{- $all = append $all (.kubernetes_namespace | default $.Release.Namespace) -}}
{{- end -}}
{{- range (.Values.rbac | default dict).namespaces -}}
{{- $all = append $all . -}}
{{- end -}}
{{- $all | uniq | sortAlpha | toJson -}}
{{- end -}}
