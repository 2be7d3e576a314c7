"""What an agent was asked to be."""

from dataclasses import dataclass, field
from pathlib import Path

CONTRACT_VERSION = 1


class GrantMissingError(Exception):
    """There is no grant to register with."""


@dataclass(frozen=True)
class AgentOptions:
    """Settings of one agent; times in milliseconds as the API has them, others in seconds."""

    url: str
    tenant: str
    application: str
    name: str
    state_dir: Path
    runtime: str = "process"
    version: str = "1.0.0"
    capabilities: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    resources: dict[str, int] = field(default_factory=dict)
    concurrency: int = 4
    registered_by: str = "service:registrar"
    grant: str | None = field(default=None, repr=False)
    grant_file: Path | None = None
    handlers: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    lease_ms: int | None = None
    heartbeat_interval_ms: int = 10_000
    heartbeat_timeout_ms: int | None = None
    abandon_claims: bool = False
    output_limit: int = 512 * 1024
    time_limit: float | None = None
    stop_grace: float = 5.0
    drain_grace: float = 30.0

    @property
    def silence_ms(self) -> int:
        """After how long without a heartbeat the server takes this worker for silent."""
        return self.heartbeat_timeout_ms or max(30_000, 3 * self.heartbeat_interval_ms)

    def read_grant(self) -> str:
        """The grant as it is now: a file may have been replaced. GrantMissingError."""
        if self.grant_file is None:
            if not self.grant:
                raise GrantMissingError("no grant: give --grant-file or set FENCEPOST_GRANT")
            return self.grant.strip()
        try:
            grant = self.grant_file.read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            raise GrantMissingError(f"{self.grant_file}: {type(error).__name__}") from None
        if not grant:
            raise GrantMissingError(f"{self.grant_file} is empty")
        return grant

    @property
    def identity(self) -> dict[str, str]:
        return {"tenant": self.tenant, "application": self.application, "name": self.name}
