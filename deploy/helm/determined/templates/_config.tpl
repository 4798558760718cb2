{{/*
The configuration of the master, in two parts with one layout: `plain` for the ConfigMap, `secret` for the Secret. The
master merges the files of its directory in the order of their names. Result: a JSON map of both.
*/}}

{{/* Copies keys that are given, under their names in master.yaml: dict "from", "to", "keys" (a map of names). */}}
{{- define "determined.copy" -}}
{{- range $key, $name := .keys -}}
{{- $value := get $.from $key -}}
{{- if and (hasKey $.from $key) (not (kindIs "invalid" $value)) -}}
{{- $_ := set $.to $name $value -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "determined.config" -}}
{{- $s := index . 1 -}}{{- $root := index . 0 -}}{{- $v := $root.Values -}}
{{- $plain := dict -}}{{- $secret := dict -}}
{{- $parts := dict "plain" $plain "secret" $secret -}}
{{- $_ := set $plain "log" (dict "level" ($v.logLevel | default "info")) -}}
{{- if not (kindIs "invalid" $v.logColor) -}}{{- $_ := set $plain.log "color" $v.logColor -}}{{- end -}}
{{- $_ := set $plain "port" 8081 -}}
{{- $_ := set $plain "data_dir" "/var/lib/determined/master" -}}
{{- include "determined.copy" (dict "from" $v "to" $plain "keys" (dict "clusterName" "cluster_name" "tensorboardTimeout" "tensorboard_timeout" "notebookTimeout" "notebook_timeout")) -}}
{{- if and $v.observability (not (kindIs "invalid" $v.observability.enable_prometheus)) -}}
{{- $_ := set $plain "observability" (dict "enable_prometheus" $v.observability.enable_prometheus) -}}
{{- end -}}
{{- $retention := dict -}}
{{- include "determined.copy" (dict "from" ($v.retentionPolicy | default dict) "to" $retention "keys" (dict "logRetentionDays" "log_retention_days" "schedule" "schedule")) -}}
{{- if $retention -}}{{- $_ := set $plain "retention_policy" $retention -}}{{- end -}}
{{- include "determined.config.db" (list $root $s $parts) -}}
{{- include "determined.config.security" (list $root $s $parts) -}}
{{- include "determined.config.logging" (list $root $s $parts) -}}
{{- include "determined.config.storage" (list $root $s $parts) -}}
{{- include "determined.config.tasks" (list $root $s $parts) -}}
{{- include "determined.config.managers" (list $root $s $parts) -}}
{{- toJson $parts -}}
{{- end -}}

{{- define "determined.config.db" -}}
{{- $root := index . 0 -}}{{- $s := index . 1 -}}{{- $parts := index . 2 -}}{{- $v := $root.Values -}}
{{- $given := $v.db | default dict -}}
{{- $db := dict "host" $s.db.host "port" (int $s.db.port) "name" $s.db.name "user" ($given.user | default "postgres") -}}
{{- if $given.sslMode -}}{{- $_ := set $db "ssl_mode" $given.sslMode -}}{{- end -}}
{{- if $given.sslRootCert -}}
{{- if not $given.certResourceName -}}
{{- fail "db.sslRootCert is the name of a file in the Secret or ConfigMap db.certResourceName, which is not given" -}}
{{- end -}}
{{- $_ := set $db "ssl_root_cert" (printf "/mount/determined/secrets/db/%s" $given.sslRootCert) -}}
{{- end -}}
{{- $_ := set $parts.plain "db" $db -}}
{{- /* That of the chart's own server is read from its Secret. */ -}}
{{- if and $s.db.external (not $given.existingSecret) -}}
{{- $_ := set $parts.secret "db" (dict "password" $s.db.password) -}}
{{- end -}}
{{- end -}}

