"""Receives and acknowledges with the official client until standard input closes.

One JSON object a line goes to --out: what was got, and (simple consumer) whether its
acknowledgement was answered OK.
"""

import argparse
import base64
import json
import sys
import threading
import time

from rocketmq import (ClientConfiguration, ConsumeResult, Credentials, FilterExpression,
                      MessageListener, PushConsumer, SimpleConsumer)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--mode", choices=["simple", "push"], required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--filter", default="*")
    return parser.parse_args()


INVISIBLE_SECONDS = 10
POLL_SECONDS = 2
PAUSE_AFTER_ERROR_SECONDS = 0.1


def main():
    options = arguments()
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    out = open(options.out, "a", encoding="utf-8", buffering=1)
    lock = threading.Lock()
    config = ClientConfiguration(options.endpoint, Credentials())
    subscription = {options.topic: FilterExpression(options.filter)}

    def note(**line):
        with lock:
            out.write(json.dumps(line) + "\n")

    def note_got(message, asked):
        note(
            event="got",
            id=message.message_id,
            attempt=message.delivery_attempt,
            asked=asked,
            body=base64.b64encode(message.body).decode(),
            tag=message.tag,
            keys=sorted(message.keys),
            properties=message.properties,
            topic=message.topic,
            corrupted=message.corrupted,
        )

    def acknowledge(consumer, message):
        try:
            consumer.ack(message)
            note(event="acked", id=message.message_id, attempt=message.delivery_attempt, at=time.time())
        except Exception as error:  # noqa: BLE001, the outcome is unknown: it may come again
            note(event="ack_failed", id=message.message_id, error=f"{type(error).__name__}: {error}")

    def receive(consumer):
        while not stop.is_set():
            asked = time.time()
            try:
                messages = consumer.receive(32, INVISIBLE_SECONDS)
            except Exception as error:  # noqa: BLE001, an outage: note it and ask again
                note(event="receive_failed", error=f"{type(error).__name__}: {error}")
                stop.wait(PAUSE_AFTER_ERROR_SECONDS)
                continue
            for message in messages:
                note_got(message, asked)
            for message in messages:
                acknowledge(consumer, message)

    class Listener(MessageListener):
        def consume(self, message):
            note_got(message, time.time())
            return ConsumeResult.SUCCESS

    if options.mode == "push":
        consumer = PushConsumer(config, options.group, Listener(), subscription)
        consumer.startup()
        note(event="started")
        stop.wait()
    else:
        consumer = SimpleConsumer(config, options.group, subscription, await_duration=POLL_SECONDS)
        consumer.startup()
        note(event="started")
        threads = [threading.Thread(target=receive, args=(consumer,)) for _ in range(options.threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    consumer.shutdown()
    note(event="ended")


main()
