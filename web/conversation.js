// The conversation of a session, made from its events: prompts, texts of the agent, tool calls, questions, remarks.

import { clipped } from './diff.js';
import { add, button, h, money, ms, problemBox } from './dom.js';
import { Message, note, question, Tool, userMessage } from './turn.js';

// permanent has the next steps after failures after which the same prompt would fail again.
const permanent = {
  cost_limit: 'Create a session with a higher cost limit.', no_credit: 'Buy credit from the provider of the model, or use another key.',
  key_refused: 'Use a valid key that may use the model.', unknown_price: 'Tell the server what the model costs (docs/sessions.md), or create a session without a cost limit.', unknown_model: 'Create a session with an existing model.', prompt_too_long: 'Send a shorter prompt, or create a session.',
};

export const ownPrompt = 'Harvest asks the agent for the text of a pull request.';

export class Conversation {
  // put shows a part. retry sends a prompt again and reports whether it was sent; the conversation of an earlier session
  // has no retry, and its tool calls are folded.
  constructor(session, put, retry) {
    Object.assign(this, { session, put, retry });
    this.begin();
    this.asked = new Map(); // open questions
    this.outputs = new Map(); // cards of commands in the background
    this.unsent = []; // of remarks about cancelled prompts: { reason, why }, its element
  }

  // begin begins a turn: ids of the agent's messages and tool calls are unique within one.
  begin() {
    this.messages = new Map();
    this.tools = new Map();
  }

  // show shows an event, and returns the part that it completes.
  show(name, e) { return parts[name]?.(this, e); }

  note(text) { return this.put(note(text)); }

  message(e, fresh) {
    let m = this.messages.get(e.id);
    if (!m || fresh) {
      m = this.put(new Message(e.thinking));
      this.messages.set(e.id, m);
    }
    return m;
  }

  // settle ends the turn: the parts that are still open get no more events. interrupted reports that it was stopped.
  settle(interrupted) {
    for (const m of this.messages.values()) m.finish();
    for (const f of this.asked.values()) f.settle();
    for (const t of this.tools.values()) if (t.running) this.finish(t, { failed: true, interrupted, text: t.text });
    this.asked.clear();
  }

  // closeOutputs ends the card of a command in the background; without a name, of all that run.
  closeOutputs(e, name) {
    for (const [id, t] of this.outputs) if (t.running && (name ?? id) === id) this.finish(t, e);
  }

  finish(tool, e) {
    tool.finish(e);
    if (!this.retry) tool.unfold(false);
  }
}