{{- define "determined.config.security" -}}
{{- $root := index . 0 -}}{{- $s := index . 1 -}}{{- $parts := index . 2 -}}{{- $v := $root.Values -}}
{{- $given := $v.security | default dict -}}
{{- $security := dict -}}
{{- $identity := dict -}}
{{- include "determined.copy" (dict "from" ($given.defaultTask | default dict) "to" $identity "keys" (dict "user" "user" "group" "group")) -}}
{{- if not (kindIs "invalid" $s.taskUid) -}}{{- $_ := set $identity "uid" $s.taskUid -}}{{- end -}}
{{- if not (kindIs "invalid" $s.taskGid) -}}{{- $_ := set $identity "gid" $s.taskGid -}}{{- end -}}
{{- if $identity -}}{{- $_ := set $security "default_task" $identity -}}{{- end -}}
{{- if $given.authz -}}{{- $_ := set $security "authz" $given.authz -}}{{- end -}}
{{- if $given.token -}}{{- $_ := set $security "token" $given.token -}}{{- end -}}
{{- if $v.tlsSecret -}}
{{- $_ := set $security "tls" (dict "cert" "/mount/determined/secrets/tls/tls.crt" "key" "/mount/determined/secrets/tls/tls.key") -}}
{{- end -}}
{{- if $security -}}{{- $_ := set $parts.plain "security" $security -}}{{- end -}}
{{- if $s.initialUserPassword -}}
{{- $_ := set $parts.secret "security" (dict "initial_user_password" (toString $s.initialUserPassword)) -}}
{{- end -}}
{{- include "determined.config.login" (list $v $parts) -}}
{{- end -}}

{{/* Single sign-on and provisioning. The client's secret comes as a variable from a Secret of the administrator's. */}}
{{- define "determined.config.login" -}}
{{- $v := index . 0 -}}{{- $parts := index . 1 -}}
{{- $common := dict "enabled" "enabled" "provider" "provider" "idpRecipientUrl" "idp_recipient_url" "idpSsoUrl" "idp_sso_url" "autoProvisionUsers" "auto_provision_users" "groupsAttributeName" "groups_attribute_name" "displayNameAttributeName" "display_name_attribute_name" "agentUidAttributeName" "agent_uid_attribute_name" "agentGidAttributeName" "agent_gid_attribute_name" "agentUserNameAttributeName" "agent_user_name_attribute_name" "agentGroupNameAttributeName" "agent_group_name_attribute_name" "alwaysRedirect" "always_redirect" -}}
{{- $oidc := dict -}}
{{- include "determined.copy" (dict "from" ($v.oidc | default dict) "to" $oidc "keys" $common) -}}
{{- include "determined.copy" (dict "from" ($v.oidc | default dict) "to" $oidc "keys" (dict "clientId" "client_id" "authenticationClaim" "authentication_claim" "scimAuthenticationAttribute" "scim_authentication_attribute" "excludeGroupsScope" "exclude_groups_scope")) -}}
{{- if $oidc -}}{{- $_ := set $parts.plain "oidc" $oidc -}}{{- end -}}
{{- $saml := dict -}}
{{- include "determined.copy" (dict "from" ($v.saml | default dict) "to" $saml "keys" $common) -}}
{{- include "determined.copy" (dict "from" ($v.saml | default dict) "to" $saml "keys" (dict "idpSsoDescriptorUrl" "idp_sso_descriptor_url" "idpMetadataUrl" "idp_metadata_url" "idpCertPath" "idp_cert_path")) -}}
{{- if $saml -}}{{- $_ := set $parts.plain "saml" $saml -}}{{- end -}}
{{- $scim := $v.scim | default dict -}}
{{- if $scim -}}
{{- $plain := dict "enabled" ($scim.enabled | default false) -}}
{{- $auth := $scim.auth | default dict -}}
{{- if $auth.type -}}
{{- $_ := set $plain "auth" (dict "type" $auth.type) -}}
{{- if eq $auth.type "basic" -}}
{{- $_ := set $parts.secret "scim" (dict "auth" (dict "type" "basic" "username" (toString $auth.username) "password" (toString $auth.password))) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $parts.plain "scim" $plain -}}
{{- end -}}
{{- end -}}

