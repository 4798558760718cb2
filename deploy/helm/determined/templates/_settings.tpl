{{/*
What the values mean together: older names are translated, each with a warning for NOTES, and values that contradict each
other end the rendering. Result: a JSON map.
*/}}

{{/* Stores under `key` of `into` the value of a name, or that of its older name, which wins over a default. */}}
{{- define "determined.pick" -}}
{{- if kindIs "invalid" .older -}}
{{- $_ := set .into .key .value -}}
{{- else -}}
{{- $isOwn := and (not (kindIs "invalid" .value)) (ne (toString .value) (toString .default)) -}}
{{- if and $isOwn (ne (toJson .value) (toJson .older)) -}}
{{- fail (printf "%s is %s and %s, its older name, is %s: give one of them" .name (toJson .value) .olderName (toJson .older)) -}}
{{- end -}}
{{- $_ := set .into .key .older -}}
{{- $_ := set .into "warnings" (append .into.warnings (printf "%s is the older name of %s" .olderName .name)) -}}
{{- end -}}
{{- end -}}

{{/* A quantity of Kubernetes; GB, which is none, becomes Gi. */}}
{{- define "determined.quantity" -}}
{{- $text := toString .value -}}
{{- if hasSuffix "GB" $text -}}
{{- $_ := set .into "warnings" (append .into.warnings (printf "%s: %q is no quantity of Kubernetes and counts as %q" .name $text (printf "%si" (trimSuffix "B" $text)))) -}}
{{- printf "%si" (trimSuffix "B" $text) -}}
{{- else -}}
{{- $text -}}
{{- end -}}
{{- end -}}

{{- define "determined.settings" -}}
{{- $v := .Values -}}
{{- $s := dict "warnings" list -}}
{{- $manager := $v.resourceManager | default dict -}}
{{- $_ := set $s "mode" ($manager.type | default "kubernetes") -}}
{{- include "determined.settings.images" (list . $s) -}}
{{- include "determined.settings.service" (list . $s) -}}
{{- include "determined.settings.master" (list . $s) -}}
{{- include "determined.settings.db" (list . $s) -}}
{{- include "determined.settings.agents" (list . $s) -}}
{{- include "determined.settings.tasks" (list . $s) -}}
{{- include "determined.settings.ignored" (list . $s) -}}
{{- toJson $s -}}
{{- end -}}

{{- define "determined.settings.images" -}}
{{- $root := index . 0 -}}{{- $s := index . 1 -}}{{- $v := $root.Values -}}
{{- $tag := $v.detVersion | default $root.Chart.AppVersion | toString -}}
{{- $_ := set $s "tag" $tag -}}
{{- if $v.masterImage -}}
{{- if ne ($v.imageRegistry | default "determinedai") "determinedai" -}}
{{- fail (printf "imageRegistry is %q and masterImage, the older way to name the image, is %q: give one of them" $v.imageRegistry $v.masterImage) -}}
{{- end -}}
{{- $_ := set $s "image" (printf "%s:%s" $v.masterImage $tag) -}}
{{- $_ := set $s "warnings" (append $s.warnings "masterImage is the older way to name the image; imageRegistry and detVersion are the new one") -}}
{{- else -}}
{{- $_ := set $s "image" (printf "%s/%s:%s" $v.imageRegistry (ternary "hpe-mlde-master" "determined-master" ($v.enterpriseEdition | default false)) $tag) -}}
{{- end -}}
{{- if hasSuffix ".dev" $tag -}}
{{- $_ := set $s "warnings" (append $s.warnings (printf "the tag %q is of a development version, for which there may be no image (ImagePullBackOff): set detVersion" $tag)) -}}
{{- end -}}
{{- $registry := $v.registry | default dict -}}
{{- $hasLogin := and $registry.user $registry.password -}}
{{- if and $hasLogin $v.imagePullSecretName -}}
{{- fail (printf "imagePullSecretName is %q and registry has a login, which makes another Secret: give one of them" $v.imagePullSecretName) -}}
{{- end -}}
{{- $_ := set $s "pullSecret" ($v.imagePullSecretName | default "") -}}
{{- if $hasLogin -}}
{{- $_ := set $s "pullSecret" (include "determined.name" (list $root "registry")) -}}
{{- $_ := set $s "makesPullSecret" true -}}
{{- end -}}
{{- end -}}

