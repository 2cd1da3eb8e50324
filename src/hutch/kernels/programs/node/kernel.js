// The JavaScript and TypeScript kernel: it evaluates code as a browser's console does (top-level await, declarations
// that may be repeated, the value of the last expression) through Node's own inspector.
'use strict';
const fs = require('fs');
const path = require('path');
const inspector = require('inspector');
const util = require('util');
const { pathToFileURL } = require('url');
const { createRequire } = require('module');
const { Worker } = require('worker_threads');

const MAX_DISPLAYS = 256;
const MAX_DISPLAY_BYTES = 8 << 20;
const OUTPUT = 4;
const state = { run: '', count: 0, displays: 0, dropped: 0, interrupt: null };

function send(message) {
  const data = Buffer.from(JSON.stringify(message) + '\n');
  for (let at = 0; at < data.length;) {
    try {
      at += fs.writeSync(OUTPUT, data, at);
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
    }
  }
}

function capture(stream, name) {
  stream.write = (chunk, encoding, callback) => {
    const text = typeof chunk === 'string' ? chunk : Buffer.from(chunk).toString('utf8');
    if (state.run && text) send({ type: 'stream', run: state.run, name, text });
    const done = typeof encoding === 'function' ? encoding : callback;
    if (done) process.nextTick(done);
    return true;
  };
}

function formsOf(value) {
  const forms = { 'text/plain': typeof value === 'string' ? value : util.inspect(value, { depth: 4 }) };
  if (Buffer.isBuffer(value) || value instanceof Uint8Array) {
    const head = Buffer.from(value.subarray(0, 4)).toString('latin1');
    const mime = head.startsWith('\x89PNG') ? 'image/png' : head.startsWith('\xff\xd8') ? 'image/jpeg' :
      head.startsWith('%PDF') ? 'application/pdf' : '';
    if (mime) forms[mime] = Buffer.from(value).toString('base64');
  } else if (value !== null && typeof value === 'object') {
    for (const [name, mime] of [['toHtml', 'text/html'], ['toSvg', 'image/svg+xml'], ['toMarkdown', 'text/markdown']]) {
      if (typeof value[name] === 'function') forms[mime] = String(value[name]());
    }
    try {
      const json = JSON.stringify(value);
      if (json !== undefined && !(value instanceof Error) && Object.keys(value).length) forms['application/json'] = json;
    } catch { /* It refers to itself or holds a BigInt, so it has no form as JSON. */ }
  }
  return forms;
}

function show(forms, main) {
  const size = Object.values(forms).reduce((sum, form) => sum + form.length, 0);
  if (state.displays >= MAX_DISPLAYS || size > MAX_DISPLAY_BYTES) {
    state.dropped += 1;
    return;
  }
  state.displays += 1;
  send({ type: 'display', run: state.run, data: forms, main });
}

