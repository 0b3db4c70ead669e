"""The secure listener of a profile's brokers: principals with all rights, and whether all brokers have the listener."""

from collections.abc import Collection, Iterable

from firn.model import names
from firn.model.config import Access, Config
from firn.model.errors import InvalidSpecError
from firn_controllers.ports import PodState, StatefulSetState
from firn_controllers.trust.sources import Sources

API_SERVER_KEYS = "/openid/v1/jwks"
"""Path of the keys of ServiceAccount tokens at the API server. By default, Kubernetes lets every ServiceAccount read them."""
OPEN_PORT = "kafka"
"""Name of the port of brokers for clients without encryption."""
SOURCES = f"{names.GROUP}/certificate-sources"
"""Annotation of the StatefulSet of brokers with ``access``: the `Sources` of their certificates and CAs."""


def super_users(config: Config, access: Access, *, anonymous: bool, accounts: Collection[str] = ()) -> tuple[str, ...]:
    """Return the principals that may do everything: those of ``access``, and Firn's ServiceAccounts in ``accounts``.

    ``anonymous``: clients without encryption, too. Drivers and runs have ACLs (`firn_controllers.reconcilers.driver_rights`), so a new
    group changes no broker.
    """
    ours = {f"User:{names.service_account(config.namespace, account)}" for account in accounts}
    return tuple(sorted({*ours, *({"User:ANONYMOUS"} if anonymous else ()), *access.super_users}))


def issuer(profile: str, access: Access) -> str:
    """Return the issuer of the tokens of ServiceAccounts. Raises InvalidSpecError if it is not known."""
    if not access.issuer:
        raise InvalidSpecError(
            f"configuration profiles.{profile}.access.issuer: the operator's token names no issuer; set it to the value of the API server's"
            " --service-account-issuer"
        )
    return access.issuer


def open_pods(pods: Iterable[PodState]) -> list[str]:
    """Return the names of the pods of brokers that accept clients without encryption."""
    return sorted(pod.name for pod in pods if OPEN_PORT in pod.ports)


def open_warning(profile: str, access: Access | None, pods: Collection[str]) -> str:
    """Return the text of the Event for brokers that accept clients without encryption. ``pods``: their `open_pods`."""
    if access is None:
        return (
            f"profile {profile}: every client that reaches the brokers may do everything, without encryption, because the profile has no access;"
            " set access, with plaintext: Keep while clients move"
        )
    if access.plaintext == "Close":
        return (
            f"profile {profile}: clients without encryption may still do everything at {', '.join(pods)}, because the change of access.plaintext to"
            f" Close has not reached them; if this Event comes again, see kubectl describe statefulset {names.fleet(profile)}"
        )
    return (
        f"profile {profile}: clients without encryption may do everything, because access.plaintext is Keep; move them to port 9096, and set"
        " plaintext to Close"
    )


def is_secured(access: Access | None, live: StatefulSetState | None) -> bool:
    """Return whether Firn's own clients connect to the secure listener of a profile, given its live StatefulSet.

    Brokers get the listener one by one, so clients wait for the last one. New brokers have it from the start.
    """
    if access is None:
        return False
    return live is None or annotation(live, names.SECURED) == "true"


def annotation(live: StatefulSetState, name: str) -> str | None:
    """Return an annotation of a live StatefulSet; None if it has none of this name."""
    found: str | None = (live.manifest.get("metadata", {}).get("annotations") or {}).get(name)
    return found


def sources_of(profile: str, access: Access | None, live: StatefulSetState | None) -> Sources | None:
    """Return which Secrets the brokers use, from their live StatefulSet. New brokers use the configured one; without ``access``, none."""
    if access is None:
        return None
    marked = None if live is None else annotation(live, SOURCES)
    try:
        return Sources.read(marked or "")
    except ValueError:
        return Sources.of(access.certificate.presented(profile))
