// An editor for tests: the client of the official SDK, driven by lines of JSON on standard input. Its arguments are the
// agent's program. It prints a line for each answer and each message of the agent, which it checks against the schema.
//
//   {"request": METHOD, "params": {…}}  → {"answer": METHOD, "result": {…}} or {"answer": METHOD, "error": {…}}
//   {"notify": METHOD, "params": {…}}
//   {"reply": {…}}                      the result of the oldest open request of the agent
import { spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { Readable, Writable } from 'node:stream'
import { createRequire } from 'node:module'
import * as acp from '@agentclientprotocol/sdk'
import Ajv from 'ajv/dist/2020.js'

const files = createRequire(import.meta.url)
const schema = JSON.parse(readFileSync(files.resolve('@agentclientprotocol/sdk/schema/v1/schema.json')))
const ajv = new Ajv({ strict: false, validateFormats: false })
ajv.addSchema(schema, 'acp')

const print = line => process.stdout.write(JSON.stringify(line) + '\n')

// check prints how a value differs from its type in the schema.
function check (type, value) {
  const valid = ajv.getSchema(`acp#/$defs/${type}`)
  if (!valid(value)) print({ invalid: type, value, errors: valid.errors })
  return value
}

const answers = {
  initialize: 'InitializeResponse', 'session/new': 'NewSessionResponse', 'session/load': 'LoadSessionResponse',
  'session/resume': 'ResumeSessionResponse', 'session/list': 'ListSessionsResponse', 'session/prompt': 'PromptResponse',
  'session/set_mode': 'SetSessionModeResponse', 'session/set_config_option': 'SetSessionConfigOptionResponse'
}

const types = {
  'session/update': 'SessionNotification', 'session/request_permission': 'RequestPermissionRequest',
  'elicitation/create': 'CreateElicitationRequest', '$/cancel_request': 'CancelRequestNotification'
}

// checked passes the messages of the agent on, before the SDK replaces values that it does not know.
const checked = new TransformStream({
  transform (message, controller) {
    if (message.method) check(types[message.method], message.params)
    controller.enqueue(message)
  }
})

const open = [] // functions that answer requests of the agent
const asked = name => ({ params, signal }) => new Promise((resolve, reject) => {
  print({ asked: name, params })
  open.push(resolve)
  signal.addEventListener('abort', () => {
    open.splice(open.indexOf(resolve), 1)
    print({ withdrawn: name })
    reject(acp.RequestError.requestCancelled())
  })
})

const agent = spawn(process.argv[2], process.argv.slice(3), { stdio: ['pipe', 'pipe', 'inherit'] })
agent.on('exit', (code, signal) => print({ exit: code, signal }))
print({ pid: agent.pid })

const stream = acp.ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout))
await acp.client({ name: 'test' })
  .onRequest(acp.methods.client.session.requestPermission, asked('permission'))
  .onRequest(acp.methods.client.elicitation.create, asked('elicitation'))
  .onNotification(acp.methods.client.session.update, ({ params }) => print({ update: params.update }))
  .connectWith({ writable: stream.writable, readable: stream.readable.pipeThrough(checked) }, async ctx => {
    for await (const text of createInterface({ input: process.stdin })) {
      const line = JSON.parse(text)
      if (line.reply) open.shift()(line.reply)
      if (line.notify) await ctx.notify(line.notify, line.params)
      if (!line.request) continue
      ctx.request(line.request, line.params).then(
        result => print({ answer: line.request, result: check(answers[line.request], result) }),
        error => print({ answer: line.request, error: { code: error.code, message: error.message } }))
    }
    agent.stdin.end()
  })
