"""An approval as a flow: two people answer, a reminder goes out after a day, a week is the end."""

from __future__ import annotations

from google.cloud import ndb

from rollforward.flows import Steps, flow
from rollforward.outbox import enqueue
from rollforward.tasks import Reject, task


# howto: from here
class ApproverMail(ndb.Model):
    text = ndb.TextProperty()


class PaidClaim(ndb.Model):
    """An expense that was paid."""


@task("/tasks/examples/mail-approver", queue="default")
def mail_approver(claim: str, approver: str, text: str) -> None:
    ApproverMail(id=f"{claim} {approver} {text}", text=text).put()  # Your mailer's call goes here.


def mail_all(claim: str, approvers: list[str], text: str) -> None:
    for approver in approvers:
        enqueue(mail_approver, mail_approver.bind(claim, approver, text))


def pay(claim: str) -> None:
    PaidClaim(id=claim).put()


@flow("expense-claims")
def expense_claim(step: Steps, approvers: list[str]) -> None:
    claim, missing = step.flow_id, list(approvers)
    step.commit("ask", mail_all, claim, missing, "a claim")
    while missing:
        number = len(approvers) - len(missing) + 1
        answer = step.wait_for(f"answer {number}", event="answer", timeout_s=24 * 3600)
        if answer is None:
            step.commit(f"remind {number}", mail_all, claim, missing, "a reminder")
            answer = step.wait_for(f"late answer {number}", event="answer", timeout_s=6 * 24 * 3600)
        if answer is None:
            raise Reject(f"no answer of {' and '.join(missing)} within a week")
        if not answer.payload["approves"]:
            raise Reject(f"{answer.payload['by']} says no")
        missing.remove(answer.payload["by"])
    step.commit("pay", pay, claim)


# howto: to here
