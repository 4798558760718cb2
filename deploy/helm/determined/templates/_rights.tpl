{{/* Rights of the master, which are those that its resource manager uses (crates/rm-kube) and no more. */}}

{{- define "determined.rules.reads" -}}
- apiGroups: [""]
  resources: [nodes, pods, events]
  verbs: [get, list, watch]
- apiGroups: [""]
  # Their node selectors, which tasks wait for instead of being refused.
  resources: [namespaces]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [resourcequotas]
  verbs: [list, watch]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch]
- apiGroups: [scheduling.k8s.io]
  resources: [priorityclasses]
  # One for each priority that jobs have. A class that exists is never changed.
  verbs: [get{{ if .Values.createNonNamespacedObjects }}, create{{ end }}]
{{- end -}}

{{- define "determined.rules.writes" -}}
- apiGroups: [""]
  resources: [pods]
  verbs: [delete, patch]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [create, delete]
- apiGroups: [""]
  resources: [secrets, services]
  verbs: [create, get, patch, delete]
{{- $scheduler := .Values.defaultScheduler | default "" }}
{{- if has $scheduler (list "podgroup" "volcano") }}
- apiGroups: [{{ ternary "scheduling.k8s.io" "scheduling.volcano.sh" (eq $scheduler "podgroup") }}]
  resources: [podgroups]
  verbs: [create, get, patch, delete]
{{- end }}
{{- if include "determined.forwards" . }}
- apiGroups: [""]
  # Kubernetes asks for `create` as well since 1.35, where a WebSocket is opened.
  resources: [pods/portforward]
  verbs: [get, create]
{{- end }}
{{- end -}}

{{/* Not empty where a manager of this cluster reaches services of tasks through the API server. */}}
{{- define "determined.forwards" -}}
{{- $managers := list (dict "type" "kubernetes" "task_exposure" .Values.taskExposure) -}}
{{- $managers = append $managers (merge (dict "type" "kubernetes") ((.Values.masterConfig | default dict).resource_manager | default dict)) -}}
{{- range .Values.additional_resource_managers -}}
{{- $managers = append $managers (.resource_manager | default dict) -}}
{{- end -}}
{{- range $managers -}}
{{- if and (eq (.type | default "agent") "kubernetes") (eq (.task_exposure | default "") "port_forward") (not (or .kubeconfig_secret_name .kubeconfig_path)) -}}
true
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "determined.rules.bindings" -}}
- apiGroups: [""]
  resources: [namespaces]
  verbs: [create, delete]
- apiGroups: [""]
  resources: [resourcequotas]
  verbs: [get, create, patch, delete]
{{- end -}}
