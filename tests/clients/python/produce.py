"""Sends messages with the official client and writes down what became of each.

One JSON object a line goes to --out: a receipt, or the error that the client's own retry did not
cover. Sends --count messages, or until standard input closes when --count is 0.
"""

import argparse
import base64
import itertools
import json
import random
import sys
import threading
import time

from rocketmq import ClientConfiguration, Credentials, Message, Producer


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--producers", type=int, default=1)
    parser.add_argument("--pace-ms", type=int, default=0)
    parser.add_argument("--body-max", type=int, default=4096)
    return parser.parse_args()


def message_of(topic, number, body_max):
    """The message with this number: every field varies, and all of them survive JSON."""
    message = Message()
    message.topic = topic
    message.body = random.Random(number).randbytes(1 + number * 37 % body_max)
    message.tag = f"tag-{number % 5}"
    message.keys = f"key-{number}"
    message.keys = f"ten-{number // 10}"
    message.add_property("number", str(number))
    message.add_property("town", "Zürich 東京")
    message.add_property("a=b", " spaced; \"quoted\" \\ ")
    return message


def main():
    options = arguments()
    stop = threading.Event()
    if options.count == 0:
        threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    numbers = itertools.count() if options.count == 0 else iter(range(options.count))
    out = open(options.out, "a", encoding="utf-8", buffering=1)
    lock = threading.Lock()
    config = ClientConfiguration(options.endpoint, Credentials())

    def note(line):
        with lock:
            out.write(json.dumps(line) + "\n")

    def take():
        with lock:
            return next(numbers, None)

    def run(which):
        producer = Producer(config, (options.topic,))
        producer.startup()
        while not stop.is_set() and (number := take()) is not None:
            message = message_of(options.topic, number, options.body_max)
            line = {
                "producer": which,
                "number": number,
                "body": base64.b64encode(message.body).decode(),
                "tag": message.tag,
                "keys": sorted(message.keys),
                "properties": message.properties,
                "from": time.time(),
            }
            try:
                receipt = producer.send(message)
                line |= {"id": receipt.message_id, "offset": receipt.offset}
            except Exception as error:  # noqa: BLE001, what the client lets through is the finding
                line |= {"id": message.message_id, "error": f"{type(error).__name__}: {error}"}
            line["to"] = time.time()
            note(line)
            if options.pace_ms:
                stop.wait(options.pace_ms / 1000)
        producer.shutdown()

    threads = [threading.Thread(target=run, args=(n,)) for n in range(options.producers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    note({"ended": True})


main()
