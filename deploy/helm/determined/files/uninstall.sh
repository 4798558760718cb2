# Deletes the Jobs of the tasks of one master, before its release is deleted. The identity of its cluster, which is a label
# of its Jobs, is known to the master alone. Never fails: what is left is named, and the uninstallation goes on.
set -u
access=/var/run/secrets/kubernetes.io/serviceaccount
api() {
    curl --silent --show-error --fail --max-time 30 --cacert "$access/ca.crt" \
        --header "Authorization: Bearer $(cat "$access/token")" "$@"
}
kubernetes=https://kubernetes.default.svc
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

for namespace in $TASK_NAMESPACES; do
    if api --request DELETE --output /dev/null \
        "$kubernetes/apis/batch/v1/namespaces/$namespace/jobs?labelSelector=determined.ai%2Fcluster_id%3D$id&propagationPolicy=Background"; then
        echo "deleted the Jobs of cluster $id in the namespace $namespace"
    else
        echo "the Jobs of cluster $id in the namespace $namespace could not be deleted" >&2
    fi
done