globalThis.display = (value, mime) => {
  if (mime === undefined) return show(formsOf(value), false);
  const form = typeof value === 'string' ? value : Buffer.isBuffer(value) || value instanceof Uint8Array ?
    Buffer.from(value).toString('base64') : JSON.stringify(value);
  return show({ [mime]: form }, false);
};
globalThis.require = createRequire(path.join(process.cwd(), 'kernel.js'));
globalThis.__import = (name) => load(/^\.{0,2}\//.test(name) ? pathToFileURL(path.resolve(name)).href : name);
globalThis.module = { exports: {} };
globalThis.exports = globalThis.module.exports;

function stripTypes(code) {
  const own = require('module').stripTypeScriptTypes;
  if (own) return own(code, { mode: 'transform' });
  const places = [process.cwd(), '/usr/lib', '/usr/local/lib', '/usr/share/nodejs', ...(process.env.NODE_PATH || '').split(':')];
  for (const place of places) {
    for (const name of [path.join(place, 'node_modules', 'typescript'), path.join(place, 'typescript')]) {
      if (!place || !fs.existsSync(name)) continue;
      const typescript = require(name);
      const { outputText, diagnostics } = typescript.transpileModule(code, {
        reportDiagnostics: true,
        compilerOptions: { target: 'ES2022', module: 'ESNext', removeComments: false, verbatimModuleSyntax: false },
      });
      const wrong = (diagnostics || []).find((each) => each.category === 1);
      if (wrong) throw new SyntaxError(typescript.flattenDiagnosticMessageText(wrong.messageText, '\n'));
      return outputText.replace(/^export \{\};\s*$/m, '');
    }
  }
  const error = new Error('this Node cannot read TypeScript: use Node 22.13 or newer, or run npm install typescript@5');
  error.name = 'NotInstalled';
  throw error;
}

// A static import is no part of a script, and a dynamic one needs a module to start from, which the console is not.
function importsToAwait(code) {
  return code.replace(/^[ \t]*import\s+([^'"();]+?)\s+from\s+(['"][^'"]+['"])\s*;?/gm, (_, names, source) => {
    const parts = [];
    const braces = names.match(/\{[^}]*\}/);
    const star = names.match(/\*\s+as\s+(\w+)/);
    const plain = names.replace(/\{[^}]*\}/, '').replace(/\*\s+as\s+\w+/, '').replace(/,/g, ' ').trim();
    if (star) parts.push(`var ${star[1]} = await __import(${source});`);
    if (plain) parts.push(`var ${plain} = (await __import(${source})).default;`);
    if (braces) parts.push(`var ${braces[0].replace(/\s+as\s+/g, ': ')} = await __import(${source});`);
    return parts.join(' ');
  }).replace(/^[ \t]*import\s+(['"][^'"]+['"])\s*;?/gm, 'await __import($1);').replace(/\bimport\s*\(/g, '__import(');
}

const session = new inspector.Session();
session.connect();
const post = (method, params) => new Promise((resolve, reject) => {
  session.post(method, params, (error, answer) => (error ? reject(new Error(error.message)) : resolve(answer)));
});

// The value of an answer lives in this same process, so it is fetched instead of being described.
const fetched = new Map();
globalThis[Symbol.for('hutch.kernel')] = (key, value) => fetched.set(key, value);
async function valueOf(object) {
  if (!('objectId' in object) && !('unserializableValue' in object)) return object.value;
  const key = `${state.run}:${fetched.size}`;
  const argument = 'objectId' in object ? { objectId: object.objectId } : { unserializableValue: object.unserializableValue };
  const { result } = await post('Runtime.evaluate', { expression: "globalThis[Symbol.for('hutch.kernel')]" });
  await post('Runtime.callFunctionOn', {
    functionDeclaration: 'function (key, value) { this(key, value); }', objectId: result.objectId,
    arguments: [{ value: key }, argument],
  });
  const value = fetched.get(key);
  fetched.delete(key);
  return value;
}

function failure(error) {
  if (error instanceof Error || (error && typeof error === 'object' && 'stack' in error)) {
    const stack = String(error.stack || error).split('\n').filter((line) => !/node:|hutch-kernel\.js|at new Promise \(<anonymous>\)/.test(line));
    return { name: String(error.name || 'Error'), value: String(error.message), traceback: stack.join('\n') };
  }
  return { name: 'Error', value: util.inspect(error), traceback: `Uncaught ${util.inspect(error)}` };
}

async function evaluate(code) {
  const answer = await post('Runtime.evaluate', {
    expression: importsToAwait(code), replMode: true, awaitPromise: true, generatePreview: false, userGesture: true,
    allowUnsafeEvalBlockedByCSP: true, silent: true,
  });
  if (answer.exceptionDetails) {
    const thrown = answer.exceptionDetails.exception;
    if (!thrown) return interrupted();
    return failure(await valueOf(thrown));
  }
  if (answer.result.type !== 'undefined') show(formsOf(await valueOf(answer.result)), true);
  return null;
}

const isTermination = (error) => /Execution was terminated/.test(String(error && error.message));
const interrupted = () => ({ name: 'KeyboardInterrupt', value: 'interrupted', traceback: 'interrupted' });

async function run(request) {
  const before = Object.fromEntries(Object.keys(request.env || {}).map((name) => [name, process.env[name]]));
  Object.assign(process.env, request.env || {});
  state.run = request.run;
  state.count += 1;
  state.displays = state.dropped = 0;
  let error;
  try {
    const code = request.language === 'typescript' ? stripTypes(request.code) : request.code;
    const stopped = new Promise((resolve) => { state.interrupt = () => resolve(interrupted()); });
    error = await Promise.race([evaluate(code), stopped]);
  } catch (problem) {
    error = isTermination(problem) ? interrupted() : failure(problem);
  }
  state.interrupt = null;
  for (const [name, value] of Object.entries(before)) {
    if (value === undefined) delete process.env[name];
    else process.env[name] = value;
  }
  send({ type: 'done', run: request.run, count: state.count, error, dropped: state.dropped });
  state.run = '';
}

// Node's own way out waits for inspectors to leave, and one of them is this kernel.
process.exit = (code) => process.reallyExit(code ?? process.exitCode ?? 0);
capture(process.stdout, 'stdout');
capture(process.stderr, 'stderr');
process.on('SIGINT', () => {}); // It is for the children of the code; the code itself is stopped by the other thread.
process.on('uncaughtException', (error) => { process.stderr.write(`Uncaught ${util.inspect(error)}\n`); });
process.on('unhandledRejection', (error) => { process.stderr.write(`Uncaught (in promise) ${util.inspect(error)}\n`); });

const requests = new Worker(sources.interrupter, { eval: true });
let queue = Promise.resolve();
requests.on('message', (request) => {
  if (request.op === 'interrupt') {
    if (state.interrupt) state.interrupt();
    return;
  }
  queue = queue.then(() => run(request));
});
send({ type: 'ready', version: process.versions.node, notes: [] });
