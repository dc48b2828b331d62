'use strict';
// The npm client ali-ons against a broker: one flow after the other, a line "ok <flow>" for each that came to its end.
//
//   node flows.js NAMESRV FLOW...

const { Producer, Consumer, Message } = require('ali-ons');

const [nameSrv, ...wanted] = process.argv.slice(2);
const common = { httpclient: {}, nameSrv, accessKeyId: 'key', accessKeySecret: 'secret' };
const PATIENCE_MS = 60000;

async function producer(group) {
  const made = new Producer({ ...common, producerGroup: group });
  made.on('error', error => console.error(error));
  await made.ready();
  return made;
}

function consumer(group, topic, expression, found, answer) {
  const made = new Consumer({ ...common, consumerGroup: group, consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET' });
  made.on('error', error => console.error(error));
  made.subscribe(topic, expression, async message => {
    found.push(message.body.toString());
    return answer && answer(message);
  });
  return made;
}

async function until(found, count) {
  const end = Date.now() + PATIENCE_MS;
  while (found.length < count) {
    if (Date.now() > end) throw new Error(`expected ${count} messages, found ${found}`);
    await new Promise(resolve => setTimeout(resolve, 20));
  }
  return found.slice();
}

function equal(found, want) {
  const [a, b] = [found.slice().sort().join(), want.slice().sort().join()];
  if (a !== b) throw new Error(`expected ${b}, found ${a}`);
}

async function sendAll(group, topic, bodies, tag) {
  const made = await producer(group);
  for (const body of bodies) {
    const result = await made.send(new Message(topic, tag ? tag(body) : 'A', body));
    if (result.sendStatus !== 'SEND_OK' || !result.msgId) throw new Error(JSON.stringify(result));
  }
  await made.close();
}

const flows = {
  // sync sends, a body that the client compresses, and a consumer that sees each once
  async send() {
    const bodies = [...Array(10).keys()].map(number => `node ${number}`).concat('x'.repeat(20000));
    await sendAll('node-send', 'NodeSend', bodies);
    const found = [];
    const reader = consumer('node-send-readers', 'NodeSend', '*', found);
    equal(await until(found, bodies.length), bodies);
    await reader.close();
  },

  async tags() {
    await sendAll('node-tags', 'NodeTags', ['A', 'B', 'C', 'A'], body => body);
    const found = [];
    const reader = consumer('node-tags-readers', 'NodeTags', 'A || C', found);
    equal(await until(found, 3), ['A', 'A', 'C']);
    await reader.close();
  },

  async retry() {
    await sendAll('node-retry', 'NodeRetry', ['again']);
    const found = [];
    const reader = consumer('node-retry-readers', 'NodeRetry', '*', found,
      message => (message.reconsumeTimes < 1 ? Consumer.ACTION_RETRY : undefined));
    equal(await until(found, 2), ['again', 'again']);
    await reader.close();
  },

  async delay() {
    const made = await producer('node-delay');
    const message = new Message('NodeDelay', 'A', 'later');
    message.delayTimeLevel = 2;
    const began = Date.now();
    await made.send(message);
    const found = [];
    const reader = consumer('node-delay-readers', 'NodeDelay', '*', found);
    await until(found, 1);
    if (Date.now() - began < 1900) throw new Error(`the message came after ${Date.now() - began} ms`);
    await reader.close();
    await made.close();
  },
};

(async () => {
  for (const name of wanted) {
    await flows[name]();
    console.log('ok', name);
  }
  process.exit(0);
})().catch(error => {
  console.error(error);
  process.exit(1);
});