{{- define "determined.config.logging" -}}
{{- $v := (index . 0).Values -}}{{- $parts := index . 2 -}}
{{- $given := $v.logging | default dict -}}
{{- if eq ($given.type | default "") "elastic" -}}
{{- $logging := dict "type" "elastic" "host" $given.host "port" (int ($given.port | default 9200)) -}}
{{- $security := $given.security | default dict -}}
{{- $to := dict -}}
{{- if $security.username -}}{{- $_ := set $to "username" $security.username -}}{{- end -}}
{{- $tls := $security.tls | default dict -}}
{{- if $tls -}}
{{- $toTls := dict -}}
{{- include "determined.copy" (dict "from" $tls "to" $toTls "keys" (dict "enabled" "enabled" "skipVerify" "skip_verify" "certificateName" "certificate_name")) -}}
{{- if $tls.certificate -}}{{- $_ := set $toTls "certificate" "/etc/determined/elastic.crt" -}}{{- end -}}
{{- $_ := set $to "tls" $toTls -}}
{{- end -}}
{{- if $to -}}{{- $_ := set $logging "security" $to -}}{{- end -}}
{{- $_ := set $parts.plain "logging" $logging -}}
{{- if $security.password -}}
{{- $_ := set $parts.secret "logging" (dict "type" "elastic" "security" (dict "password" (toString $security.password))) -}}
{{- end -}}
{{- else if $given.type -}}
{{- $_ := set $parts.plain "logging" (dict "type" $given.type) -}}
{{- end -}}
{{- end -}}

{{- define "determined.config.storage" -}}
{{- $v := (index . 0).Values -}}{{- $parts := index . 2 -}}
{{- $given := $v.checkpointStorage | default dict -}}
{{- $type := $given.type | default "shared_fs" -}}
{{- $storage := dict "type" (ternary "directory" $type (eq $type "pvc")) -}}
{{- $secret := dict -}}
{{- include "determined.copy" (dict "from" $given "to" $storage "keys" (dict "saveExperimentBest" "save_experiment_best" "saveTrialBest" "save_trial_best" "saveTrialLatest" "save_trial_latest")) -}}
{{- if eq $type "shared_fs" -}}
{{- $_ := set $storage "host_path" ($given.hostPath | default "/tmp/checkpoints") -}}
{{- else if eq $type "pvc" -}}
{{- $_ := set $storage "container_path" ($given.containerPath | default "/determined_shared_fs") -}}
{{- else if eq $type "directory" -}}
{{- $_ := set $storage "container_path" (required "checkpointStorage.containerPath is required for type directory" $given.containerPath) -}}
{{- else if has $type (list "s3" "gcs") -}}
{{- $_ := set $storage "bucket" (required (printf "checkpointStorage.bucket is required for type %s" $type) $given.bucket) -}}
{{- include "determined.copy" (dict "from" $given "to" $storage "keys" (dict "prefix" "prefix")) -}}
{{- if eq $type "s3" -}}
{{- include "determined.copy" (dict "from" $given "to" $storage "keys" (dict "endpointUrl" "endpoint_url")) -}}
{{- include "determined.copy" (dict "from" $given "to" $secret "keys" (dict "accessKey" "access_key" "secretKey" "secret_key")) -}}
{{- end -}}
{{- else if eq $type "azure" -}}
{{- $_ := set $storage "container" (required "checkpointStorage.container is required for type azure" $given.container) -}}
{{- if and $given.connection_string $given.account_url -}}
{{- fail "checkpointStorage.connection_string and checkpointStorage.account_url are both given: give one of them" -}}
{{- end -}}
{{- /* These travel together when files are merged. */ -}}
{{- include "determined.copy" (dict "from" $given "to" $secret "keys" (dict "connection_string" "connection_string" "account_url" "account_url" "credential" "credential")) -}}
{{- end -}}
{{- $_ := set $parts.plain "checkpoint_storage" $storage -}}
{{- if $secret -}}
{{- $_ := set $secret "type" $type -}}
{{- $_ := set $parts.secret "checkpoint_storage" $secret -}}
{{- end -}}
{{- end -}}

