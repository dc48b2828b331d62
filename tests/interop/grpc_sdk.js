// The official Node.js SDK (rocketmq-client-nodejs 1.x) against a broker: every kind of message and of consumer.
// Arguments: endpoints, then the access key and the secret where there are any, then "tls".
// Prints a line for each proof, then "done". Topics are those of test_grpc_sdks.py.
'use strict';
const assert = require('assert');
const { createRequire } = require('module');
const path = require('path');
const sdk = createRequire(path.join(process.cwd(), 'x.js'));
const { Producer, PushConsumer, SimpleConsumer, ConsumeResult, FilterExpression } = sdk('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } = sdk('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const WAIT_MS = 60000;
const silent = { info() {}, warn() {}, error() {}, debug() {} };
const [ endpoints, accessKey, accessSecret, tls ] = process.argv.slice(2);
const common = { endpoints, namespace: '', sslEnabled: tls === 'tls', logger: process.env.SDK_LOG ? console : silent };
if (accessKey) common.sessionCredentials = { accessKey, accessSecret };

async function wait(what, condition) {
  const until = Date.now() + WAIT_MS;
  while (!await condition()) {
    assert.ok(Date.now() < until, `${what}: not within ${WAIT_MS} ms`);
    await new Promise(resolve => setTimeout(resolve, 20));
  }
  console.log(what);
}

function message(topic, body, more = {}) {
  const properties = new Map([ [ 'colour', 'red' ] ]);
  return { topic, body: Buffer.from(body), tag: 't', keys: [ `key-${body}` ], properties, ...more };
}

async function push(group, topic, consume, filter = '*') {
  const consumer = new PushConsumer({
    ...common, consumerGroup: group, subscriptions: new Map([ [ topic, filter ] ]), messageListener: { consume },
  });
  await consumer.startup();
  return consumer;
}

async function main() {
  const normal = new Set();
  const filtered = new Set();
  const order = [];
  const late = new Map();
  const committed = new Set();
  const checked = new Set();
  const attempts = [];
  await Promise.all([
    push('node-normal', 'normal', async view => {
      normal.add(`${view.body} ${view.tag} ${view.keys} ${view.properties.get('colour')}`);
      return ConsumeResult.SUCCESS;
    }),
    push('node-filtered', 'filtered', async view => {
      filtered.add(view.body.toString());
      return ConsumeResult.SUCCESS;
    }, new FilterExpression('colour = \'blue\'', FilterType.SQL)),
    push('push-fifo', 'fifo', async view => {
      order.push(view.body.toString());
      return ConsumeResult.SUCCESS;
    }),
    push('node-delay', 'delay', async view => {
      late.set(view.body.toString(), Date.now());
      return ConsumeResult.SUCCESS;
    }),
    push('node-transaction', 'transaction', async view => {
      committed.add(view.body.toString());
      return ConsumeResult.SUCCESS;
    }),
    push('node-retried', 'retried', async view => {
      attempts.push(view.deliveryAttempt);
      return view.deliveryAttempt < 2 ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
    }),
  ]);
  const simple = new SimpleConsumer({
    ...common, consumerGroup: 'node-simple', subscriptions: new Map([ [ 'simple', '*' ] ]), awaitDuration: 3000,
  });
  await simple.startup();
  await simple.receive(32, 15000);
  await new Promise(resolve => setTimeout(resolve, 3000)); // the first assignment of a push consumer
  const producer = new Producer({
    ...common, topic: [ 'normal', 'filtered', 'fifo', 'delay', 'transaction', 'retried', 'simple' ],
    checker: {
      async check(view) {
        checked.add(view.body.toString());
        return view.body.toString() === 'node-orphan' ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
      },
    },
  });
  await producer.startup();

  for (let i = 0; i < 20; i++) await producer.send(message('normal', `node-${i}`));
  await wait('a push consumer gets all messages, with tag, keys and properties', () => normal.size >= 20);
  assert.ok(normal.has('node-7 t key-node-7 red'), [ ...normal ].join('\n'));

  await producer.send(message('filtered', 'node-red'));
  await producer.send(message('filtered', 'node-blue', { properties: new Map([ [ 'colour', 'blue' ] ]) }));
  await wait('a filter of properties selects', () => filtered.has('node-blue'));
  assert.ok(!filtered.has('node-red'));

  for (let i = 0; i < 20; i++) await producer.send(message('fifo', `node-${i}`, { messageGroup: 'node' }));
  await wait('messages of a group come in order', () => order.length >= 20);
  assert.deepStrictEqual(order, [ ...Array(20).keys() ].map(i => `node-${i}`));

  const dueMs = Date.now() + 3000;
  await producer.send(message('delay', 'node-due', { deliveryTimestamp: new Date(dueMs) }));
  const receipt = await producer.send(message('delay', 'node-recalled', { deliveryTimestamp: new Date(dueMs + 2000) }));
  await producer.recallMessage('delay', receipt.recallHandle);

  for (const body of [ 'node-committed', 'node-rolled-back', 'node-orphan', 'node-orphan-rolled-back' ]) {
    const transaction = producer.beginTransaction();
    await producer.send(message('transaction', body), transaction);
    if (body === 'node-committed') await transaction.commit();
    if (body === 'node-rolled-back') await transaction.rollback();
  }
  await wait('transactions are committed, one after a check', () => committed.size === 2 && checked.size === 2);
  assert.deepStrictEqual([ ...committed ].sort(), [ 'node-committed', 'node-orphan' ]);

  await producer.send(message('retried', 'node-retried'));
  await wait('a failed message comes again', () => attempts.length >= 2);
  assert.deepStrictEqual(attempts.slice(0, 2), [ 1, 2 ]);

  for (let i = 0; i < 10; i++) await producer.send(message('simple', `node-${i}`));
  const bodies = new Set();
  let isChanged = false;
  await wait('a simple consumer gets all messages, one after a change of its time', async () => {
    for (const view of await simple.receive(32, 15000)) {
      if (view.body.toString() === 'node-5' && !isChanged) {
        isChanged = true;
        await simple.changeInvisibleDuration(view, 1000);
        continue;
      }
      bodies.add(view.body.toString());
      await simple.ack(view);
    }
    return bodies.size === 10;
  });
  assert.strictEqual((await simple.receive(32, 15000)).length, 0);

  await wait('a delayed message comes, not early', () => late.has('node-due'));
  assert.ok(late.get('node-due') >= dueMs - 1000);
  await new Promise(resolve => setTimeout(resolve, Math.max(0, dueMs + 4000 - Date.now())));
  assert.ok(!late.has('node-recalled'));
  await Promise.all([ simple.shutdown(), producer.shutdown() ]); // those of push consumers last for 20 s
  console.log('done');
  process.exit(0);
}

process.on('unhandledRejection', error => {
  console.error(error);
  process.exit(1);
});
main().catch(error => {
  console.error(error);
  process.exit(1);
});
