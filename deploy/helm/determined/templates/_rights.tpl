{{/* Rights of the master, which are those that its resource manager uses (crates/rm-kube) and no more. */}}

{{- define "determined.rules.reads" -}}
- apiGroups: [""]
  resources: [nodes, pods, events]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get]
- apiGroups: [""]
  resources: [resourcequotas]
  verbs: [list, watch]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch]
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
{{- end -}}

{{- define "determined.rules.bindings" -}}
- apiGroups: [""]
  resources: [namespaces]
  verbs: [list, watch, create, delete]
- apiGroups: [""]
  resources: [resourcequotas]
  verbs: [get, create, patch, delete]
{{- end -}}
