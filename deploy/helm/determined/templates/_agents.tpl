{{/* What agents on nodes are configured with. */}}

{{- define "determined.agentTokenSecret" -}}
{{- ($.Values.agent | default dict).tokenSecretName | default (include "determined.name" (list . "agent-token")) -}}
{{- end -}}

{{/* Directories of nodes that agents mount: those of the value, and that of checkpoints on nodes. */}}
{{- define "determined.agentHostPaths" -}}
{{- $v := (index . 0).Values -}}
{{- $paths := ($v.agent | default dict).hostPaths | default list -}}
{{- $storage := $v.checkpointStorage | default dict -}}
{{- if eq ($storage.type | default "shared_fs") "shared_fs" -}}
{{- $paths = append $paths ($storage.hostPath | default "/tmp/checkpoints") -}}
{{- end -}}
{{- $paths | uniq | toJson -}}
{{- end -}}

{{- define "determined.agentConfig" -}}
{{- $root := index . 0 -}}{{- $s := index . 1 -}}{{- $v := $root.Values -}}
{{- $agent := $v.agent | default dict -}}
{{- $config := dict "log" (dict "level" ($v.logLevel | default "info") "color" false) "slot_type" $s.agents.slotType "data_dir" $agent.dataDir "agent_token_file" "/mount/determined/secrets/agents/token" "container_runtime" "docker" -}}
{{- if $v.tlsSecret -}}
{{- $_ := set $config "security" (dict "tls" (dict "enabled" true "master_cert" "/mount/determined/secrets/tls/tls.crt")) -}}
{{- end -}}
{{- $paths := include "determined.agentHostPaths" . | fromJsonArray -}}
{{- if $paths -}}{{- $_ := set $config "allowed_host_paths" $paths -}}{{- end -}}
{{- toYaml $config -}}
{{- end -}}