{{- define "determined.config.tasks" -}}
{{- $root := index . 0 -}}{{- $s := index . 1 -}}{{- $parts := index . 2 -}}{{- $v := $root.Values -}}
{{- $given := $v.taskContainerDefaults | default dict -}}
{{- $images := $v.defaultImages | default dict -}}
{{- $tasks := dict -}}
{{- if $s.networkMode -}}{{- $_ := set $tasks "network_mode" $s.networkMode -}}{{- end -}}
{{- include "determined.copy" (dict "from" $given "to" $tasks "keys" (dict "dtrainNetworkInterface" "dtrain_network_interface" "forcePullImage" "force_pull_image" "startupHook" "startup_hook" "logPolicies" "log_policies" "environmentVariables" "environment_variables" "shmSizeBytes" "shm_size_bytes" "preemptionTimeout" "preemption_timeout" "checkpointGcPodSpec" "checkpoint_gc_pod_spec")) -}}
{{- $image := dict -}}
{{- range $kind, $key := dict "cpu" "cpuImage" "cuda" "gpuImage" "rocm" "rocmImage" -}}
{{- $name := get $given $key | default (get $images $key) -}}
{{- if $name -}}{{- $_ := set $image $kind $name -}}{{- end -}}
{{- end -}}
{{- if $image -}}{{- $_ := set $tasks "image" $image -}}{{- end -}}
{{- $pods := eq $s.mode "kubernetes" -}}
{{- range $key, $name := dict "cpuPodSpec" "cpu_pod_spec" "gpuPodSpec" "gpu_pod_spec" -}}
{{- $spec := get $given $key -}}
{{- if $pods -}}{{- $spec = include "determined.podSpec" (list $root $s $spec) | fromJson -}}{{- end -}}
{{- if $spec -}}{{- $_ := set $tasks $name $spec -}}{{- end -}}
{{- end -}}
{{- if and $pods $tasks.checkpoint_gc_pod_spec -}}
{{- $_ := set $tasks "checkpoint_gc_pod_spec" (include "determined.podSpec" (list $root $s $tasks.checkpoint_gc_pod_spec) | fromJson) -}}
{{- end -}}
{{- if $tasks -}}{{- $_ := set $parts.plain "task_container_defaults" $tasks -}}{{- end -}}
{{- if $given.registryAuth -}}
{{- $_ := set $parts.secret "task_container_defaults" (dict "registry_auth" $given.registryAuth) -}}
{{- end -}}
{{- end -}}

{{/* A pod of tasks with what the chart adds to it: the volume of checkpoints, the Secret for pulling images. */}}
{{- define "determined.podSpec" -}}
{{- $root := index . 0 -}}{{- $s := index . 1 -}}
{{- $pod := deepCopy (index . 2 | default dict) -}}
{{- $spec := $pod.spec | default dict -}}
{{- $storage := $root.Values.checkpointStorage | default dict -}}
{{- if eq ($storage.type | default "shared_fs") "pvc" -}}
{{- $volume := dict "name" "determined-checkpoints" "persistentVolumeClaim" (dict "claimName" (include "determined.checkpointClaim" $root)) -}}
{{- $mount := dict "name" "determined-checkpoints" "mountPath" ($storage.containerPath | default "/determined_shared_fs") -}}
{{- $_ := set $spec "volumes" (append ($spec.volumes | default list) $volume) -}}
{{- $containers := list -}}{{- $found := false -}}
{{- range $spec.containers -}}
{{- if eq .name "determined-container" -}}
{{- $found = true -}}
{{- $container := deepCopy . -}}
{{- $_ := set $container "volumeMounts" (append (.volumeMounts | default list) $mount) -}}
{{- $containers = append $containers $container -}}
{{- else -}}
{{- $containers = append $containers . -}}
{{- end -}}
{{- end -}}
{{- if not $found -}}
{{- $containers = append $containers (dict "name" "determined-container" "volumeMounts" (list $mount)) -}}
{{- end -}}
{{- $_ := set $spec "containers" $containers -}}
{{- end -}}
{{- if $s.pullSecret -}}
{{- $_ := set $spec "imagePullSecrets" (append ($spec.imagePullSecrets | default list) (dict "name" $s.pullSecret) | uniq) -}}
{{- end -}}
{{- if $spec -}}{{- $_ := set $pod "spec" $spec -}}{{- end -}}
{{- toJson $pod -}}
{{- end -}}

