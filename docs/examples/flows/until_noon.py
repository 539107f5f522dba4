"""Retries until noon as a flow: a bank's rates are asked for all morning, or yesterday's stay."""

from __future__ import annotations

import datetime
from typing import Protocol
from zoneinfo import ZoneInfo

from google.cloud import ndb

from rollforward.flows import RetryPolicy, StepFailedError, Steps, flow


# howto: from here
class ExchangeRate(ndb.Model):
    rate = ndb.FloatProperty(indexed=False)


class Bank(Protocol):
    def rate(self, day: datetime.date) -> float: ...


def yesterdays(day: datetime.date) -> float:
    row = ExchangeRate.get_by_id(str(day - datetime.timedelta(days=1)))
    return float(row.rate)


def store(day: datetime.date, rate: float) -> None:
    ExchangeRate(id=str(day), rate=rate).put()


@flow("exchange-rates")
def fetch_rate(step: Steps, day: datetime.date) -> float:
    noon = datetime.datetime.combine(day, datetime.time(12), ZoneInfo("Europe/Berlin"))
    patient = step.retrying(RetryPolicy(attempts=None, longest_s=300, until=noon))
    try:
        rate = patient.outside("ask the bank", step.clients.service(Bank).rate, day)
    except StepFailedError:
        rate = step.commit("take yesterday's", yesterdays, day)
    step.commit("store", store, day, rate)
    return rate


# howto: to here
