// Drives the official Node client. `tests/common/driver.rs` tells commands, fields and events.
'use strict';

const fs = require('node:fs');

const {
  ConsumeResult,
  FilterExpression,
  Producer,
  PushConsumer,
  SimpleConsumer,
} = require('rocketmq-client-nodejs');
// The package does not say them itself.
const {
  FilterType,
  TransactionResolution,
} = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const BATCH = 32;
const POLL_MS = 2000;
const PAUSE_AFTER_ERROR_MS = 100;
const LATER_MS = 1000;
const RESOLUTIONS = {
  commit: TransactionResolution.COMMIT,
  rollback: TransactionResolution.ROLLBACK,
  unknown: TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
};

const [command, config] = [process.argv[2], JSON.parse(process.argv[3])];

let stopped = false;
let stop;
const stopping = new Promise(resolve => { stop = () => { stopped = true; resolve(); }; });
process.stdin.on('end', stop).on('error', stop).resume();

function pause(ms) {
  let timer;
  const timeout = new Promise(resolve => { timer = setTimeout(resolve, ms); });
  return Promise.race([timeout, stopping]).finally(() => clearTimeout(timer));
}

function note(event, fields = {}) {
  process.stdout.write(JSON.stringify({ event, at_ms: Date.now(), ...fields }) + '\n');
}

function noteError(what, error, fields = {}) {
  note('error', { what, text: String(error), ...fields });
}

// Standard output is the protocol's, so the client's own log goes to standard error.
const say = level => (...words) => console.error(level, ...words);
const logger = { info: say('INFO'), warn: say('WARN'), error: say('ERROR'), debug() {}, close() {} };

const common = { endpoints: config.endpoint, namespace: '', sslEnabled: config.tls, logger };

async function start(client) {
  // The client waits without limit for the server's settings; a test must not.
  const timer = setTimeout(() => {
    note('error', { what: 'start', text: `not started within ${config.start_ms} ms` });
    process.exit(1);
  }, config.start_ms);
  try {
    await client.startup();
  } catch (error) {
    noteError('start', error);
    process.exit(1);
  }
  clearTimeout(timer);
  note('started');
  return client;
}

async function waitForGate() {
  while (config.gate && !fs.existsSync(config.gate) && !stopped) await pause(20);
}

function messageOf(number, laterMs = 0) {
  const body = Buffer.alloc(1 + number * 37 % 1024);
  for (let i = 0; i < body.length; i++) body[i] = (number * 31 + i * 7) & 255;
  return {
    topic: config.topic,
    body,
    tag: `tag-${number % 5}`,
    keys: [ `key-${number}`, `ten-${Math.floor(number / 10)}` ],
    properties: new Map([
      [ 'number', String(number) ],
      [ 'town', 'Zürich 東京' ],
      [ 'a=b', ' spaced; "quoted" \\ ' ],
    ]),
    ...config.lines && { messageGroup: `line-${number % config.lines}` },
    ...config.priorities && { priority: 1 + number % config.priorities },
    ...config.delay_ms && { deliveryTimestamp: new Date(Date.now() + config.delay_ms + laterMs) },
  };
}

function noteReceived(message, askedMs) {
  note('received', {
    id: message.messageId,
    attempt: message.deliveryAttempt,
    asked_ms: askedMs,
    body: message.body.toString('hex'),
    tag: message.tag,
    keys: [ ...message.keys ].sort(),
    properties: Object.fromEntries(message.properties),
    // The client sets it only when it is true.
    corrupted: message.corrupted === true,
    priority: message.priority,
  });
}

function noteSent(receipt, message, number, fromMs) {
  const dueMs = message.deliveryTimestamp?.getTime() ?? 0;
  note('sent', { id: receipt.messageId, number, from_ms: fromMs, due_ms: dueMs });
}

async function send() {
  const producer = await start(new Producer({ ...common, topics: [ config.topic ] }));
  for (let number = 0; !stopped && (config.count === 0 || number < config.count); number++) {
    const [ message, fromMs ] = [ messageOf(number), Date.now() ];
    try {
      noteSent(await producer.send(message), message, number, fromMs);
    } catch (error) {
      noteError('send', error, { number, from_ms: fromMs });
      if (config.lines) number--;
      await pause(PAUSE_AFTER_ERROR_MS);
    }
    if (config.pace_ms > 0) await pause(config.pace_ms);
  }
  return producer;
}

/** Until it is answered OK, as an application would. */
async function insist(what, id, call) {
  while (!stopped) {
    try {
      await call();
      return;
    } catch (error) {
      noteError(what, error, { id });
      await pause(PAUSE_AFTER_ERROR_MS);
    }
  }
}

