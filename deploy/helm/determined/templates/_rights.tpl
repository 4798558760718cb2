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
{{- if include "determined.gateways" . | fromJsonArray }}
- apiGroups: [gateway.networking.k8s.io]
  # Whatever made them, their ports are taken.
  resources: [listenersets]
  verbs: [list]
{{- end }}
{{- if include "determined.claims" . }}
- apiGroups: [resource.k8s.io]
  resources: [resourceslices, resourceclaims]
  verbs: [list, watch]
- apiGroups: [resource.k8s.io]
  resources: [deviceclasses]
  verbs: [get]
{{- end }}
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
{{- if include "determined.claims" . }}
- apiGroups: [resource.k8s.io]
  resources: [resourceclaimtemplates]
  verbs: [create, get, patch, delete]
{{- end }}
{{- if include "determined.forwards" . }}
- apiGroups: [""]
  # Kubernetes asks for `create` as well since 1.35, where a WebSocket is opened.
  resources: [pods/portforward]
  verbs: [get, create]
{{- end }}
{{- if include "determined.gateways" . | fromJsonArray }}
- apiGroups: [gateway.networking.k8s.io]
  resources: [tcproutes]
  verbs: [create, get, patch, delete]
- apiGroups: [gateway.networking.k8s.io]
  resources: [listenersets]
  verbs: [create, get, delete]
{{- end }}
{{- end -}}

{{/* The managers that tasks of this cluster are of, with what decides which rights they need: a JSON list. */}}
{{- define "determined.managers" -}}
{{- $v := .Values -}}
{{- $gateway := dict -}}
{{- with $v.internalTaskGateway -}}
{{- $gateway = dict "gateway_name" .gatewayName "gateway_namespace" .gatewayNamespace -}}
{{- end -}}
{{- $managers := list (dict "type" "kubernetes" "slot_type" $v.slotType "task_exposure" $v.taskExposure "internal_task_gateway" $gateway) -}}
{{- $managers = append $managers (merge (dict "type" "kubernetes") (($v.masterConfig | default dict).resource_manager | default dict)) -}}
{{- range $v.additional_resource_managers -}}
{{- $managers = append $managers (.resource_manager | default dict) -}}
{{- end -}}
{{- $own := list -}}
{{- range $managers -}}
{{- if and (eq (.type | default "agent") "kubernetes") (not (or .kubeconfig_secret_name .kubeconfig_path)) -}}
{{- $own = append $own . -}}
{{- end -}}
{{- end -}}
{{- toJson $own -}}
{{- end -}}

{{/* Not empty where a manager of this cluster reaches services of tasks through the API server. */}}
{{- define "determined.forwards" -}}
{{- range include "determined.managers" . | fromJsonArray -}}
{{- if eq (.task_exposure | default "") "port_forward" -}}
true
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Not empty where a manager of this cluster has slots that pods claim. */}}
{{- define "determined.claims" -}}
{{- range include "determined.managers" . | fromJsonArray -}}
{{- if eq (.slot_type | default "") "dra" -}}
true
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The Gateways through which managers of this cluster reach services of tasks: a JSON list without repetition. */}}
{{- define "determined.gateways" -}}
{{- $gateways := list -}}
{{- range include "determined.managers" . | fromJsonArray -}}
{{- $gateway := .internal_task_gateway | default dict -}}
{{- if $gateway.gateway_name -}}
{{- $gateways = append $gateways (dict "name" $gateway.gateway_name "namespace" $gateway.gateway_namespace) -}}
{{- end -}}
{{- end -}}
{{- $gateways | uniq | toJson -}}
{{- end -}}

{{- define "determined.rules.bindings" -}}
- apiGroups: [""]
  resources: [namespaces]
  verbs: [create, delete]
- apiGroups: [""]
  resources: [resourcequotas]
  verbs: [get, create, patch, delete]
{{- end -}}
