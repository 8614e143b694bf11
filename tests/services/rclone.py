"""rclone as an S3 server: it takes conditions and ignores them, silently. The store that a probe must find out."""

from __future__ import annotations

from pathlib import Path

from .process import Server, free_ports, program

ACCESS, SECRET = "rclone-access", "rclone-secret-0123456789"


class Rclone(Server):
    """``bucket`` is a folder below ``data``."""

    def __init__(self, folder: Path, bucket: str = "runs") -> None:
        self.data = folder / "data"
        (self.data / bucket).mkdir(parents=True, exist_ok=True)
        (self.port,) = free_ports(1)
        self.endpoint = f"http://127.0.0.1:{self.port}"
        command = [
            program("rclone"), "serve", "s3", str(self.data), "--addr", f"127.0.0.1:{self.port}",
            "--auth-key", f"{ACCESS},{SECRET}", "--vfs-cache-mode", "off", "--config", str(folder / "rclone.conf"),
        ]  # fmt: skip
        super().__init__(command, folder)

    def start(self) -> None:
        super().start()
        self.wait_for_port(self.port)

    def options(self) -> dict[str, object]:
        """Of a client."""
        return {
            "endpoint_url": self.endpoint,
            "access_key_id": ACCESS,
            "secret_access_key": SECRET,
            "region": "us-east-1",
            "addressing_style": "path",
        }