async function transact() {
  const decided = new Map();
  const checker = {
    async check(message) {
      const said = decided.get(message.messageId) ?? 'unknown';
      note('asked', { id: message.messageId, said });
      return RESOLUTIONS[said];
    },
  };
  const producer = await start(new Producer({ ...common, topics: [ config.topic ], checker }));
  const halves = [];
  for (const [ number, outcome ] of config.outcomes.split(' ').entries()) {
    const [ transaction, message ] = [ producer.beginTransaction(), messageOf(number) ];
    const fromMs = Date.now();
    const receipt = await producer.send(message, transaction);
    halves.push({ id: receipt.messageId, transaction, outcome });
    noteSent(receipt, message, number, fromMs);
  }
  await waitForGate();
  for (const { id, transaction, outcome } of halves) {
    decided.set(id, outcome === 'open' ? 'commit' : outcome);
    if (outcome === 'open') continue;
    await insist('end', id, async () => {
      await transaction[outcome]();
      note('ended', { id });
    });
  }
  await stopping;
  return producer;
}

async function recall() {
  const producer = await start(new Producer({ ...common, topics: [ config.topic ] }));
  const receipts = [];
  for (let number = 0; number <= config.count; number++) {
    const message = messageOf(number, number === config.count ? LATER_MS : 0);
    const fromMs = Date.now();
    const receipt = await producer.send(message);
    receipts.push(receipt);
    noteSent(receipt, message, number, fromMs);
  }
  await waitForGate();
  const recallIt = receipt => producer.recallMessage(config.topic, receipt.recallHandle);
  const last = receipts.pop();
  for (const receipt of receipts) {
    for (const attempt of [ 1, 2 ]) {
      await insist('recall', receipt.messageId, async () => {
        note('recalled', { id: (await recallIt(receipt)).messageId, attempt });
      });
    }
  }
  await stopping;
  try {
    note('recalled', { id: (await recallIt(last)).messageId, attempt: 1 });
  } catch (error) {
    noteError('late', error, { id: last.messageId });
  }
  return producer;
}

function subscriptions() {
  const kind = config.sql ? FilterType.SQL : FilterType.TAG;
  return new Map([[ config.topic, new FilterExpression(config.filter, kind) ]]);
}

function fails(message) {
  const [ id, attempt ] = [ message.messageId, message.deliveryAttempt ];
  const named = config.fails.split(' ').includes(message.properties.get('number'));
  const failed = named && attempt <= config.failures;
  if (failed) note('failed', { id, attempt });
  return failed;
}

function simpleConsumer() {
  return start(new SimpleConsumer({
    ...common,
    consumerGroup: config.group,
    subscriptions: subscriptions(),
    awaitDuration: POLL_MS,
  }));
}

async function receive(consumer) {
  const askedMs = Date.now();
  try {
    const messages = await consumer.receive(BATCH, config.invisible_ms);
    for (const message of messages) noteReceived(message, askedMs);
    return messages;
  } catch (error) {
    noteError('receive', error);
    await pause(PAUSE_AFTER_ERROR_MS);
    return [];
  }
}

async function acknowledge(consumer, message) {
  try {
    await consumer.ack(message);
    note('acked', { id: message.messageId, attempt: message.deliveryAttempt });
    return true;
  } catch (error) {
    noteError('ack', error, { id: message.messageId });
    return false;
  }
}

async function simple() {
  const consumer = await simpleConsumer();
  while (!stopped) {
    for (const message of await receive(consumer)) {
      if (!fails(message)) await acknowledge(consumer, message);
    }
  }
  return consumer;
}

async function hide(consumer, message) {
  const [ id, attempt, askedMs ] = [ message.messageId, message.deliveryAttempt, Date.now() ];
  try {
    if (config.hide_first_ms) {
      await consumer.changeInvisibleDuration(message, config.hide_first_ms);
    }
    await consumer.changeInvisibleDuration(message, config.hide_ms);
    note('hidden', { id, attempt, asked_ms: askedMs });
  } catch (error) {
    noteError('hide', error, { id });
  }
}

async function invisible() {
  const consumer = await simpleConsumer();
  let acked = 0;
  while (!stopped && acked < config.count) {
    for (const message of await receive(consumer)) {
      if (message.deliveryAttempt === 1) await hide(consumer, message);
      else acked += await acknowledge(consumer, message);
    }
  }
  return consumer;
}

async function push() {
  const messageListener = {
    async consume(message) {
      noteReceived(message, Date.now());
      return fails(message) ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
    },
  };
  const consumer = await start(new PushConsumer({
    ...common,
    consumerGroup: config.group,
    subscriptions: subscriptions(),
    messageListener,
  }));
  await stopping;
  return consumer;
}

async function main() {
  const client = await { send, simple, push, invisible, transact, recall }[command]();
  try {
    await client.shutdown();
  } catch (error) {
    noteError('stop', error);
  }
  note('done');
  process.exit(0);
}

main();