{{- define "determined.settings.service" -}}
{{- $root := index . 0 -}}{{- $s := index . 1 -}}{{- $v := $root.Values -}}
{{- $service := $v.service | default dict -}}
{{- $annotations := ($v.masterService | default dict).annotations | default dict -}}
{{- include "determined.pick" (dict "into" $s "key" "port" "name" "masterPort" "value" $v.masterPort "default" 8080 "olderName" "service.port" "older" $service.port) -}}
{{- include "determined.pick" (dict "into" $s "key" "sourceRanges" "name" "loadBalancerSourceRanges" "value" $v.loadBalancerSourceRanges "default" nil "olderName" "service.loadBalancerSourceRanges" "older" $service.loadBalancerSourceRanges) -}}
{{- $older := ternary $service.annotations nil (not (empty $service.annotations)) -}}
{{- include "determined.pick" (dict "into" $s "key" "serviceAnnotations" "name" "masterService.annotations" "value" $annotations "default" dict "olderName" "service.annotations" "older" $older) -}}
{{- $type := "LoadBalancer" -}}
{{- if $service.type -}}
{{- $type = $service.type -}}
{{- else if ($v.openshiftRoute | default dict).enabled -}}
{{- $type = "ClusterIP" -}}
{{- else if $v.useNodePortForMaster -}}
{{- $type = "NodePort" -}}
{{- end -}}
{{- $_ := set $s "serviceType" $type -}}
{{- $_ := set $s "scheme" (ternary "https" "http" (not (empty $v.tlsSecret))) -}}
{{- if and ($v.ingress | default dict).enabled ($v.ingress | default dict).sslPassthrough (not $v.tlsSecret) -}}
{{- fail "ingress.sslPassthrough leaves TLS to the master: set tlsSecret as well" -}}
{{- end -}}
{{- end -}}

{{- define "determined.settings.master" -}}
{{- $root := index . 0 -}}{{- $s := index . 1 -}}{{- $v := $root.Values -}}
{{- $older := $v.resources | default dict -}}
{{- $requests := $older.requests | default dict -}}{{- $limits := $older.limits | default dict -}}
{{- include "determined.pick" (dict "into" $s "key" "masterCpuRequest" "name" "masterCpuRequest" "value" $v.masterCpuRequest "default" 2 "olderName" "resources.requests.cpu" "older" $requests.cpu) -}}
{{- include "determined.pick" (dict "into" $s "key" "masterMemRequest" "name" "masterMemRequest" "value" $v.masterMemRequest "default" "8Gi" "olderName" "resources.requests.memory" "older" $requests.memory) -}}
{{- include "determined.pick" (dict "into" $s "key" "masterCpuLimit" "name" "masterCpuLimit" "value" $v.masterCpuLimit "default" nil "olderName" "resources.limits.cpu" "older" $limits.cpu) -}}
{{- include "determined.pick" (dict "into" $s "key" "masterMemLimit" "name" "masterMemLimit" "value" $v.masterMemLimit "default" nil "olderName" "resources.limits.memory" "older" $limits.memory) -}}
{{- $olderTolerations := ternary $v.tolerations nil (not (empty $v.tolerations)) -}}
{{- $olderSelector := ternary $v.nodeSelector nil (not (empty $v.nodeSelector)) -}}
{{- include "determined.pick" (dict "into" $s "key" "masterTolerations" "name" "masterTolerations" "value" ($v.masterTolerations | default list) "default" list "olderName" "tolerations" "older" $olderTolerations) -}}
{{- include "determined.pick" (dict "into" $s "key" "masterNodeSelector" "name" "masterNodeSelector" "value" ($v.masterNodeSelector | default dict) "default" dict "olderName" "nodeSelector" "older" $olderSelector) -}}
{{- include "determined.pick" (dict "into" $s "key" "initialUserPassword" "name" "initialUserPassword" "value" $v.initialUserPassword "default" nil "olderName" "defaultPassword" "older" $v.defaultPassword) -}}
{{- include "determined.password" (list $root $s) -}}
{{- end -}}

