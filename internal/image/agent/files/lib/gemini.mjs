// An MCP server over Google's Gemini API with two tools: a second opinion on a plan, and answers from the web.
// GEMINI_API_KEY is needed for calls only; GEMINI_MODEL and GEMINI_BASE_URL have defaults.
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js'
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js'
import { z } from 'zod'

const base = (process.env.GEMINI_BASE_URL || 'https://generativelanguage.googleapis.com').replace(/\/+$/, '')
const model = process.env.GEMINI_MODEL || 'gemini-flash-latest'
const limit = 3 * 60 * 1000 // milliseconds

async function ask (prompt, tools) {
  const key = process.env.GEMINI_API_KEY
  if (!key) throw new Error('GEMINI_API_KEY is not set: set the secret and start a new session')
  const answer = await fetch(`${base}/v1beta/models/${encodeURIComponent(model)}:generateContent`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'x-goog-api-key': key },
    body: JSON.stringify({ contents: [{ role: 'user', parts: [{ text: prompt }] }], ...(tools && { tools }) }),
    signal: AbortSignal.timeout(limit)
  })
  const body = await answer.json().catch(() => ({}))
  if (!answer.ok) throw new Error(`Gemini answers ${answer.status}: ${body.error?.message || answer.statusText}`)
  const candidate = body.candidates?.[0]
  const text = (candidate?.content?.parts || []).filter(p => !p.thought).map(p => p.text || '').join('')
  if (!text) throw new Error(`Gemini gave no answer: ${body.promptFeedback?.blockReason || candidate?.finishReason || 'it is empty'}`)
  const sources = (candidate.groundingMetadata?.groundingChunks || []).map(c => c.web).filter(Boolean)
  return sources.length ? `${text}\n\nSources:\n${sources.map(s => `- ${s.title}: ${s.uri}`).join('\n')}` : text
}

const tool = run => async args => {
  try {
    return { content: [{ type: 'text', text: await run(args) }] }
  } catch (err) {
    return { isError: true, content: [{ type: 'text', text: err.cause ? `${err.message}: ${err.cause.message}` : err.message }] }
  }
}

const server = new McpServer({ name: 'gemini', version: '1.0.0' })

server.registerTool('review_plan', {
  description: 'Have Gemini review a plan before you carry it out: what is missing, wrong or risky, and what would be simpler.',
  inputSchema: { plan: z.string().min(1).describe('the plan'), context: z.string().optional().describe('what the reviewer must know: task, code, constraints') }
}, tool(({ plan, context }) => ask(
  'You review the plan of a software engineer. Name what is missing, wrong or risky, in order of weight, each with what to do instead; say what would ' +
  `be simpler; do not repeat the plan. If it is good, say so in one sentence.\n\n${context ? `Context:\n${context}\n\n` : ''}Plan:\n${plan}`)))

server.registerTool('research', {
  description: 'Have Gemini search the web and answer, with its sources.',
  inputSchema: { question: z.string().min(1).describe('the question, with the versions and names that matter') }
}, tool(({ question }) => ask(question, [{ google_search: {} }])))

await server.connect(new StdioServerTransport())
