"""The commands of gcloud that deploy an app, and the comparison with a project that exists."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollforward.cli.deploy.checks import SWEEP_URL, Finding, queue_findings
from rollforward.cli.deploy.needs import DEADLINE_S, Needs
from rollforward.cli.deploy.project_files import ProjectFiles
from rollforward.cli.deploy.queue_settings import QueueSettings, of_json, suggested
from rollforward.cli.errors import CliError

TIMEOUT_S = 60
MAX_COUNTED = 1_000
_MAX_TEXT = 300
_ACCOUNT_ID_CHARS = range(6, 31)
_ROLES = ("datastore.user", "cloudtasks.enqueuer", "cloudtasks.viewer")


@dataclass(frozen=True)
class Deployment:
    """A project, its region and a service in it; the defaults are variables of a shell."""

    project: str = "$PROJECT"
    region: str = "$REGION"
    service: str = "app"


def commands(
    platform: str,
    needs: Needs,
    queues: Mapping[str, QueueSettings],
    files: ProjectFiles,
    at: Deployment,
) -> list[str]:
    """Return the commands that deploy on a platform, in order."""
    if platform == "app-engine":
        return _on_app_engine(needs, at)
    return _on_cloud_run(needs, queues, files, at)


def _on_app_engine(needs: Needs, at: Deployment) -> list[str]:
    account = f"{at.project}@appspot.gserviceaccount.com"
    yaml_files = "app.deploy.yaml queue.yaml cron.yaml" + (" index.yaml" if needs.indexes else "")
    return [
        *(_grant(at, account, role) for role in _ROLES),
        "cp app.yaml app.deploy.yaml  # fill in SECRET_KEY there, outside version control",
        f"gcloud app deploy --project={at.project} {yaml_files}",
    ]


def _on_cloud_run(
    needs: Needs, queues: Mapping[str, QueueSettings], files: ProjectFiles, at: Deployment
) -> list[str]:
    accounts = runs_id, calls_id = _account_ids(at.service)
    runs, calls = (f"{account}@{at.project}.iam.gserviceaccount.com" for account in accounts)
    where = f"--project={at.project} --region={at.region}"
    url = f"https://{at.service}-$NUMBER.{at.region}.run.app"
    secret = f"{at.service}-secret-key"
    settings = (
        f"GOOGLE_CLOUD_PROJECT={at.project},TASKS_URL={url},TASKS_LOCATION={at.region},"
        f"TASKS_SERVICE_ACCOUNT={calls}"
    )
    return [
        f"NUMBER=$(gcloud projects describe {at.project} --format='value(projectNumber)')",
        f"gcloud iam service-accounts create {runs_id} --project={at.project}",
        f"gcloud iam service-accounts create {calls_id} --project={at.project}",
        *(_grant(at, runs, role) for role in (*_ROLES, "secretmanager.secretAccessor")),
        f"gcloud iam service-accounts add-iam-policy-binding {calls} --project={at.project} "
        f"--member=serviceAccount:{runs} --role=roles/iam.serviceAccountUser",
        "python3 -c 'import secrets; print(secrets.token_hex(32), end=\"\")' | "
        f"gcloud secrets create {secret} --project={at.project} --data-file=-",
        *(
            create_queue(queues.get(name) or suggested(name, needs.patterns_of(name)), at)
            for name in sorted(needs.queues)
        ),
        *([f"gcloud datastore indexes create index.yaml --project={at.project}"][: _any(needs)]),
        # The app proves its callers. Cloud Run takes the signature from tokens that it checks.
        f"gcloud run deploy {at.service} --source=. {where} --allow-unauthenticated "
        f"--service-account={runs} --concurrency={files.threads} "
        f"--max-instances={files.max_instances} --timeout={needs.deadline_s} "
        f"--set-secrets=SECRET_KEY={secret}:latest --set-env-vars={settings}",
        create_sweep(at, url, calls),
    ]


def _account_ids(service: str) -> tuple[str, str]:
    """Return the ids of the account that runs a service, and of the one that calls it.

    >>> _account_ids("rollforward"), _account_ids("shop")
    (('rollforward', 'rollforward-tasks'), ('shop-server', 'shop-tasks'))
    """
    is_id = len(service) in _ACCOUNT_ID_CHARS
    short = service[: _ACCOUNT_ID_CHARS[-1] - len("-server")]
    return service if is_id else f"{short}-server", f"{short}-tasks"


def _any(needs: Needs) -> int:
    return 1 if needs.indexes else 0


def _grant(at: Deployment, account: str, role: str) -> str:
    return (
        f"gcloud projects add-iam-policy-binding {at.project} "
        f"--member=serviceAccount:{account} --role=roles/{role}"
    )


def create_queue(queue: QueueSettings, at: Deployment, verb: str = "create") -> str:
    """Return the command that creates a queue, or updates it."""
    options = " ".join(queue.gcloud_options())
    return (
        f"gcloud tasks queues {verb} {queue.name} --project={at.project} --location={at.region} "
        f"{options}"
    )


def create_sweep(at: Deployment, url: str, account: str) -> str:
    """Return the command that creates the scheduler's one job."""
    return (
        f"gcloud scheduler jobs create http {at.service}-sweep --project={at.project} "
        f"--location={at.region} --schedule='* * * * *' --http-method=GET "
        # As App Engine's cron waits. By default it gives up after three minutes, and begins the
        # next sweep beside one that is not done.
        f"--attempt-deadline={DEADLINE_S}s "
        f"--uri={url}{SWEEP_URL} --oidc-service-account-email={account} "
        f"--oidc-token-audience={url}"
    )