{{/* The first password: strong enough, and given where an installation is its first one. */}}
{{- define "determined.password" -}}
{{- $root := index . 0 -}}{{- $s := index . 1 -}}{{- $v := $root.Values -}}
{{- $password := $s.initialUserPassword | default "" | toString -}}
{{- if $password -}}
{{- if not (and (ge (len $password) 8) (regexMatch "[A-Z]" $password) (regexMatch "[a-z]" $password) (regexMatch "[0-9]" $password)) -}}
{{- fail "initialUserPassword must have at least 8 characters, with an upper case letter, a lower case letter and a digit" -}}
{{- end -}}
{{- if $v.initialUserPasswordSecret -}}
{{- fail "initialUserPassword and initialUserPasswordSecret are both given: give one of them" -}}
{{- end -}}
{{- else if not (or $v.initialUserPasswordSecret $v.allowBlankPasswords) -}}
{{- /* Without a cluster, as with `helm template`, nothing can be looked up, and it may be no first installation. */ -}}
{{- if lookup "v1" "Namespace" "" "kube-system" -}}
{{- $claim := include "determined.db.claim" $root -}}
{{- $service := lookup "v1" "Service" $root.Release.Namespace (include "determined.name" (list $root "master-service")) -}}
{{- $volume := lookup "v1" "PersistentVolumeClaim" $root.Release.Namespace $claim -}}
{{- if not (or $service $volume) -}}
{{- fail "the first installation needs initialUserPassword (or initialUserPasswordSecret), the password of the users \"admin\" and \"determined\"; allowBlankPasswords: true goes without" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The name of the volume claim of the chart's database. */}}
{{- define "determined.db.claim" -}}
{{- $db := .Values.db | default dict -}}
{{- $older := (((.Values.postgresql | default dict).persistence | default dict).existingClaim) -}}
{{- if $db.existingClaim -}}
{{- $db.existingClaim -}}
{{- else if $older -}}
{{- $older -}}
{{- else if $db.claimSuffix -}}
{{- printf "%s-db-pvc-%s" (include "determined.prefix" .) $db.claimSuffix -}}
{{- else if and $db.restoreSnapshotSuffix .Release.IsUpgrade -}}
{{- printf "%s-db-pvc-%s" (include "determined.prefix" .) $db.restoreSnapshotSuffix -}}
{{- else -}}
{{- include "determined.name" (list . "db-pvc") -}}
{{- end -}}
{{- end -}}

{{/* Name and key of the Secret with the password of the database. */}}
{{- define "determined.db.secretKey" -}}
{{- $own := dict "name" (include "determined.name" (list . "db")) "key" "password" -}}
{{- ((.Values.db | default dict).existingSecret | default $own) | toJson -}}
{{- end -}}

{{/*
The password for the Secret of the chart's own server; empty where no Secret is to be made. Included once, since a random
one differs each time.
*/}}
{{- define "determined.db.newPassword" -}}
{{- $root := index . 0 -}}{{- $d := index . 1 -}}
{{- $found := lookup "v1" "Secret" $root.Release.Namespace (include "determined.name" (list $root "db")) | default dict -}}
{{- if ($root.Values.db | default dict).existingSecret -}}
{{- else if $d.password -}}
{{- $d.password -}}
{{- else if get ($found.data | default dict) "password" -}}
{{- $found.data.password | b64dec -}}
{{- else if lookup "v1" "Namespace" "" "kube-system" -}}
{{- if and $d.persistent $d.makesClaim (lookup "v1" "PersistentVolumeClaim" $root.Release.Namespace $d.claim) -}}
{{- fail (printf "the volume of the claim %q has the password of its first start, and the Secret %q that had it is gone: give it as db.password (the default of earlier versions is \"postgres\"), or delete the claim with all data" $d.claim (include "determined.name" (list $root "db"))) -}}
{{- end -}}
{{- randAlphaNum 40 -}}
{{- end -}}
{{- /* Without a cluster, as with `helm template`, each rendering would make another password: it is left to the administrator. */ -}}
{{- end -}}

{{/* The claim that a snapshot is taken of: the one in use until now, not one that this upgrade restores into. */}}
{{- define "determined.db.source" -}}
{{- $db := deepCopy (.Values.db | default dict) -}}
{{- $_ := unset $db "restoreSnapshotSuffix" -}}
{{- include "determined.db.claim" (dict "Values" (dict "db" $db "postgresql" .Values.postgresql "fullnamePrefix" .Values.fullnamePrefix) "Release" .Release) -}}
{{- end -}}

{{- define "determined.settings.db" -}}
{{- $root := index . 0 -}}{{- $s := index . 1 -}}{{- $v := $root.Values -}}
{{- $db := $v.db | default dict -}}
{{- $pg := $v.postgresql | default dict -}}
{{- $kept := $pg.persistence | default dict -}}
{{- $d := dict "warnings" list -}}
{{- $_ := set $d "external" (not (empty $db.hostAddress)) -}}
{{- $_ := set $d "host" ($db.hostAddress | default (include "determined.name" (list $root "db-service"))) -}}
{{- include "determined.pick" (dict "into" $d "key" "name" "name" "db.name" "value" $db.name "default" "determined" "olderName" "postgresql.postgresqlDatabase" "older" $pg.postgresqlDatabase) -}}
{{- include "determined.pick" (dict "into" $d "key" "password" "name" "db.password" "value" ($db.password | default nil) "default" nil "olderName" "postgresql.postgresqlPassword" "older" $pg.postgresqlPassword) -}}
{{- include "determined.settings.db.password" (list $root $d) -}}
{{- include "determined.pick" (dict "into" $d "key" "port" "name" "db.port" "value" $db.port "default" 5432 "olderName" "postgresql.service.port" "older" ($pg.service | default dict).port) -}}
{{- include "determined.pick" (dict "into" $d "key" "size" "name" "db.storageSize" "value" $db.storageSize "default" "30Gi" "olderName" "postgresql.persistence.size" "older" $kept.size) -}}
{{- include "determined.pick" (dict "into" $d "key" "storageClass" "name" "db.storageClassName" "value" $db.storageClassName "default" nil "olderName" "postgresql.persistence.storageClass" "older" $kept.storageClass) -}}
{{- include "determined.pick" (dict "into" $d "key" "accessMode" "name" "db.accessMode" "value" $db.accessMode "default" "ReadWriteOnce" "olderName" "postgresql.persistence.accessMode" "older" $kept.accessMode) -}}
{{- if and $db.existingClaim $kept.existingClaim (ne $db.existingClaim $kept.existingClaim) -}}
{{- fail (printf "db.existingClaim is %q and postgresql.persistence.existingClaim, its older name, is %q: give one of them" $db.existingClaim $kept.existingClaim) -}}
{{- end -}}
{{- $isKept := ternary true $kept.enabled (kindIs "invalid" $kept.enabled) -}}
{{- $_ := set $d "persistent" (and $isKept (not $db.disablePVC)) -}}
{{- $_ := set $d "claim" (include "determined.db.claim" $root) -}}
{{- $_ := set $d "makesClaim" (not (or $db.existingClaim $kept.existingClaim $db.claimSuffix)) -}}
{{- $_ := set $d "claimAnnotations" ($kept.annotations | default dict) -}}
{{- $_ := set $d "subPath" ($kept.subPath | default "") -}}
{{- $_ := set $d "externalIPs" (($pg.service | default dict).externalIPs | default list) -}}
{{- $_ := set $d "schedulerName" ($pg.schedulerName | default "") -}}
{{- $_ := set $d "initdbArgs" ($pg.postgresqlInitdbArgs | default "") -}}
{{- $older := $pg.resources | default dict -}}
{{- $requests := $older.requests | default dict -}}{{- $limits := $older.limits | default dict -}}
{{- include "determined.pick" (dict "into" $d "key" "cpuRequest" "name" "db.cpuRequest" "value" $db.cpuRequest "default" 2 "olderName" "postgresql.resources.requests.cpu" "older" $requests.cpu) -}}
{{- include "determined.pick" (dict "into" $d "key" "memRequest" "name" "db.memRequest" "value" $db.memRequest "default" "8Gi" "olderName" "postgresql.resources.requests.memory" "older" $requests.memory) -}}
{{- include "determined.pick" (dict "into" $d "key" "cpuLimit" "name" "db.cpuLimit" "value" $db.cpuLimit "default" nil "olderName" "postgresql.resources.limits.cpu" "older" $limits.cpu) -}}
{{- include "determined.pick" (dict "into" $d "key" "memLimit" "name" "db.memLimit" "value" $db.memLimit "default" nil "olderName" "postgresql.resources.limits.memory" "older" $limits.memory) -}}
{{- range list "memRequest" "memLimit" "size" -}}
{{- if get $d . -}}
{{- $_ := set $d . (include "determined.quantity" (dict "into" $d "name" (printf "db.%s" .) "value" (get $d .))) -}}
{{- end -}}
{{- end -}}
{{- include "determined.settings.db.server" (list $root $d) -}}
{{- $_ := set $s "warnings" (concat $s.warnings $d.warnings) -}}
{{- $_ := unset $d "warnings" -}}
{{- $_ := set $s "db" $d -}}
{{- end -}}

{{/*
The password of the database. The Secret that has it is made on the first installation, with a password of its own where
none is given, and is kept with the volume, whose server keeps the password of its first start.
*/}}
{{- define "determined.settings.db.password" -}}
{{- $root := index . 0 -}}{{- $d := index . 1 -}}
{{- $db := $root.Values.db | default dict -}}
{{- $given := toString ($d.password | default "") -}}
{{- if and (not $given) $d.external -}}
{{- /* As ever, for a server of the administrator's. */ -}}
{{- $given = "postgres" -}}
{{- end -}}
{{- $_ := set $d "password" $given -}}
{{- if and (eq $given "postgres") (not $db.existingSecret) -}}
{{- $_ := set $d "warnings" (append $d.warnings "db.password is \"postgres\", which everyone can guess: choose another, or give db.existingSecret") -}}
{{- end -}}
{{- end -}}

{{/* Image and settings of the chart's database server. */}}
{{- define "determined.settings.db.server" -}}
{{- $root := index . 0 -}}{{- $d := index . 1 -}}{{- $v := $root.Values -}}
{{- $db := $v.db | default dict -}}{{- $pg := $v.postgresql | default dict -}}
{{- $image := $pg.image | default dict -}}
{{- $own := ($v.defaultImages | default dict).postgreSQL | default "postgres:16" -}}
{{- $_ := set $d "image" $own -}}
{{- if $image.repository -}}
{{- $older := printf "%s%s%s" (ternary (printf "%s/" $image.registry) "" (not (empty $image.registry))) $image.repository (ternary (printf ":%s" (toString $image.tag)) "" (not (empty $image.tag))) -}}
{{- if and (ne $own "postgres:16") (ne $own $older) -}}
{{- fail (printf "defaultImages.postgreSQL is %q and postgresql.image, its older name, is %q: give one of them" $own $older) -}}
{{- end -}}
{{- $_ := set $d "image" $older -}}
{{- $_ := set $d "warnings" (append $d.warnings "postgresql.image is the older name of defaultImages.postgreSQL") -}}
{{- end -}}
{{- $_ := set $d "pullPolicy" ($image.pullPolicy | default "IfNotPresent") -}}
{{- $_ := set $d "pullSecrets" ($image.pullSecrets | default list) -}}
{{- /* That image has a layout, a user and variables of its own. */ -}}
{{- $isBitnami := contains "bitnami" $d.image -}}
{{- $_ := set $d "isBitnami" $isBitnami -}}
{{- $_ := set $d "mountPath" ((($pg.persistence | default dict).mountPath) | default (ternary "/bitnami/postgresql" "/var/lib/postgresql/data" $isBitnami)) -}}
{{- if not $isBitnami -}}{{- $_ := set $d "mountPath" "/var/lib/postgresql/data" -}}{{- end -}}
{{- $major := regexFind "^[0-9]+" (last (splitList ":" $d.image)) -}}
{{- if and $major (lt (int $major) 14) -}}
{{- $_ := set $d "warnings" (append $d.warnings (printf "%s is older than PostgreSQL 14, the oldest version that is supported" $d.image)) -}}
{{- end -}}
{{- $more := dict "max_connections" (toString (int ($db.maxConnections | default 96))) "shared_buffers" ($db.sharedBuffers | default "512MB") -}}
{{- range $key, $value := $pg.postgresqlExtendedConfig -}}
{{- $_ := set $more (snakecase $key) (ternary (toString (int64 $value)) (toString $value) (or (kindIs "float64" $value) (kindIs "int" $value) (kindIs "int64" $value))) -}}
{{- end -}}
{{- $_ := set $d "server" $more -}}
{{- end -}}

{{- define "determined.settings.agents" -}}
{{- $root := index . 0 -}}{{- $s := index . 1 -}}{{- $v := $root.Values -}}
{{- $agent := $v.agent | default dict -}}
{{- $a := dict "warnings" list -}}
{{- $_ := set $s "hasAgents" (or (eq $s.mode "agent") ($agent.enabled | default false)) -}}
{{- $olderImage := ternary (printf "%s:%s" $v.agentImage $s.tag) nil (not (empty $v.agentImage)) -}}
{{- include "determined.pick" (dict "into" $a "key" "image" "name" "agent.image" "value" $agent.image "default" nil "olderName" "agentImage" "older" $olderImage) -}}
{{- $_ := set $a "image" ($a.image | default $s.image) -}}
{{- $olderSlots := $agent.enableCPUScheduling -}}
{{- if not (kindIs "invalid" $agent.enableCPUScheduling) -}}
{{- $olderSlots = ternary "auto" "cuda" $agent.enableCPUScheduling -}}
{{- end -}}
{{- include "determined.pick" (dict "into" $a "key" "slotType" "name" "agent.slotType" "value" $agent.slotType "default" "auto" "olderName" "agent.enableCPUScheduling" "older" $olderSlots) -}}
{{- $_ := set $a "pools" (ternary ($v.resourcePools | default (list (dict "pool_name" "default"))) ($agent.resourcePools | default (list (dict "pool_name" "agents"))) (eq $s.mode "agent")) -}}
{{- if $s.hasAgents -}}
{{- $_ := set $s "warnings" (concat $s.warnings $a.warnings) -}}
{{- end -}}
{{- $_ := unset $a "warnings" -}}
{{- $_ := set $s "agents" $a -}}
{{- end -}}

{{- define "determined.settings.tasks" -}}
{{- $root := index . 0 -}}{{- $s := index . 1 -}}{{- $v := $root.Values -}}
{{- $runner := $v.trialRunner | default dict -}}
{{- $identity := ($v.security | default dict).defaultTask | default dict -}}
{{- $network := $runner.network -}}
{{- if eq ($network | default "") "default" -}}{{- $network = "bridge" -}}{{- end -}}
{{- include "determined.pick" (dict "into" $s "key" "networkMode" "name" "taskContainerDefaults.networkMode" "value" ($v.taskContainerDefaults | default dict).networkMode "default" nil "olderName" "trialRunner.network" "older" $network) -}}
{{- include "determined.pick" (dict "into" $s "key" "taskUid" "name" "security.defaultTask.uid" "value" $identity.uid "default" nil "olderName" "trialRunner.uid" "older" $runner.uid) -}}
{{- include "determined.pick" (dict "into" $s "key" "taskGid" "name" "security.defaultTask.gid" "value" $identity.gid "default" nil "olderName" "trialRunner.gid" "older" $runner.gid) -}}
{{- if eq $s.mode "kubernetes" -}}
{{- $slotType := $v.slotType | default "gpu" -}}
{{- $_ := set $s "slotType" (ternary "cuda" $slotType (eq $slotType "gpu")) -}}
{{- $cpus := ($v.slotResourceRequests | default dict).cpu | default 0 -}}
{{- if and (eq $s.slotType "cpu") (le (float64 $cpus) 0.0) -}}
{{- fail "slotType cpu needs slotResourceRequests.cpu, the processors of a slot, such as 7.5" -}}
{{- end -}}
{{- include "determined.settings.devices" (list $root $s) -}}
{{- if kindIs "invalid" $v.maxSlotsPerPod -}}
{{- $_ := required "maxSlotsPerPod is required: the number of GPUs of a node; of nodes of several sizes, their greatest common divisor" nil -}}
{{- end -}}
{{- $storage := $v.checkpointStorage | default dict -}}
{{- if and (eq ($storage.type | default "shared_fs") "shared_fs") (not $storage.allowHostPath) -}}
{{- fail "checkpointStorage.type shared_fs is a directory of each node, for trying things out: set checkpointStorage.type to pvc, s3, gcs or azure, or checkpointStorage.allowHostPath to true" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Values that choose what slots are, each for the slot types that the master takes it with; masterConfig has the last word. */}}
{{- define "determined.settings.devices" -}}
{{- $root := index . 0 -}}{{- $s := index . 1 -}}{{- $v := $root.Values -}}
{{- $manager := ($v.masterConfig | default dict).resource_manager | default dict -}}
{{- $type := $manager.slot_type | default $s.slotType -}}
{{- if and (eq $type "dra") (not (or $v.deviceClass $manager.device_class)) -}}
{{- fail "slotType dra needs deviceClass, the DeviceClass whose devices are slots, such as gpu.nvidia.com" -}}
{{- end -}}
{{- if and $v.slotResourceName (not (has $type (list "cuda" "gpu" "rocm"))) -}}
{{- fail (printf "slotResourceName is %q, which is for slotType cuda or rocm, and slotType is %s: remove it" $v.slotResourceName $type) -}}
{{- end -}}
{{- range list "deviceClass" "deviceDriver" -}}
{{- if and (get $v .) (ne $type "dra") -}}
{{- fail (printf "%s is %q, which is for slotType dra, and slotType is %s: remove it, or set slotType to dra" . (get $v .) $type) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What is accepted and has no effect, or another one than its name promises. */}}
{{- define "determined.settings.ignored" -}}
{{- $root := index . 0 -}}{{- $s := index . 1 -}}{{- $v := $root.Values -}}
{{- if $v.fluent -}}{{- $_ := set $s "warnings" (append $s.warnings "fluent is ignored: tasks ship their logs themselves") -}}{{- end -}}
{{- if ($v.genai | default dict).version -}}{{- $_ := set $s "warnings" (append $s.warnings "genai is ignored: it is not part of this chart") -}}{{- end -}}
{{- if ($v.telemetry | default dict).enabled -}}{{- $_ := set $s "warnings" (append $s.warnings "telemetry.enabled is ignored: nothing is reported to anyone") -}}{{- end -}}
{{- if eq ($v.defaultScheduler | default "") "coscheduler" -}}
{{- $_ := set $s "warnings" (append $s.warnings "defaultScheduler coscheduler: task pods name the scheduler \"coscheduler\", which this chart does not deploy: where none runs they wait. Without this value the master itself starts all pods of a task or none") -}}
{{- end -}}
{{- if has ($v.defaultScheduler | default "") (list "kueue" "volcano") -}}
{{- $_ := set $s "warnings" (append $s.warnings (printf "defaultScheduler %s: this chart does not deploy it, and the master uses no cluster without it" $v.defaultScheduler)) -}}
{{- end -}}
{{- if $v.coscheduler -}}{{- $_ := set $s "warnings" (append $s.warnings "coscheduler is ignored: defaultScheduler is the one value for it") -}}{{- end -}}
{{- if and (eq $s.mode "kubernetes") (eq ($v.checkpointStorage | default dict).type "shared_fs") -}}
{{- $_ := set $s "warnings" (append $s.warnings "checkpointStorage.type shared_fs: checkpoints are on the node that wrote them, unless hostPath is shared by all nodes") -}}
{{- end -}}
{{- end -}}
