"""Drives the official Python client. `tests/common/driver.rs` tells commands, fields and events."""

import json
import os
import sys
import threading
import time

from rocketmq import (ClientConfiguration, ConsumeResult, Credentials, FilterExpression, Message,
                      MessageListener, Producer, PushConsumer, SimpleConsumer, TransactionChecker,
                      TransactionResolution)
from rocketmq.grpc_protocol import FilterType

BATCH = 32
POLL_SECONDS = 2
PAUSE_AFTER_ERROR_SECONDS = 0.1
LATER_MS = 1000
RESOLUTIONS = {
    "commit": TransactionResolution.COMMIT,
    "rollback": TransactionResolution.ROLLBACK,
    "unknown": TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
}

command, config = sys.argv[1], json.loads(sys.argv[2])
stop = threading.Event()
out_lock = threading.Lock()


def now_ms():
    return time.time_ns() // 1_000_000


def note(event, **fields):
    line = json.dumps({"event": event, "at_ms": now_ms()} | fields)
    with out_lock:
        print(line, flush=True)


def note_error(what, error, **fields):
    note("error", what=what, text=f"{type(error).__name__}: {error}", **fields)


def watch_start():
    """A client that does not start must not hang its test."""
    def give_up():
        note("error", what="start", text=f"not started within {config['start_ms']} ms")
        os._exit(1)
    timer = threading.Timer(config["start_ms"] / 1000, give_up)
    timer.daemon = True
    timer.start()
    return timer


def start(client):
    timer = watch_start()
    try:
        client.startup()
    except Exception as error:  # noqa: BLE001, whatever it is, the client is not there
        note_error("start", error)
        os._exit(1)
    timer.cancel()
    note("started")
    return client


def client_configuration():
    return ClientConfiguration(config["endpoint"], Credentials())


def wait_for_gate():
    while config["gate"] and not os.path.exists(config["gate"]) and not stop.is_set():
        stop.wait(0.02)


