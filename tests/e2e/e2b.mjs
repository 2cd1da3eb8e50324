// Drives E2B's JavaScript SDKs, unmodified, through what a program uses; prints "done" if all of it holds.
import assert from 'node:assert/strict'
import { Sandbox as Interpreter } from '@e2b/code-interpreter'
import { CommandExitError, FileNotFoundError, Sandbox, SandboxError, TimeoutError } from 'e2b'

const sandbox = await Sandbox.create({ timeoutMs: 120_000, metadata: { made: 'by js' }, envs: { COLOR: 'blue' } })
try {
  assert.equal((await sandbox.commands.run('echo $COLOR; echo err >&2')).stdout, 'blue\n')
  await assert.rejects(sandbox.commands.run('exit 3'), (error) => error instanceof CommandExitError && error.exitCode === 3)
  await assert.rejects(sandbox.commands.run('sleep 60', { timeoutMs: 1000 }), TimeoutError)

  const filter = await sandbox.commands.run('cat', { background: true, stdin: true })
  await sandbox.commands.sendStdin(filter.pid, 'through\n')
  await sandbox.commands.closeStdin(filter.pid)
  assert.equal((await filter.wait()).stdout, 'through\n')

  let seen = ''
  const terminal = await sandbox.pty.create({ cols: 99, rows: 33, onData: (data) => (seen += new TextDecoder().decode(data)) })
  await sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode('stty size; exit\n'))
  await terminal.wait()
  assert.match(seen, /33 99/)

  const events = []
  const watch = await sandbox.files.watchDir('/home/user', (event) => events.push(`${event.type} ${event.name}`))
  await sandbox.files.write('new', 'content')
  while (events.length < 3) await new Promise((resolve) => setTimeout(resolve, 20))
  assert.deepEqual(events, ['create new', 'chmod new', 'write new'])
  await watch.stop()
  assert.equal(await sandbox.files.read('new'), 'content')
  await sandbox.files.write('empty', '')
  assert.equal(await sandbox.files.read('empty'), '')
  await sandbox.files.write([{ path: 'many/a', data: '1' }, { path: 'many/b', data: '2' }])
  assert.deepEqual((await sandbox.files.list('many')).map((entry) => entry.name), ['a', 'b'])
  await assert.rejects(sandbox.files.read('missing'), FileNotFoundError)
  assert.equal(await (await fetch(await sandbox.downloadUrl('new', { useSignatureExpiration: 10_000 }))).text(), 'content')

  assert.equal((await sandbox.getInfo()).metadata.made, 'by js')
  const pages = Sandbox.list({ query: { metadata: { made: 'by js' } } })
  assert.deepEqual((await pages.nextItems()).map((each) => each.sandboxId), [sandbox.sandboxId])
  assert.equal(await sandbox.pause(), true)
  assert.equal(await sandbox.isRunning(), false)
  await sandbox.connect()
  assert.equal(await sandbox.isRunning(), true)
  await assert.rejects(Sandbox.create('nonesuch'), SandboxError)
} finally {
  assert.equal(await sandbox.kill(), true)
}
assert.equal(await sandbox.kill(), false)

const interpreter = await Interpreter.create()
try {
  await interpreter.runCode('x = 20')
  assert.equal((await interpreter.runCode('x + 22')).text, '42')
  assert.equal((await interpreter.runCode('1 / 0')).error.name, 'ZeroDivisionError')
  const context = await interpreter.createCodeContext({ language: 'javascript' })
  assert.equal((await interpreter.runCode('6 * 7', { context })).text, '42')
} finally {
  await interpreter.kill()
}
console.log('done')
process.exit(0)
