"""Requests of a ServiceAccount of one tenant to the API server, for the release and for another tenant."""

from hack.quickstart import SYSTEM, kubectl

FOR_RELEASE = (
    ("get", "secret", "firn-s3", "-n", SYSTEM),
    ("get", "secrets", "-n", SYSTEM),
    ("get", "configmaps", "-n", SYSTEM),
    ("get", "pods", "-n", SYSTEM),
    ("get", "leases", "-n", SYSTEM),
    ("exec", "deploy/firn-operator", "-n", SYSTEM, "--", "id"),
    ("logs", "deploy/firn-operator", "-n", SYSTEM),
    ("create", "token", "firn-operator", "-n", SYSTEM),
    ("delete", "statefulset", "--all", "-n", SYSTEM),
    ("get", "--raw", f"/api/v1/namespaces/{SYSTEM}/services/firn-ingest-default:progress/proxy/progress"),
)
"""Requests for the release's namespace."""
FOR_TENANT = (
    ("get", "secrets"),
    ("get", "icebergtopics"),
    ("get", "topicusers"),
    ("delete", "icebergtopics", "--all"),
    ("create", "token", "default"),
)
"""Requests for the namespace of another tenant."""


def allowed_requests(account: str, victim: str) -> list[tuple[str, ...]]:
    """Make each request as a ServiceAccount ``NAMESPACE:NAME``, and return those that the API server allowed."""
    namespace = account.partition(":")[0]
    identity = [f"--as=system:serviceaccount:{account}"]
    for group in ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"):
        identity.append(f"--as-group={group}")
    requests = (*FOR_RELEASE, *((*request, "-n", victim) for request in FOR_TENANT))
    return [request for request in requests if not _refused(identity, request)]


def _refused(identity: list[str], request: tuple[str, ...]) -> bool:
    at = request.index("--") if "--" in request else len(request)
    try:
        kubectl(*request[:at], *identity, *request[at:])
    except RuntimeError as error:
        return "forbidden" in str(error).lower()
    return False