{{- define "determined.checkpointClaim" -}}
{{- ($.Values.checkpointStorage | default dict).existingClaim | default (include "determined.name" (list . "checkpoints")) -}}
{{- end -}}

{{/* Pools as the master is given them: each with what the chart adds to its pods. */}}
{{- define "determined.pools" -}}
{{- $root := index . 0 -}}{{- $s := index . 1 -}}
{{- $pools := list -}}
{{- range index . 2 -}}
{{- $pool := deepCopy . -}}
{{- $defaults := $pool.task_container_defaults | default dict -}}
{{- range list "cpu_pod_spec" "gpu_pod_spec" "checkpoint_gc_pod_spec" -}}
{{- if and (eq $s.mode "kubernetes") (get $defaults .) -}}
{{- $_ := set $defaults . (include "determined.podSpec" (list $root $s (get $defaults .)) | fromJson) -}}
{{- end -}}
{{- end -}}
{{- $pools = append $pools $pool -}}
{{- end -}}
{{- toJson $pools -}}
{{- end -}}

{{- define "determined.config.managers" -}}
{{- $root := index . 0 -}}{{- $s := index . 1 -}}{{- $parts := index . 2 -}}{{- $v := $root.Values -}}
{{- $given := $v.resourceManager | default dict -}}
{{- $manager := dict "type" $s.mode -}}
{{- include "determined.copy" (dict "from" $v "to" $manager "keys" (dict "defaultAuxResourcePool" "default_aux_resource_pool" "defaultComputeResourcePool" "default_compute_resource_pool")) -}}
{{- if $given.clusterName -}}{{- $_ := set $manager "cluster_name" $given.clusterName -}}{{- end -}}
{{- if eq $s.mode "kubernetes" -}}
{{- include "determined.config.kubernetes" (list $root $s $manager) -}}
{{- else if $given.scheduler -}}
{{- $_ := set $manager "scheduler" $given.scheduler -}}
{{- end -}}
{{- $_ := set $parts.plain "resource_manager" $manager -}}
{{- $pools := include "determined.pools" (list $root $s ($v.resourcePools | default (list (dict "pool_name" "default")))) | fromJsonArray -}}
{{- include "determined.checkPools" (list $v $pools) -}}
{{- /* A list replaces the one of a weaker file as a whole, so that one with secrets in it is all in the Secret. */ -}}
{{- $_ := set (ternary $parts.secret $parts.plain (regexMatch "\"(registry_auth|provider)\":" (toJson $pools))) "resource_pools" $pools -}}
{{- $more := list -}}
{{- range $index, $item := $v.additional_resource_managers -}}
{{- $copy := deepCopy $item -}}
{{- $other := $copy.resource_manager | default dict -}}
{{- if $other.kubeconfig_secret_name -}}
{{- $key := required (printf "additional_resource_managers[%d].resource_manager.kubeconfig_secret_value, the key in the Secret %q, is required" $index $other.kubeconfig_secret_name) $other.kubeconfig_secret_value -}}
{{- $_ := set $other "kubeconfig_path" (printf "/mount/determined/secrets/%d/%s" $index $key) -}}
{{- end -}}
{{- $_ := unset $other "kubeconfig_secret_name" -}}{{- $_ := unset $other "kubeconfig_secret_value" -}}
{{- if and (eq ($other.type | default "agent") "kubernetes") (not $other.helper_image) -}}
{{- $_ := set $other "helper_image" $s.image -}}
{{- end -}}
{{- $more = append $more $copy -}}
{{- end -}}
{{- if and $s.hasAgents (eq $s.mode "kubernetes") -}}
{{- $more = append $more (dict "resource_manager" (dict "type" "agent" "cluster_name" "agents") "resource_pools" $s.agents.pools) -}}
{{- end -}}
{{- if $more -}}
{{- $_ := set (ternary $parts.secret $parts.plain (regexMatch "\"(registry_auth|provider)\":" (toJson $more))) "additional_resource_managers" $more -}}
{{- end -}}
{{- end -}}

