// A member of a federation, as in docs/protocol.md. README.md has its command line.
import crypto from 'node:crypto';
import fs from 'node:fs';
import { setImmediate, setTimeout } from 'node:timers/promises';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';
import grpc from '@grpc/grpc-js';
import { loadSync } from '@grpc/proto-loader';
import { createMasking } from './masking.mjs';

const PROTO = fileURLToPath(new URL('../../../src/fedhql/remote/wire.proto', import.meta.url));
const READING = { keepCase: true, longs: String, enums: String, defaults: true, oneofs: true };
const { Federation } = grpc.loadPackageDefinition(loadSync(PROTO, READING)).fedhql.v1;
const [FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS, GOODBYE_SECONDS] = [0.2, 30, 2];
const [SAVE_MILLISECONDS, MOST_STEPS_AT_ONCE] = [1000, 50_000];
const [ARRAYS, MAX_FLOAT] = [{ int64: BigInt64Array, float32: Float32Array }, Number.MAX_VALUE];
const ABOUT_US = { protocol: 1, minor: 1, software: 'fedhql-node-example/1',
  capabilities: ['notices'], most_message_bytes: 4 * 1024 * 1024 }; // gRPC's default
const CHANNEL = { 'grpc.keepalive_time_ms': 20_000, 'grpc.keepalive_timeout_ms': 20_000,
  'grpc.enable_retries': 0, 'grpc.use_local_subchannel_pool': 1 }; // we retry, with a new Hello
const [text, flag] = [{ type: 'string' }, { type: 'boolean' }];
const { positionals: [address], values: { as: name, home, certs, seed, ...others } } = parseArgs({
  options: { as: text, home: text, certs: text, seed: text, agent: text, 'secure-aggregation': flag },
  allowPositionals: true });
const { createAgent } = await import(others.agent ? pathToFileURL(others.agent) : './agent.mjs');
const log = (line) => console.error(`${name}: ${line}`);
if (!address || !name || !home) throw new Error('HOST:PORT, --as and --home are needed');
const credential = (file) => certs && fs.readFileSync(`${certs}/${file}`);
const [authority, certificate, key] = ['ca.crt', `${name}.crt`, `${name}.key`].map(credential);

// On disk: the agent with its improvements as one file, and what was charged in another.
const [STATE, LEDGER] = [`${home}/state.json`, `${home}/ledger.json`];
const read = (path) => (fs.existsSync(path) ? JSON.parse(fs.readFileSync(path, 'utf8')) : null);
fs.mkdirSync(home, { recursive: true });
const ledger = read(LEDGER) ?? { federation: '', phase: 0, phase_env_steps: 0 };
let state = read(STATE); // null before the first Welcome
// From `client` on, they are of this connection. It has completed if an order was.
let [agent, savedAt, isLeaving, client, call, masking, welcome, hasCompleted] = [];

function write(path, content) { // after a crash, the old content or the new one is there
  fs.writeFileSync(`${path}.tmp`, JSON.stringify(content), { flush: true });
  fs.renameSync(`${path}.tmp`, path);
}

function save() {
  if (agent) write(STATE, { ...state, agent: agent.save() });
  savedAt = Date.now();
}

/** Return the numbers of a tensor; throw an Error if they are too many or not in the range. */
function unpack({ dtype, shape, data }, expected, least, most, row = [], count = shape[0]) {
  const numbers = Array.from(new ARRAYS[expected](Uint8Array.from(data).buffer), Number);
  const isFormed = `${[dtype, shape]}` === `${[expected, count, ...row]}`
    && numbers.length === count * (row[0] ?? 1);
  const isBatch = count > 0 && count <= welcome.most_states;
  if (isFormed && isBatch && numbers.every((n) => n >= least && n <= most)) return numbers;
  throw new Error(`a tensor of ${dtype} (${shape}) has another form or range than expected`);
}

function begin({ federation, task, improvements, secure_value_bound: bound }) {
  const isOurs = ['', federation].includes(ledger.federation);
  if (!isOurs) throw new Error(`this member belongs to the federation ${ledger.federation}`);
  if (masking && !(bound > 0 && bound < Infinity)) throw new Error('no secure aggregation here');
  if (!agent) { // otherwise we are back
    agent = createAgent(task, Number(seed ?? 0));
    if (state) agent.restore(state.agent);
    state ??= { applied: Number(improvements), skipped: 0, last: '0' };
    save();
    write(LEDGER, Object.assign(ledger, { federation }));
  }
  log(`joined at improvement ${state.applied}`);
}

/** Apply each improvement of an order once. */
function apply({ skip_through, improvements }) {
  const missed = skip_through - state.applied; // the server no longer keeps them
  const { applied, skipped } = state;
  if (missed > 0) state = { applied: applied + missed, skipped: skipped + missed, last: '0' };
  for (const { number, states, actions, targets } of improvements) {
    if (number <= state.applied) continue; // a repeat
    if (number > state.applied + 1) throw new Error(`improvement ${number} after ${state.applied}`);
    const chosen = unpack(actions, 'int64', 0, welcome.task.actions - 1, [], states.shape[0]);
    const aims = unpack(targets, 'float32', -MAX_FLOAT, MAX_FLOAT, [], chosen.length);
    agent.improve(unpack(states, ...agent.states), chosen, aims);
    const hash = crypto.createHash('sha256').update(BigUint64Array.of(BigInt(number)));
    for (const { data } of [states, actions, targets]) hash.update(data);
    state.last = `${hash.digest().readBigUInt64LE() || 1n}`;
    state.applied += 1;
  }
}

