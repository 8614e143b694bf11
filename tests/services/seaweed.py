"""SeaweedFS: a real S3 server, with two users: one may do all, the other may read only."""

from __future__ import annotations

import json
import signal
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import botocore.session

from .process import READY_S, Server, free_ports, program

ACCESS, SECRET = "verl-access", "verl-secret-0123456789"
READER_ACCESS, READER_SECRET = "reader-access", "reader-secret-0123456789"
_USERS = {
    "identities": [
        {
            "name": "verl",
            "credentials": [{"accessKey": ACCESS, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        },
        {
            "name": "reader",
            "credentials": [{"accessKey": READER_ACCESS, "secretKey": READER_SECRET}],
            "actions": ["Read", "List"],
        },
    ]
}


class Seaweed(Server):
    """``start`` returns when it answers S3 calls; ``volume_mb`` and ``volumes`` bound what it can hold."""

    def __init__(self, folder: Path, *, volume_mb: int = 256, volumes: int = 20) -> None:
        self.data = folder / "data"
        self.data.mkdir(parents=True, exist_ok=True)
        (folder / "s3.json").write_text(json.dumps(_USERS))
        self.port, master, volume, filer = free_ports(4)
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._health = f"http://127.0.0.1:{filer}/"
        command = [
            program("weed"), "-logtostderr=true", "server", f"-dir={self.data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
            f"-master.port={master}", f"-master.volumeSizeLimitMB={volume_mb}", "-master.telemetry=false",
            f"-volume.port={volume}", f"-volume.max={volumes}", "-volume.preStopSeconds=0",
            "-filer", f"-filer.port={filer}", "-s3", f"-s3.port={self.port}", f"-s3.config={folder / 's3.json'}",
            "-s3.autoCreateBucket=false", "-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.iam=false",
        ]  # fmt: skip
        key = "0123456789abcdef" * 4
        super().__init__(command, folder, env={"WEED_S3_SSE_KEY": key})

    def environ(self) -> dict[str, str]:
        """What a client needs to know, as the AWS tools are told it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def start(self) -> None:
        super().start()
        self.wait_for_port(self.port)
        end = time.monotonic() + READY_S
        while not self._answers():
            self.check()
            assert time.monotonic() < end, f"no answer after {READY_S} s:\n{self.log()}"
            time.sleep(0.1)

    def make_bucket(self, name: str) -> None:
        client = self.client()
        client.create_bucket(Bucket=name)
        client.close()

    def client(self, access: str = ACCESS, secret: str = SECRET) -> Any:
        """A plain client, for what tests do behind a storage's back."""
        return botocore.session.get_session().create_client(
            "s3",
            region_name="us-east-1",
            endpoint_url=self.endpoint,
            aws_access_key_id=access,
            aws_secret_access_key=secret,
        )

    def _answers(self) -> bool:
        """Whether the gateway and the store of names behind it are up: a refusal of an unsigned call is an answer."""
        try:
            with urllib.request.urlopen(f"{self.endpoint}/healthz", timeout=2) as reply:
                ready = bool(reply.status == 200)
            with urllib.request.urlopen(self._health, timeout=2):
                return ready
        except urllib.error.HTTPError as error:
            return error.code < 500
        except OSError:
            return False


def main() -> None:
    """``python -m tests.services.seaweed FOLDER``: a server in the foreground, for a person."""
    server = Seaweed(Path(sys.argv[1]).absolute())
    server.start()
    server.make_bucket("runs")
    sys.stdout.write("".join(f"export {name}={value}\n" for name, value in server.environ().items()))
    sys.stdout.flush()
    try:
        signal.pause()
    finally:
        server.kill()


if __name__ == "__main__":
    main()