{{- define "determined.config.kubernetes" -}}
{{- $root := index . 0 -}}{{- $s := index . 1 -}}{{- $manager := index . 2 -}}{{- $v := $root.Values -}}
{{- $_ := set $manager "default_namespace" (include "determined.taskNamespace" $root) -}}
{{- if not (kindIs "invalid" $v.maxSlotsPerPod) -}}{{- $_ := set $manager "max_slots_per_pod" (int $v.maxSlotsPerPod) -}}{{- end -}}
{{- $_ := set $manager "master_service_name" (include "determined.name" (list $root "master-service")) -}}
{{- $_ := set $manager "slot_type" $s.slotType -}}
{{- with $v.slotResourceName -}}{{- $_ := set $manager "slot_resource_name" . -}}{{- end -}}
{{- with $v.deviceClass -}}{{- $_ := set $manager "device_class" . -}}{{- end -}}
{{- with $v.deviceDriver -}}{{- $_ := set $manager "device_driver" . -}}{{- end -}}
{{- $cpus := ($v.slotResourceRequests | default dict).cpu -}}
{{- if and $cpus (not (has $s.slotType (list "cuda" "dra"))) -}}{{- $_ := set $manager "slot_resource_requests" (dict "cpu" $cpus) -}}{{- end -}}
{{- $_ := set $manager "helper_image" $s.image -}}
{{- $_ := set $manager "determined_master_port" (int ($v.determinedMasterPort | default $s.port)) -}}
{{- $_ := set $manager "determined_master_scheme" ($v.determinedMasterScheme | default $s.scheme) -}}
{{- if $v.determinedMasterHost -}}{{- $_ := set $manager "determined_master_host" $v.determinedMasterHost -}}{{- end -}}
{{- with $v.defaultScheduler -}}{{- $_ := set $manager "default_scheduler" . -}}{{- end -}}
{{- with $v.taskExposure -}}{{- $_ := set $manager "task_exposure" . -}}{{- end -}}
{{- with $v.internalTaskGateway -}}
{{- $ports := dict -}}
{{- with .gatewayPortRangeStart -}}{{- $_ := set $ports "gateway_port_range_start" (int .) -}}{{- end -}}
{{- with .gatewayPortRangeEnd -}}{{- $_ := set $ports "gateway_port_range_end" (int .) -}}{{- end -}}
{{- $names := dict "gateway_name" .gatewayName "gateway_namespace" .gatewayNamespace "gateway_ip" .gatewayIP -}}
{{- $_ := set $manager "internal_task_gateway" (merge $ports $names) -}}
{{- if not (has ($v.taskExposure | default "gateway") (list "gateway")) -}}
{{- fail (printf "taskExposure is %q and internalTaskGateway, which is another way to services of tasks, is given as well: remove one of them" $v.taskExposure) -}}
{{- end -}}
{{- else -}}
{{- if and (eq ($v.taskExposure | default "") "gateway") (not (dig "resource_manager" "internal_task_gateway" "" ($v.masterConfig | default dict))) -}}
{{- fail "taskExposure is \"gateway\", which needs internalTaskGateway: name the Gateway there" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What the master would refuse at its start is refused before it is installed. */}}
{{- define "determined.checkPools" -}}
{{- $v := index . 0 -}}{{- $names := list -}}
{{- range index . 1 -}}
{{- if has .pool_name $names -}}{{- fail (printf "resourcePools has two pools of the name %q" .pool_name) -}}{{- end -}}
{{- $names = append $names .pool_name -}}
{{- end -}}
{{- range list "defaultAuxResourcePool" "defaultComputeResourcePool" -}}
{{- $name := get $v . -}}
{{- if and $name (not (has $name $names)) -}}
{{- fail (printf "%s is %q, which is no pool of resourcePools: %s" . $name (join ", " $names)) -}}
{{- else if and (not $name) (gt (len $names) 1) (not (has "default" $names)) -}}
{{- fail (printf "%s is required, since no pool of resourcePools is named \"default\": %s" . (join ", " $names)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
