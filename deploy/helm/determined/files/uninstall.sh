# Deletes the Jobs of the tasks of one master, before its release is deleted. The identity of its cluster, which is a label
# of its Jobs, is known to the master alone. Never fails: what is left is named, and the uninstallation goes on.
set -u
access=/var/run/secrets/kubernetes.io/serviceaccount
kubernetes=https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT
api() {
    curl --silent --show-error --fail --max-time 30 --cacert "$access/ca.crt" \
        --header "Authorization: Bearer $(cat "$access/token")" "$@"
}
leave() {
    echo "$1; what is left of tasks: kubectl get jobs --all-namespaces --selector determined" >&2
    exit 0
}

# The certificate of the master may be for another name; nothing secret is sent.
id=$(curl --silent --show-error --insecure --max-time 10 --retry 3 --retry-all-errors "$MASTER/api/v1/master" |
    sed -n 's/.*"clusterId" *: *"\([0-9A-Za-z_-]*\)".*/\1/p')
[ -n "$id" ] || leave "the master at $MASTER does not report the identity of its cluster"

scale=$kubernetes/apis/apps/v1/namespaces/$NAMESPACE/deployments/$DEPLOYMENT/scale
api --request PATCH --header 'Content-Type: application/merge-patch+json' --data '{"spec":{"replicas":0}}' \
    --output /dev/null "$scale" || leave "the master could not be stopped"
give_up=$(($(date +%s) + 90))
while [ "$(date +%s)" -lt "$give_up" ]; do
    replicas=$(api "$scale" | tr -d ' \n' | sed -n 's/.*"status":{"replicas":\([0-9]*\).*/\1/p')
    [ "$replicas" != 0 ] || break
    sleep 2
done

# Namespaces and names of what has the label of the cluster, in whichever namespaces it is. Asks for nothing else of it.
labelled() {
    list=$(api --header 'Accept: application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1' \
        "$kubernetes/$1?labelSelector=determined.ai%2Fcluster_id%3D$id") || return 1
    printf '%s' "$list" | tr -d ' \n' | sed 's/"metadata":{/\n/g' |
        sed -n 's/^"name":"\([a-z0-9.-]*\)",\("generateName":"[a-z0-9.-]*",\)\{0,1\}"namespace":"\([a-z0-9-]*\)".*/\3 \1/p'
}
jobs=$(labelled apis/batch/v1/jobs) || leave "the Jobs of cluster $id could not be listed"
pods=$(labelled api/v1/pods) || leave "the pods of cluster $id could not be listed"

# Pods that end wait minutes for a master that takes their last lines, and there is none any more. Before their Jobs: kubelet
# keeps to the time that it was given first. A Job replaces no pod that is still ending.
while read -r namespace name; do
    [ -n "$name" ] || continue
    api --request DELETE --output /dev/null "$kubernetes/api/v1/namespaces/$namespace/pods/$name?gracePeriodSeconds=30" ||
        echo "the pod $name in the namespace $namespace could not be deleted" >&2
done <<PODS
$pods
PODS
count=0
while read -r namespace name; do
    [ -n "$name" ] || continue
    count=$((count + 1))
    api --request DELETE --output /dev/null \
        "$kubernetes/apis/batch/v1/namespaces/$namespace/jobs/$name?propagationPolicy=Background" ||
        echo "the Job $name in the namespace $namespace could not be deleted" >&2
done <<JOBS
$jobs
JOBS
echo "Jobs of cluster $id: $count"
