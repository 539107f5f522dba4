"""An approval as a flow: two people answer, a reminder goes out after a day, a week is the end."""

from __future__ import annotations

import datetime

from google.cloud import ndb

import rollforward as rf
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


def mail_all(claim: str, approvers: list[str], text: str) -> datetime.datetime:
    for approver in approvers:
        enqueue(mail_approver, mail_approver.bind(claim, approver, text))
    return rf.clients().clock.now()


def pay(claim: str) -> None:
    PaidClaim(id=claim).put()


def take_answers(step: Steps, span: str, end: datetime.datetime, missing: list[str]) -> None:
    for number in range(1, len(missing) + 1):
        left_s = (end - step.clients.clock.now()).total_seconds()
        answer = step.wait_for(f"answer {number} of the {span}", event="answer", timeout_s=left_s)
        if answer is None:
            return
        if not answer.payload["approves"]:
            raise Reject(f"{answer.payload['by']} says no")
        missing.remove(answer.payload["by"])


@flow("expense-claims")
def expense_claim(step: Steps, approvers: list[str]) -> None:
    claim, missing = step.flow_id, list(approvers)
    asked = step.commit("ask", mail_all, claim, missing, "a claim")
    take_answers(step, "first day", asked + datetime.timedelta(days=1), missing)
    if missing:
        step.commit("remind", mail_all, claim, missing, "a reminder")
        take_answers(step, "week", asked + datetime.timedelta(days=7), missing)
    if missing:
        raise Reject(f"no answer of {' and '.join(missing)} within a week")
    step.commit("pay", pay, claim)


# howto: to here
