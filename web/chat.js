// One session: its start, the conversation, the queue, the state. All of it is made of the session's events, so that every browser that
// follows them shows the same, whenever it came.

import { call, follow } from './api.js';
import { patch } from './diff.js';
import { button, h, money, ms, problemBox } from './dom.js';
import { Message, question, Tool, userMessage } from './turn.js';

const words = {
  creating: 'Making the sandbox', ready: 'Ready', thinking: 'Thinking', running_tool: 'Running a tool', waiting_for_input: 'Waiting for your answer',
  hung: 'Nothing was heard of the agent for long: it may hang', done: 'Done', failed: 'Failed', ended: 'Ended',
};
const working = ['thinking', 'running_tool', 'waiting_for_input', 'hung'];
const stages = { sandbox: 'Sandbox', directories: 'Directories', credentials: 'Credentials', repository: 'Repository', agent: 'Agent', mcp: 'MCP servers' };

// openChat fills main with a session and returns what ends it. again begins a session with the same settings.
export function openChat(main, session, { again, changed, signIn }) {
  const items = h('div', { class: 'items' });
  const log = h('div', { class: 'log', role: 'log', 'aria-label': 'Conversation', 'aria-live': 'off', tabindex: '0' }, items);
  const status = h('span', { class: 'status', role: 'status', 'data-status': session.status });
  const link = h('span', { class: 'link', role: 'status' });
  const costs = h('span', { class: 'costs', 'aria-label': 'Usage' });
  const queue = h('ul', { class: 'queue', 'aria-label': 'Prompts that wait' });
  const error = h('div');
  const input = h('textarea', { rows: '1', 'aria-label': 'Prompt', placeholder: 'Say what to do', autocomplete: 'off', maxlength: '900000' });
  const send = h('button', { type: 'submit', class: 'primary' }, 'Send');
  const stop = button('Stop', () => act(() => call('POST', `v1/sessions/${session.id}/stop`)), { class: 'danger', hidden: true });
  const composer = h('form', { class: 'composer', 'aria-label': 'Prompt' }, queue, error, h('div', { class: 'row' }, input, send, stop));
  const latest = button('Latest ↓', () => scroll(true), { class: 'latest', hidden: true });
  const changes = button('Changes', showChanges);
  const end = button('End', confirmEnd, { class: 'danger' });
  const title = h('h1', null, session.title || 'New session');
  const top = h('header', { class: 'top' }, h('div', { class: 'what' }, title, h('p', { class: 'meta' }, session.agent === 'scripted' ? 'Scripted agent: no model is at work' : session.agent,
    session.repo && ` · ${session.repo}`, session.branch && ` · ${session.branch}`, ` · ${session.id}`)), h('div', { class: 'row' }, changes, end));
  main.replaceChildren(top, log, h('div', { class: 'foot' }, latest, h('div', { class: 'bar' }, status, link, costs), composer));

  let state = session.status;
  let since = performance.now();
  let usage = { ...session.usage, turns: session.turns };
  let live = false; // the events that come now happen now
  let messages = new Map();
  let tools = new Map();
  const asked = new Map();
  const waiting = new Map();
  let over = false;
  let started = null;

  // The conversation stays at its end, unless somebody reads further up.
  let pinned = true;
  let above = 0;
  log.addEventListener('scroll', () => {
    if (log.scrollHeight - log.scrollTop - log.clientHeight < 40) pinned = true;
    else if (log.scrollTop < above) pinned = false;
    above = log.scrollTop;
    latest.hidden = pinned;
  });
  const sizes = new ResizeObserver(() => scroll()); // also of what is laid out only when it comes into view
  sizes.observe(items);
  sizes.observe(log);
  function scroll(force) {
    if (force) pinned = true;
    if (pinned) log.scrollTop = log.scrollHeight;
    else latest.hidden = false;
  }
  const put = (el) => {
    items.append(el);
    scroll();
    return el;
  };

  async function act(what) {
    error.replaceChildren();
    try {
      return await what();
    } catch (p) {
      if (p.status === 401) signIn(p);
      else error.replaceChildren(problemBox(p));
      return undefined;
    }
  }

  function show(to, reason) {
    if (to !== state) since = performance.now();
    state = to;
    status.dataset.status = to;
    stop.hidden = !working.includes(to);
    send.textContent = working.includes(to) || to === 'creating' ? 'Queue' : 'Send';
    tick(reason);
    changed(session.id, to);
  }
  function tick(reason) {
    const time = performance.now() - since;
    const text = (words[state] ?? state) + (live && (working.includes(state) || state === 'creating') && time > 2000 ? ` · ${Math.floor(time / 1000)} s` : '');
    if (status.textContent !== text) status.textContent = text;
    if (typeof reason === 'string') status.title = reason;
    if (started?.next) started.next.lastChild.textContent = ms(performance.now() - started.at);
  }
  function showCosts() {
    const inTokens = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens;
    costs.textContent = `${usage.turns} ${usage.turns === 1 ? 'turn' : 'turns'} · ${inTokens + usage.output_tokens} tokens · ${money(usage.cost_usd)}`;
  }

  // start shows what becomes ready, with the time that each step took.
  function start() {
    const list = h('ol', { class: 'stages' });
    const head = h('summary', null, h('span', { class: 'spinner', 'aria-hidden': 'true' }), h('span', null, 'Making the sandbox'));
    const el = put(h('details', { class: 'start', open: true, 'aria-label': 'Start of the sandbox', 'aria-busy': 'true' }, head, list));
    started = { el, list, head, sum: 0, at: performance.now(), next: null };
    next('Working');
  }
  function next(label) {
    started.next = h('li', { class: 'now' }, h('span', null, label), h('span', { class: 'time' }, ''));
    started.list.append(started.next);
  }
  function stage(s) {
    if (!started) start();
    started.next?.remove();
    const name = s.name.split(' ');
    started.list.append(h('li', null, h('span', null, [stages[name[0]] ?? name[0], ...name.slice(1)].join(' ')), h('span', { class: 'time' }, ms(s.ms))));
    started.sum += s.ms;
    started.at = performance.now();
    if (state === 'creating') next('Working');
    scroll();
  }
  function ready(ok, reason) {
    if (!started || started.finished) return;
    started.finished = true;
    started.next?.remove();
    started.next = null;
    started.el.removeAttribute('aria-busy');
    started.head.replaceChildren(h('span', null, ok ? `Sandbox ready in ${ms(started.sum)}` : 'The sandbox could not be made'));
    if (ok) started.el.open = false;
    else started.el.append(problemBox({ detail: reason, remedy: 'Change the settings and try again; "harvest doctor" says what works on this machine.' }));
  }

  function showQueue() {
    queue.replaceChildren(...[...waiting.values()].map((m) => h('li', null, h('span', { class: 'text' }, m.prompt), button('Cancel', () => act(() =>
      call('DELETE', `v1/sessions/${session.id}/messages/${m.id}`)), { class: 'small', 'aria-label': `Cancel: ${m.prompt.slice(0, 80)}` }))));
  }

  const handlers = {
    'session.created': () => {},
    'session.stage': (e) => stage(e.stage),
    'session.status_changed': (e) => {
      if (e.status === 'failed' && !started?.finished) ready(false, e.reason);
      else if (e.status !== 'creating' && e.status !== 'ended') ready(true);
      show(e.status, e.reason);
    },
    'session.ended': (e) => {
      ready(e.status !== 'failed', e.reason);
      over = true;
      asked.forEach((f) => f.remove());
      waiting.clear();
      showQueue();
      show(e.status);
      finished(e.reason);
    },
    'message.queued': (e) => {
      waiting.set(e.message.id, e.message);
      showQueue();
    },
    'message.sent': (e) => {
      ready(true);
      waiting.delete(e.message.id);
      showQueue();
      if (title.textContent === 'New session') title.textContent = e.message.prompt.split('\n')[0].slice(0, 80);
      put(userMessage(e.message.prompt));
      messages = new Map();
      tools = new Map();
    },
    'message.cancelled': (e) => {
      waiting.delete(e.message.id);
      showQueue();
      if (e.message.reply || e.reason) put(note(`Not sent: ${e.message.prompt.slice(0, 80)} (${e.reason || e.message.reply})`));
    },
    'message.started': (e) => message(e, true),
    'message.delta': (e) => message(e).add(e.text ?? ''),
    'message.completed': (e) => {
      message(e).finish(e.text);
      messages.delete(e.id);
    },
    'tool.started': (e) => {
      const t = new Tool(e);
      t.old = !live;
      tools.set(e.id, t);
      put(t.el);
    },
    'tool.output': (e) => {
      tools.get(e.id)?.add(e.text ?? '');
      scroll();
    },
    'tool.completed': (e) => {
      if (!tools.has(e.id)) handlers['tool.started'](e);
      tools.get(e.id).finish(e);
      scroll();
    },
    'file.changed': (e) => {
      const text = `${e.created ? 'created' : 'changed'} ${e.path}`;
      if (tools.has(e.id)) tools.get(e.id).note(text);
      else put(note(text));
    },
    'agent.asked': (e) => {
      const form = put(question(session.id, e));
      asked.set(e.id, form);
      if (live && document.activeElement === document.body) form.querySelector('input, button')?.focus();
    },
    'agent.withdrawn': (e) => {
      asked.get(e.id)?.remove();
      asked.delete(e.id);
    },
    'agent.retrying': (e) => put(note(`The model's API failed and is asked again: ${e.text ?? ''}`)),
    'mcp.failed': (e) => put(note(`The MCP server ${e.id} is not there: ${e.reason ?? ''}`)),
    'repo.synced': (e) => put(note(e.synced.error ? `The repository could not be brought up to date: ${e.synced.error}`
      : `The image was ${e.synced.commits_behind < 0 ? 'an unknown number of' : e.synced.commits_behind} commits behind; now at ${e.synced.commit?.slice(0, 10)}`)),
    'git.committed': (e) => put(note(`Committed: ${e.git?.subject ?? e.git?.commit ?? ''}`)),
    'git.pushed': (e) => put(note(`Pushed ${e.git?.branch ?? ''}`)),
    'git.panic': (e) => put(problemBox({ detail: `git could not go on: ${e.git?.reason ?? ''}`, remedy: e.git?.need })),
    error: (e) => put(problemBox({ detail: e.text || e.detail || e.reason, remedy: e.remedy })),
    done: (e) => {
      for (const m of messages.values()) m.finish();
      asked.forEach((f) => f.remove());
      asked.clear();
      for (const t of tools.values()) if (t.el.classList.contains('running')) t.finish({ failed: true, text: t.text });
      const u = e.usage;
      usage.turns++;
      for (const k of ['input_tokens', 'output_tokens', 'cache_read_tokens', 'cache_write_tokens', 'cost_usd']) usage[k] += u?.[k] ?? 0;
      showCosts();
      const took = e.message?.ended_at && e.message.started_at ? ms(new Date(e.message.ended_at) - new Date(e.message.started_at)) : '';
      const retry = button('Send it again', () => post(e.message.prompt));
      if (e.interrupted) put(note(`Stopped: ${e.reason || 'the turn was interrupted'}${took && ` · ${took}`}`));
      else if (e.failed) put(problemBox({ detail: e.text || e.reason || 'The turn failed.', remedy: 'The session goes on: send the prompt again, or another one.' }, ...(e.message ? [retry] : [])));
      else put(note([took, u?.cost_usd ? money(u.cost_usd) : ''].filter(Boolean).join(' · '), 'turn'));
    },
  };

  const note = (text, kind = '') => h('p', { class: `note ${kind}` }, text);

  function message(e, fresh) {
    let m = messages.get(e.id);
    if (!m || fresh) {
      m = new Message(e.thinking, () => scroll());
      messages.set(e.id, m);
      put(m.el);
    }
    return m;
  }

  // finished tells that the session is over, why, and what can be done now.
  function finished(reason) {
    composer.hidden = true;
    end.hidden = true;
    changes.hidden = true;
    put(h('section', { class: 'ended', role: 'alert', 'aria-label': 'The session has ended' }, h('h2', null, 'This session has ended'),
      h('p', null, reason ? `Reason: ${reason}.` : 'Its sandbox is gone.'), h('p', { class: 'meta' }, 'The conversation stays here.'),
      h('div', { class: 'row' }, button('New session, same agent and repository', () => again(session), { class: 'primary' }), h('a', { class: 'button', href: '#/' }, 'New session'))));
  }

  async function post(prompt) {
    const sent = await act(() => call('POST', `v1/sessions/${session.id}/messages`, { prompt }));
    scroll(true);
    return sent;
  }

  async function submit(event) {
    event?.preventDefault();
    const prompt = input.value.trim();
    if (prompt === '' || send.disabled) return;
    send.disabled = true;
    if (await post(prompt)) {
      input.value = '';
      grow();
    }
    send.disabled = false;
    input.focus();
  }
  const grow = () => {
    input.style.height = 'auto';
    input.style.height = `${Math.min(input.scrollHeight + 2, innerHeight / 3)}px`;
  };
  composer.addEventListener('submit', submit);
  input.addEventListener('input', grow);
  input.addEventListener('keydown', (e) => {
    if (e.key === 'Enter' && !e.shiftKey && !e.isComposing) submit(e);
  });

  async function showChanges() {
    const body = h('div', { class: 'body' }, h('p', null, 'Reading…'));
    const dialog = h('dialog', { class: 'panel', 'aria-label': 'Changes', onclose: () => dialog.remove() },
      h('header', null, h('h2', null, 'Changes'), button('Close', () => dialog.close(), { autofocus: true })), body);
    document.body.append(dialog);
    dialog.showModal();
    try {
      const text = await call('GET', `v1/sessions/${session.id}/diff`);
      body.replaceChildren(...(text.trim() === '' ? [h('p', null, 'Nothing has changed yet.')] : patch(text)));
    } catch (p) {
      body.replaceChildren(problemBox(p));
    }
  }

  function confirmEnd() {
    const dialog = h('dialog', { 'aria-label': 'End the session', onclose: () => dialog.remove() }, h('h2', null, 'End the session?'),
      h('p', null, 'Its sandbox is removed. The conversation stays readable.'),
      h('div', { class: 'row' }, button('End it', () => {
        dialog.close();
        act(() => call('DELETE', `v1/sessions/${session.id}`));
      }, { class: 'danger' }), button('Keep it', () => dialog.close(), { autofocus: true })));
    document.body.append(dialog);
    dialog.showModal();
  }

  usage = { input_tokens: 0, output_tokens: 0, cache_read_tokens: 0, cache_write_tokens: 0, cost_usd: 0, turns: 0 }; // what the events add up to
  showCosts();
  start();
  show(session.status, session.reason);
  const opened = Date.now();
  const timer = setInterval(tick, 1000);
  const unfollow = follow(`v1/sessions/${session.id}/events`, {
    event(name, e) {
      live = live || Date.now() - opened > 1500;
      handlers[name]?.(e);
    },
    state(to) {
      link.textContent = to === 'live' ? '' : 'Connection lost; trying again…';
      main.dataset.link = to;
    },
    problem(p) {
      if (p.status === 401) signIn(p);
      else if (!over) put(problemBox(p));
    },
  });
  if (matchMedia('(hover: hover)').matches) input.focus();
  return () => {
    unfollow();
    sizes.disconnect();
    clearInterval(timer);
  };
}