function answer(order) {
  const values = agent.qValues(unpack(order.query.states, ...agent.states));
  if (masking) return masking.answer(order, values, welcome);
  const data = Buffer.from(values.buffer);
  return { dtype: 'float32', shape: [order.query.states.shape[0], welcome.task.actions], data };
}

/** Learn one chunk of a phase and report it. Return the order, or null if the phase is done. */
function learnChunk(order) {
  const { phase, env_steps: size, chunk_env_steps: chunk } = order.learn;
  if (ledger.phase !== phase) Object.assign(ledger, { phase, phase_env_steps: 0 });
  const steps = Math.min(size - ledger.phase_env_steps, Math.max(1, chunk), MOST_STEPS_AT_ONCE);
  agent.selfLearn(steps);
  ledger.phase_env_steps += steps;
  write(LEDGER, ledger); // before the report, so that no step is taken twice
  const isDone = ledger.phase_env_steps >= size;
  report(order, { phase, phase_env_steps: ledger.phase_env_steps }, isDone);
  return isDone ? null : order;
}

function report({ id }, content, isComplete) {
  const counts = { applied_improvements: state.applied, skipped_improvements: state.skipped };
  call.write({ report: { id, ...counts, ...content } });
  hasCompleted ||= isComplete;
  if (Date.now() > savedAt + SAVE_MILLISECONDS) save();
}

function connect() {
  const channel = certs ? grpc.credentials.createSsl(authority, key, certificate)
    : grpc.credentials.createInsecure();
  client = new Federation(address, channel, CHANNEL);
  call = client.Join();
  masking = others['secure-aggregation'] && createMasking(name, authority, certificate, key);
  [welcome, hasCompleted] = [null, false];
  const hello = { ...ABOUT_US, name, masking_key: masking?.key };
  if (state) Object.assign(hello, { federation: ledger.federation, last_improvement: state.last });
  call.write({ hello: { ...hello, applied_improvements: state?.applied } });
}

/** Do what the server says, and learn between its messages. Return its Goodbye. */
async function converse() {
  let [inbox, wake, learning] = [[], () => {}, null];
  const receive = (message) => wake(inbox.push(message));
  call.on('data', receive);
  call.on('error', () => {}); // the status, which follows, has its text
  call.on('status', ({ details }) => receive({ goodbye: { detail: details || 'disconnected' } }));
  for (;;) {
    if (learning) await setImmediate(); // let a message come in
    else if (inbox.length === 0) await new Promise((resolve) => { wake = resolve; });
    if (isLeaving) await new Promise(() => {}); // until the process ends
    const { welcome: welcomed, order, notice, goodbye } = inbox.shift() ?? {};
    if (goodbye) return goodbye;
    if (notice) log(`answer refused: ${notice.detail}; ${notice.left} more before quarantine`);
    if (welcome ? welcomed : order) throw new Error('a second welcome, or an order before it');
    if (welcomed) begin(welcome = welcomed);
    if (order) apply(order);
    if (order?.work === 'learn') learning = order;
    else if (order) report(order, order.work === 'query' ? { values: answer(order) } : {}, true);
    else if (learning) learning = learnChunk(learning);
  }
}

/** Save everything, say Goodbye, let the server close the stream, and end the process. */
async function leave(reason, detail, exitCode) {
  isLeaving = true;
  save();
  call.end({ goodbye: { reason, detail: detail.slice(0, 500) } });
  const closed = new Promise((resolve) => { call.on('status', resolve); });
  await Promise.race([closed, setTimeout(GOODBYE_SECONDS * 1000)]);
  process.exit(exitCode);
}

process.once('SIGTERM', () => leave('STOPPED', 'its owner stops it', 143));
for (let wait = FIRST_WAIT_SECONDS; ; wait = Math.min(2 * wait, LONGEST_WAIT_SECONDS)) {
  connect();
  const { reason, detail, retry_after_seconds = 0 } = await converse().catch((error) => {
    if (error.syscall) throw error; // a fault of this machine
    log(`${address} sent what this member refuses: ${error.message}`);
    return leave('REFUSED', error.message, 2);
  });
  // A connection may have broken before the last phase was reported.
  if (reason === 'FINISHED' && ledger.phase) report({}, ledger, true);
  if (reason === 'FINISHED') await leave('FINISHED', 'all is saved', 0);
  if (reason === 'REFUSED') save(); // after REPLACED, the home is another process's
  if (reason === 'REFUSED' || reason === 'REPLACED') {
    log(`${address} says ${reason}: ${detail}`);
    process.exit(2);
  }
  call.cancel();
  client.close();
  if (hasCompleted) wait = FIRST_WAIT_SECONDS;
  const pause = retry_after_seconds + wait * (0.5 + Math.random() / 2);
  log(`no connection to ${address} (${detail}); retrying in ${pause.toFixed(1)} s`);
  await setTimeout(1000 * pause);
}
