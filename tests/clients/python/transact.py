"""Sends transactional messages with the official client, ends them as it is told, and answers checks.

One JSON object a line goes to --out. Ends when standard input closes.
"""

import argparse
import json
import sys
import time

from rocketmq import (ClientConfiguration, Credentials, Message, Producer, TransactionChecker,
                      TransactionResolution)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--send", default="", help="one word for each message: commit, rollback, open")
    parser.add_argument("--answer", choices=["commit", "rollback", "open"], default="open")
    return parser.parse_args()


def main():
    options = arguments()
    out = open(options.out, "a", encoding="utf-8", buffering=1)

    def note(event, **fields):
        out.write(json.dumps({"event": event, "at": time.time()} | fields) + "\n")

    class Checker(TransactionChecker):
        def check(self, message):
            note("asked", id=message.message_id, topic=message.topic, body=message.body.decode(),
                 tag=message.tag, corrupted=message.corrupted)
            return {
                "commit": TransactionResolution.COMMIT,
                "rollback": TransactionResolution.ROLLBACK,
                "open": TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
            }[options.answer]

    config = ClientConfiguration(options.endpoint, Credentials())
    producer = Producer(config, (options.topic,), checker=Checker())
    producer.startup()
    note("started")
    for number, word in enumerate(options.send.split()):
        message = Message()
        message.topic = options.topic
        message.body = f"{word} {number}".encode()
        message.tag = word
        message.keys = f"key-{number}"
        transaction = producer.begin_transaction()
        receipt = producer.send(message, transaction)
        note("half", id=receipt.message_id, transaction=receipt.transaction_id, word=word)
        if word == "commit":
            transaction.commit()
            note("committed", id=receipt.message_id)
        elif word == "rollback":
            transaction.rollback()
            note("rolled back", id=receipt.message_id)
    note("sent")
    sys.stdin.read()
    producer.shutdown()


main()
