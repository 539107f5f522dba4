"""The mail server: what it keeps, and how it misbehaves on demand."""

import resource
import smtplib
from email.message import EmailMessage

import pytest

from rollforward.local.services.mail import BadFaultsError, MailServer, MailStore
from rollforward.local.services.standalone import mail_server
from rollforward.local.system.ports import split_address


@pytest.fixture
def server():
    """A mail server that keeps in memory."""
    with mail_server(seed=7) as running:
        yield running


def letter(subject="運動会のお知らせ", to="parent@example.org", text="明日です。"):
    message = EmailMessage()
    message["Subject"] = subject
    message["From"] = "school@example.org"
    message["To"] = to
    message["Message-ID"] = "<1@example.org>"
    message.set_content(text)
    return message


def send(server, *messages):
    with smtplib.SMTP(*split_address(server.address, 25)) as client:
        for message in messages:
            client.send_message(message)


def test_a_received_message_can_be_read_as_it_was_sent(server):
    """Subject, addresses and text survive the way, Japanese included."""
    send(server, letter())

    (mail,) = server.messages()

    assert (mail.subject, mail.text.strip()) == ("運動会のお知らせ", "明日です。")
    assert (mail.sender, mail.recipients) == ("school@example.org", ("parent@example.org",))
    assert mail.message_id == "<1@example.org>"


def test_messages_are_listed_newest_first_and_paged(server):
    """A page begins before the last message of the one above it."""
    send(server, *(letter(f"letter {number}") for number in range(5)))

    first = server.store.list(limit=2)
    second = server.store.list(limit=2, before_id=first[-1].id)

    assert [mail.subject for mail in first + second] == [
        "letter 4",
        "letter 3",
        "letter 2",
        "letter 1",
    ]


def test_search_looks_into_subject_and_addresses(server):
    """A search finds its text literally, wildcards included."""
    send(server, letter("100% off"), letter("plain", to="suzuki@example.org"))

    assert server.store.count("100%") == 1
    assert server.store.count("suzuki") == 1
    assert server.store.count("_") == 0


def test_clear_forgets_everything(server):
    """After a clear there is nothing, and new mail is kept again."""
    send(server, letter())

    server.clear()

    assert server.count() == 0


def test_the_oldest_messages_go_first_when_there_are_too_many():
    """What is kept is bounded."""
    store = MailStore(limit=3)

    for number in range(5):
        store.add("a@example.org", ["b@example.org"], b"Subject: %d\r\n\r\n" % number)

    assert [mail.subject for mail in store.list()] == ["4", "3", "2"]
    store.close()


def test_mail_in_a_file_survives_a_restart(tmp_path):
    """What one run received, the next one shows."""
    first = MailServer(store=MailStore(tmp_path / "mail.sqlite"))
    first.start()
    send(first, letter("kept"))
    first.stop()

    again = MailStore(tmp_path / "mail.sqlite")

    assert [mail.subject for mail in again.list()] == ["kept"]
    again.close()


def test_a_temporary_fault_answers_451_and_keeps_nothing(server):
    """A message that was not accepted is not there."""
    server.set_faults(temporary_rate=1.0)

    with pytest.raises(smtplib.SMTPDataError) as caught:
        send(server, letter())

    assert caught.value.smtp_code == 451
    assert server.count() == 0


def test_a_full_disk_puts_mail_off_and_refuses_none(tmp_path):
    """A sender that hears 500 gives the message up."""
    store = MailStore(tmp_path / "mail.sqlite")
    server = MailServer(store=store)
    server.start()
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        send(server, letter())
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, most[1]))
        with pytest.raises(smtplib.SMTPDataError) as put_off:
            send(server, letter())
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
        send(server, letter())
        kept = store.count()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
        server.stop()

    assert put_off.value.smtp_code == 452
    assert kept == 2


def test_a_share_of_temporary_faults_lets_the_rest_through(server):
    """Some messages fail and some pass; every accepted one is kept, once."""
    server.set_faults(temporary_rate=0.5)
    accepted = 0

    for number in range(40):
        try:
            send(server, letter(str(number)))
        except smtplib.SMTPDataError:
            continue
        accepted += 1

    assert 0 < accepted < 40
    assert server.count() == accepted


def test_a_refused_address_answers_550_and_spares_the_others(server):
    """One bad mailbox does not stop the message to a good one."""
    server.set_faults(refused=("Gone@example.org",))

    with smtplib.SMTP(*split_address(server.address, 25)) as client:
        refused = client.sendmail(
            "school@example.org", ["gone@example.org", "here@example.org"], b"Subject: x\r\n\r\nx"
        )

    assert refused["gone@example.org"][0] == 550
    assert server.messages()[0].recipients == ("here@example.org",)


@pytest.mark.parametrize("faults", [{"temporary_rate": 1.5}, {"latency_ms": -1}])
def test_faults_out_of_range_change_nothing(server, faults):
    """A setting without a meaning is refused."""
    with pytest.raises(BadFaultsError):
        server.set_faults(**faults)

    assert not server.faults.on


def test_a_message_that_cannot_be_decoded_is_still_shown(server):
    """Broken encodings are shown as far as they go, never an error."""
    raw = b"Subject: =?x-unknown?B?////?=\r\nContent-Type: text/plain; charset=x-no\r\n\r\n\xff!"

    with smtplib.SMTP(*split_address(server.address, 25)) as client:
        client.sendmail("a@example.org", ["b@example.org"], raw)

    (mail,) = server.messages()
    assert "x-unknown" in mail.subject
    assert "!" in mail.text


def test_a_stopped_server_closes_open_connections():
    """Stopping does not wait for a client that stays silent."""
    server = MailServer()
    server.start()
    client = smtplib.SMTP(*split_address(server.address, 25))

    server.stop()

    with pytest.raises(smtplib.SMTPServerDisconnected):
        client.noop()
    client.close()


@pytest.mark.parametrize(
    "header",
    [
        "Content-Type: text/plain; charset*=x'y'z; charset*0=a; name*1*=%",
        "Content-Disposition: ;charset*",
        'From: "',
        "To: a=?utf-8?b?x?=@",
    ],
)
def test_a_malformed_header_is_shown_as_it_came(header):
    """Python's parser fails in ways of its own: anybody may send a mail."""
    store = MailStore()
    store.add("a@example.org", ["b@example.org"], f"{header}\r\nSubject: x\r\n\r\nhi!".encode())

    (mail,) = store.list()

    assert "hi!" in mail.text
    name, _, value = header.partition(": ")
    shown = dict(mail.headers())
    assert shown["Subject"] == "x"
    assert shown[name] == value or name == "Content-Type"
    store.close()
