"""Port `BrokerCertificates` in memory. It passes tests/contract/test_certificates.py like the adapter."""

from firn.model.errors import InvalidSpecError, NotReadyError
from firn_controllers.ports import CertificateState, Manifest


class FakeCertificates:
    def __init__(self) -> None:
        self.installed = True
        """False if the cluster has no cert-manager."""
        self.applied: dict[str, Manifest] = {}
        self.states: dict[str, CertificateState] = {}
        """Name -> what cert-manager reports about the present spec."""

    async def apply(self, manifest: Manifest) -> CertificateState:
        name = manifest["metadata"]["name"]
        if not self.installed:
            raise NotReadyError(
                f"Certificate {name}: the cluster has no CRD certificates.cert-manager.io; install cert-manager"
            )
        if "secretName" not in manifest["spec"]:
            raise InvalidSpecError(f"Certificate {name}: the API server refuses it: spec.secretName is required")
        before = self.applied.get(name)
        self.applied[name] = manifest
        state = self.states.get(name, CertificateState(ready=False))
        if before is not None and before["spec"] != manifest["spec"]:
            # cert-manager has not seen the new spec yet.
            state = CertificateState(ready=False, ends=state.ends)
            self.states[name] = state
        return state