def message_of(number, later_ms=0):
    message = Message()
    message.topic = config["topic"]
    message.body = bytes((number * 31 + i * 7) & 255 for i in range(1 + number * 37 % 1024))
    message.tag = f"tag-{number % 5}"
    message.keys = f"key-{number}"
    message.keys = f"ten-{number // 10}"
    message.add_property("number", str(number))
    message.add_property("town", "Zürich 東京")
    message.add_property("a=b", " spaced; \"quoted\" \\ ")
    if config["lines"]:
        message.message_group = f"line-{number % config['lines']}"
    if config["priorities"]:
        message.priority = 1 + number % config["priorities"]
    if config["delay_ms"]:
        # The client sends whole seconds.
        message.delivery_timestamp = -(-(now_ms() + config["delay_ms"] + later_ms) // 1000)
    return message


def note_received(message, asked_ms):
    note(
        "received",
        id=message.message_id,
        attempt=message.delivery_attempt,
        asked_ms=asked_ms,
        body=message.body.hex(),
        tag=message.tag,
        keys=sorted(message.keys),
        properties=message.properties,
        corrupted=message.corrupted,
        priority=message.priority,
    )


def note_sent(receipt, message, number, from_ms):
    note("sent", id=receipt.message_id, number=number, from_ms=from_ms,
         due_ms=(message.delivery_timestamp or 0) * 1000)


def send():
    producer = start(Producer(client_configuration(), (config["topic"],), tls_enable=config["tls"]))
    number = 0
    while not stop.is_set() and (config["count"] == 0 or number < config["count"]):
        message, from_ms = message_of(number), now_ms()
        try:
            receipt = producer.send(message)
            note_sent(receipt, message, number, from_ms)
        except Exception as error:  # noqa: BLE001, what the client lets through is the finding
            note_error("send", error, number=number, from_ms=from_ms)
            stop.wait(PAUSE_AFTER_ERROR_SECONDS)
            if config["lines"]:
                continue
        number += 1
        stop.wait(config["pace_ms"] / 1000)
    return producer


def insist(what, id, call):
    """Until it is answered OK, as an application would."""
    while not stop.is_set():
        try:
            call()
            return
        except Exception as error:  # noqa: BLE001
            note_error(what, error, id=id)
            stop.wait(PAUSE_AFTER_ERROR_SECONDS)


def transact():
    decided = {}

    class Checker(TransactionChecker):
        def check(self, message):
            said = decided.get(message.message_id, "unknown")
            note("asked", id=message.message_id, said=said)
            return RESOLUTIONS[said]

    producer = start(Producer(client_configuration(), (config["topic"],), checker=Checker(),
                              tls_enable=config["tls"]))
    halves = []
    for number, outcome in enumerate(config["outcomes"].split()):
        transaction, message, from_ms = producer.begin_transaction(), message_of(number), now_ms()
        receipt = producer.send(message, transaction)
        halves.append((receipt.message_id, transaction, outcome))
        note_sent(receipt, message, number, from_ms)
    wait_for_gate()
    for id, transaction, outcome in halves:
        decided[id] = "commit" if outcome == "open" else outcome
        if outcome != "open":
            end = transaction.commit if outcome == "commit" else transaction.rollback
            insist("end", id, lambda: (end(), note("ended", id=id)))
    stop.wait()
    return producer


def recall():
    producer = start(Producer(client_configuration(), (config["topic"],), tls_enable=config["tls"]))
    receipts = []
    for number in range(config["count"] + 1):
        later_ms = LATER_MS if number == config["count"] else 0
        message, from_ms = message_of(number, later_ms), now_ms()
        receipts.append(producer.send(message))
        note_sent(receipts[-1], message, number, from_ms)
    wait_for_gate()
    def recall_it(receipt):
        return producer.recall_message(config["topic"], receipt.recall_handle)
    for receipt in receipts[:-1]:
        for attempt in (1, 2):
            insist("recall", receipt.message_id,
                   lambda: note("recalled", id=recall_it(receipt), attempt=attempt))
    stop.wait()
    try:
        note("recalled", id=recall_it(receipts[-1]), attempt=1)
    except Exception as error:  # noqa: BLE001, that it is too late is the finding
        note_error("late", error, id=receipts[-1].message_id)
    return producer


def subscription():
    kind = FilterType.SQL if config["sql"] else FilterType.TAG
    return {config["topic"]: FilterExpression(config["filter"], kind)}


def fails(message):
    named = message.properties.get("number") in config["fails"].split()
    failed = named and message.delivery_attempt <= config["failures"]
    if failed:
        note("failed", id=message.message_id, attempt=message.delivery_attempt)
    return failed


def simple_consumer():
    return start(SimpleConsumer(client_configuration(), config["group"], subscription(),
                                await_duration=POLL_SECONDS, tls_enable=config["tls"]))


def receive(consumer):
    asked_ms = now_ms()
    try:
        messages = consumer.receive(BATCH, config["invisible_ms"] // 1000)
    except Exception as error:  # noqa: BLE001, an outage: note it and ask again
        note_error("receive", error)
        stop.wait(PAUSE_AFTER_ERROR_SECONDS)
        return []
    for message in messages:
        note_received(message, asked_ms)
    return messages


def acknowledge(consumer, message):
    try:
        consumer.ack(message)
        note("acked", id=message.message_id, attempt=message.delivery_attempt)
        return True
    except Exception as error:  # noqa: BLE001, the outcome is unknown: it may come again
        note_error("ack", error, id=message.message_id)
        return False


def simple():
    consumer = simple_consumer()
    while not stop.is_set():
        for message in receive(consumer):
            if not fails(message):
                acknowledge(consumer, message)
    return consumer


def invisible():
    consumer, acked = simple_consumer(), 0
    while not stop.is_set() and acked < config["count"]:
        for message in receive(consumer):
            if message.delivery_attempt > 1:
                acked += acknowledge(consumer, message)
                continue
            asked_ms = now_ms()
            try:
                if config["hide_first_ms"]:
                    consumer.change_invisible_duration(message, config["hide_first_ms"] // 1000)
                consumer.change_invisible_duration(message, config["hide_ms"] // 1000)
                note("hidden", id=message.message_id, attempt=message.delivery_attempt,
                     asked_ms=asked_ms)
            except Exception as error:  # noqa: BLE001
                note_error("hide", error, id=message.message_id)
    return consumer


def push():
    class Listener(MessageListener):
        def consume(self, message):
            note_received(message, now_ms())
            return ConsumeResult.FAILURE if fails(message) else ConsumeResult.SUCCESS

    consumer = start(PushConsumer(client_configuration(), config["group"], Listener(),
                                  subscription(), tls_enable=config["tls"]))
    stop.wait()
    return consumer


threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
commands = {"send": send, "simple": simple, "push": push, "invisible": invisible,
            "transact": transact, "recall": recall}
client = commands[command]()
try:
    client.shutdown()
except Exception as error:  # noqa: BLE001, it tells brokers of its end, and one may be gone
    note_error("stop", error)
note("done")