const parts = {
  'message.sent': (c, e) => {
    c.begin();
    if (e.message.purpose) c.note(ownPrompt);
    else c.put(userMessage(e.message.prompt));
  },
  'message.cancelled': (c, e) => {
    const reason = e.reason || e.message.reply;
    if (e.message.purpose || !reason) return;
    const why = h('span', null, ` (${reason})`);
    c.unsent.push({ reason, why });
    add(c.note('Not sent: '), [...clipped(e.message.prompt), why]);
  },
  // The notice of the end has its reason.
  'session.ended': (c, e) => {
    for (const { reason, why } of c.unsent) if (reason === e.reason) why.remove();
    c.closeOutputs({ failed: true, interrupted: true });
  },
  'message.started': (c, e) => c.message(e, true),
  'message.delta': (c, e) => c.message(e).add(e.text ?? ''),
  'message.completed': (c, e) => {
    const m = c.message(e);
    m.finish(e.text);
    c.messages.delete(e.id);
    return m;
  },
  'tool.started': (c, e) => {
    const t = c.put(new Tool(e));
    c.tools.set(e.id, t);
    return t;
  },
  'tool.output': (c, e) => {
    c.tools.get(e.id)?.add(e.text ?? '');
  },
  'tool.completed': (c, e) => {
    const t = c.tools.get(e.id) ?? parts['tool.started'](c, e);
    c.finish(t, e);
    return t;
  },
  'file.changed': (c, e) => {
    const text = `${e.created ? 'created' : 'changed'} ${e.path}`;
    if (c.tools.has(e.id)) c.tools.get(e.id).note(text);
    else c.note(text);
  },
  'agent.asked': (c, e) => {
    c.asked.set(e.id, c.put(question(c.session.id, e)));
  },
  'agent.withdrawn': (c, e) => {
    const focused = c.asked.get(e.id)?.settle(e.answer);
    c.asked.delete(e.id);
    return focused;
  },
  'agent.retrying': (c, e) => c.note(`The model's API failed; the agent tries again: ${e.text ?? ''}`),
  'mcp.restarting': (c, e) => c.note(`The MCP server ${e.id} starts again`),
  'mcp.failed': (c, e) => c.note(`The MCP server ${e.id} failed: ${e.reason ?? ''}`),
  'agent.crashed': (c, e) => c.note(`${e.reason ?? 'The agent\'s process died'}; it is started again.`),
  'agent.output_lost': (c, e) => c.note(e.reason ?? 'A part of the agent\'s output is missing'),
  'agent.continued': (c, e) => {
    c.note(`The agent continues by itself: ${e.reason || 'no reason given'}`);
    c.begin();
  },
  'egress.denied': (c, e) => c.note(denied(e.denial ?? {})),
  'agent.overridden': (c, e) => c.note(e.text ?? ''),
  'agent.notice': (c, e) => c.note(e.text ?? ''),
  'agent.silent': (c, e) => c.note(e.text ?? ''),
  // Above the prompt is the plan of the session itself.
  'agent.plan': (c, e) => {
    if (!c.retry) c.note(`Plan: ${(e.plan ?? []).map((s) => `${s.status === 'completed' ? '✓ ' : ''}${s.text}`).join('; ')}`);
  },
  'session.changed': (c, e) => c.note(changed(e.changed ?? {})),
  'session.notice': (c, e) => {
    if (e.reason === 'command') c.closeOutputs({ failed: true });
    c.note(e.text ?? '');
  },
  // A command of the dev container that runs in the background is a card, and its stage is its end.
  'session.output': (c, e) => {
    if (!c.outputs.has(e.id)) c.outputs.set(e.id, c.put(new Tool({ tool: e.id })));
    c.outputs.get(e.id).add(e.text ?? '');
  },
  'session.stage': (c, e) => c.closeOutputs({ took_ms: e.stage?.ms }, e.stage?.name),
  'session.recalled': (c, e) => c.note(`Of the earlier conversation, ${e.text ?? ''}`),
  'repo.synced': (c, e) => c.note(e.synced.error ? `The repository could not be brought up to date: ${e.synced.error}`
    : `The image was ${e.synced.commits_behind < 0 ? 'an unknown number of commits' : e.synced.commits_behind === 1 ? '1 commit' : `${e.synced.commits_behind} commits`} behind; now at ${e.synced.commit?.slice(0, 10)}`),
  'git.committed': (c, e) => c.note(`Committed: ${e.git?.subject ?? e.git?.commit ?? ''}`),
  'git.pushed': (c, e) => c.note(`Pushed ${e.git?.branch ?? ''}`),
  'git.stashed': (c, e) => c.note(`The agent stashed changes (${e.git?.commits ?? 0}); harvest checkout fetches them as branches.`),
  'git.left': (c, e) => c.note(`Not handed back: ${e.git?.reason ?? ''}`),
  'git.panic': (c, e) => c.put(problemBox({ detail: `git could not continue: ${e.git?.reason ?? ''}`, remedy: e.git?.need })),
  error: (c, e) => c.put(problemBox({ detail: e.text || e.detail || e.reason, remedy: e.remedy })),
  done,
};

function changed(c) {
  const l = c.limits ?? {};
  const limits = [l.turns && `${l.turns} turns`, l.seconds && `${l.seconds} s a turn`, l.usd && money(l.usd)].filter(Boolean).join(', ');
  return `From the next prompt: model ${c.model || 'default'}, effort ${c.effort || 'default'}, approval ${c.approval || 'none'}; limits: ${limits || 'none'}`;
}

function denied(d) {
  const port = d.port && d.protocol !== 'dns' ? ` port ${d.port}` : '';
  return `The network policy refused ${d.domain || d.address || 'a connection'}${port}: ${d.reason ?? ''}`;
}

function done(c, e) {
  c.settle(e.interrupted);
  const m = e.message;
  const took = m?.ended_at && m.started_at ? ms(new Date(m.ended_at) - new Date(m.started_at)) : '';
  if (e.interrupted) c.note(`Stopped${e.reason ? `: ${e.reason}` : ''}${took && ` · ${took}`}`);
  else if (e.failed && m?.purpose) c.note(`The agent wrote no text: ${e.text || e.reason || 'its turn failed'}`);
  else if (e.failed) failed(c, e);
  else c.note([took, e.usage?.cost_usd ? money(e.usage.cost_usd) : '', e.usage?.unpriced ? 'cost unknown' : ''].filter(Boolean).join(' · ')).classList.add('turn');
}

function failed(c, e) {
  const detail = e.text || e.reason || 'The turn failed.';
  if (!c.retry) {
    c.put(problemBox({ detail }));
    return;
  }
  const again = button('Send it again', async () => {
    again.disabled = true;
    if (!await c.retry(e.message.prompt)) again.disabled = false;
  });
  c.put(problemBox({ detail, remedy: permanent[e.cause] ?? 'The session continues: send the prompt again, or another one.' }, ...(e.message && !permanent[e.cause] ? [again] : [])));
}
