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

{{/* Labels by which Services and policies find the pods of a Deployment: `app` alone could be given to a pod of a task. */}}
{{- define "determined.selector" -}}
{{- $root := index . 0 -}}
app: {{ include "determined.name" . }}
release: {{ $root.Release.Name }}
determined-system: {{ index . 1 }}
{{- end -}}

{{/*
The namespace of tasks whose pool names none. Tasks can mount every Secret of their namespace, so that they are kept out of
the release's by default. A release that is upgraded keeps the namespace that it has: the master would not find running
tasks in another one.
*/}}
{{- define "determined.taskNamespace" -}}
{{- $given := (.Values.resourceManager | default dict).defaultNamespace -}}
{{- $name := include "determined.ownTaskNamespace" . -}}
{{- if $given -}}
{{- $name = $given -}}
{{- else -}}
{{- $found := lookup "v1" "ConfigMap" .Release.Namespace (include "determined.name" (list . "master-config")) | default dict -}}
{{- $config := get ($found.data | default dict) "master.yaml" | default "{}" | fromYaml -}}
{{- with ($config.resource_manager | default dict).default_namespace -}}
{{- $name = . -}}
{{- end -}}
{{- end -}}
{{- if gt (len $name) 63 -}}
{{- fail (printf "the namespace of tasks would be %q, longer than 63 characters: set resourceManager.defaultNamespace" $name) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{/* The namespace of tasks that the chart makes where none is given. */}}
{{- define "determined.ownTaskNamespace" -}}
{{- $isSame := eq .Release.Name .Release.Namespace -}}
{{- printf "%s%s-tasks" .Release.Namespace (ternary "" (printf "-%s" .Release.Name) $isSame) -}}
{{- end -}}

{{/* Namespaces that tasks may be in, as a sorted JSON list: the default one, those of pools, and further ones. */}}
{{- define "determined.namespaces" -}}
{{- $default := include "determined.taskNamespace" . -}}
{{- $all := list $default -}}
{{- range .Values.resourcePools -}}
{{- $all = append $all (.kubernetes_namespace | default $default) -}}
{{- end -}}
{{- /* Further managers of the same cluster. */ -}}
{{- range .Values.additional_resource_managers -}}
{{- $manager := .resource_manager | default dict -}}
{{- if and (eq ($manager.type | default "agent") "kubernetes") (not (or $manager.kubeconfig_secret_name $manager.kubeconfig_path)) -}}
{{- $other := $manager.default_namespace | default $.Release.Namespace -}}
{{- $all = append $all $other -}}
{{- range .resource_pools -}}
{{- $all = append $all (.kubernetes_namespace | default $other) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range (.Values.rbac | default dict).namespaces -}}
{{- $all = append $all . -}}
{{- end -}}
{{- $all | uniq | sortAlpha | toJson -}}
{{- end -}}
