// A thread that reads the keeper's requests while the main thread runs code, so that it can interrupt code that never
// returns. It ends the process when the keeper closes its input.
'use strict';
const inspector = require('inspector');
const net = require('net');
const { parentPort } = require('worker_threads');

const session = new inspector.Session();
session.connectToMainThread();

let rest = Buffer.alloc(0);
const input = new net.Socket({ fd: 3, readable: true, writable: false });
input.on('data', (piece) => {
  rest = Buffer.concat([rest, piece]);
  for (let end = rest.indexOf(10); end >= 0; end = rest.indexOf(10)) {
    const request = JSON.parse(rest.subarray(0, end).toString());
    rest = rest.subarray(end + 1);
    parentPort.postMessage(request);
    if (request.op === 'interrupt') session.post('Runtime.terminateExecution');
  }
});
const end = () => process.kill(process.pid, 'SIGKILL');
input.on('end', end);
input.on('error', end);