def live_findings(
    platform: str,
    needs: Needs,
    queues: Mapping[str, QueueSettings],
    files: ProjectFiles,
    at: Deployment,
) -> Iterator[Finding]:
    """Compare a project with the needs of an app and with its queue.yaml.

    Raises:
        CliError: gcloud is not there, or refuses; its own words say why.
    """
    where = [f"--project={at.project}", f"--location={at.region}", "--format=json"]
    deployed = {
        queue.name: queue for queue in map(of_json, _run(["tasks", "queues", "list", *where]))
    }
    for name in sorted(needs.queues):
        declared = queues.get(name) or suggested(name, needs.patterns_of(name))
        if name not in deployed:
            text = f"{at.project} has no queue {name}: {create_queue(declared, at)}"
            yield Finding("live-queue-missing", "cloud tasks", name, text)
            continue
        yield from queue_findings(deployed[name], files, at.project, is_needed=True)
        if difference := _difference(declared, deployed[name]):
            text = (
                f"{at.project}: the queue {name} has {difference}: "
                f"{create_queue(declared, at, 'update')}"
            )
            yield Finding("live-queue-differs", "cloud tasks", name, text)
    left = sorted(deployed.keys() - needs.queues.keys() - queues.keys())
    yield from _left_queues([deployed[name] for name in left if deployed[name].is_paused], at)
    if platform == "cloud-run":  # On App Engine cron.yaml is the schedule, and no list has it.
        yield from _live_sweep(_run(["scheduler", "jobs", "list", *where]), needs, at)


def _left_queues(left: Sequence[QueueSettings], at: Deployment) -> Iterator[Finding]:
    """Yield the paused queues that neither the app nor queue.yaml names, and that have tasks.

    A deployment of queue.yaml disables a queue that it names no more, and deletes neither it nor
    its tasks.
    """
    where = f"--project={at.project} --location={at.region}"
    for queue in left:
        options = [f"--queue={queue.name}", f"--limit={MAX_COUNTED}", "--format=json"]
        waiting = len(_run(["tasks", "list", *where.split(), *options]))
        if waiting:
            least = "at least " if waiting == MAX_COUNTED else ""
            text = (
                f"{at.project}: {least}{waiting:,} tasks wait in the queue {queue.name}, which is "
                "paused, and which neither the app nor queue.yaml names. If they are this app's, "
                f"deliver them: gcloud tasks queues resume {queue.name} {where}; once it is empty, "
                f"gcloud tasks queues delete {queue.name} {where}"
            )
            yield Finding("live-queue-left", "cloud tasks", queue.name, text)


def _difference(declared: QueueSettings, deployed: QueueSettings) -> str:
    pairs = {
        "rate": (deployed.rate_per_s, declared.rate_per_s),
        "concurrency": (deployed.max_concurrent, declared.max_concurrent),
        "minimum backoff": (deployed.min_backoff_s, declared.min_backoff_s),
        "maximum backoff": (deployed.max_backoff_s, declared.max_backoff_s),
    }
    return ", ".join(
        f"{name} {actual:g} instead of {expected:g}"
        for name, (actual, expected) in pairs.items()
        if abs(actual - expected) > 1e-6
    )


def _live_sweep(
    jobs: Sequence[Mapping[str, Any]], needs: Needs, at: Deployment
) -> Iterator[Finding]:
    uris = [
        str((job.get("httpTarget") or {}).get("uri", ""))
        for job in jobs
        if job.get("state") != "PAUSED"
    ]
    if any(uri.endswith(SWEEP_URL) for uri in uris):
        return
    unswept = [
        name for name in needs.swept if not any(uri.endswith(f"/cron/{name}/sweep") for uri in uris)
    ]
    if unswept:
        text = (
            f"{at.project} has no scheduler job that calls {SWEEP_URL}, and none for "
            f"{', '.join(unswept)}: run `gcloud scheduler jobs create http` as printed below."
        )
        yield Finding("live-sweep-missing", "cloud scheduler", SWEEP_URL, text)


def _run(arguments: Sequence[str]) -> list[dict[str, Any]]:
    program = shutil.which("gcloud")
    if program is None:
        raise CliError("There is no gcloud on the PATH: https://cloud.google.com/sdk/docs/install")
    command = " ".join(["gcloud", *arguments])
    try:
        done = subprocess.run(
            [program, *arguments, "--quiet"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        answer = json.loads(done.stdout or "[]") if done.returncode == 0 else None
    except subprocess.TimeoutExpired:
        raise CliError(f"{command} did not answer within {TIMEOUT_S} s.") from None
    except ValueError as error:
        raise CliError(f"{command} printed no JSON: {error}") from error
    if not isinstance(answer, list) or not all(isinstance(row, dict) for row in answer):
        raise CliError(f"{command} failed: {done.stderr.strip()[-_MAX_TEXT:]}")
    return answer
