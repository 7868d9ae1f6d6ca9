// One session: its start, the conversation, the queue, the state. Everything is built from the session's
// events, so that every browser shows the same, whenever it connects.

import { announcer } from './announce.js';
import { call, follow } from './api.js';
import { Commands } from './commands.js';
import { Conversation } from './conversation.js';
import { intent, keep, kept, promptOf, trimmed } from './drafts.js';
import { endNotice, ends } from './end.js';
import { button, h, money, problemBox, soon, tabs } from './dom.js';
import { isLost, keyboard, take } from './focus.js';
import { Log } from './log.js';
import { labelMenu } from './labels.js';
import { openPanel, panels } from './panel.js';
import { lastEvent, past } from './past.js';
import { Plan } from './plan.js';
import { Queue } from './queue.js';
import { finder } from './find.js';
import { Start } from './start.js';
import { note } from './turn.js';
import { Unsent } from './unsent.js';

const words = {
  creating: 'Creating the sandbox', ready: 'Ready', thinking: 'Thinking', running_tool: 'Running a tool', waiting_for_input: 'Waiting for your answer',
  hung: 'The agent has been silent for long: it may hang', done: 'Done', failed: 'Failed', ended: 'Ended',
};
// The beginning of the page's title in each state.
const titles = {
  creating: 'Creating: ', thinking: 'Working: ', running_tool: 'Working: ', waiting_for_input: 'Waiting for you: ', hung: 'Silent: ', done: 'Done: ', failed: 'Failed: ', ended: 'Ended: ',
};
const working = ['thinking', 'running_tool', 'waiting_for_input', 'hung'];

// openChat fills main with a session and returns a function that closes it. again starts a session with the
// same settings; tab is the view beside it.
export function openChat(main, session, { again, changed, labelled, signIn, tab }) {
  const latest = button('Latest ↓', () => log.end(), { class: 'latest', hidden: true });
  const log = new Log('Conversation', (pinned) => { latest.hidden = pinned; });
  const news = announcer();
  // Screen readers read out the state when it changes, but not its duration, which changes each second.
  const word = h('span', { role: 'status' });
  const elapsed = h('span', { 'aria-hidden': 'true' });
  const status = h('span', { class: 'status', 'data-status': session.status }, word, elapsed);
  const link = h('span', { class: 'link', role: 'status' });
  const costs = h('span', { class: 'costs' });
  const error = h('div');
  const plan = new Plan();
  const unsent = new Unsent(session.id);
  const queue = new Queue(session.id, (what) => act(what));
  const input = h('textarea', { rows: '1', 'aria-label': 'Prompt', placeholder: 'Write a prompt', autocomplete: 'off' });
  const send = h('button', { type: 'submit', class: 'primary' }, 'Send');
  const stop = button('Stop', () => act(() => call('POST', `v1/sessions/${session.id}/stop?hold=true`)), { class: 'danger', hidden: true });
  const offers = new Commands(input);
  const composer = h('form', { class: 'composer', 'aria-label': 'Prompt' }, queue.el, error, offers.el, h('div', { class: 'row' }, input, send, stop));
  const end = button('End', confirmEnd, { class: 'danger' });
  const title = h('h1', null, session.title || 'New session');
  const labels = labelMenu(session, { over: () => over || Boolean(session.ended_at), changed: () => {
    named();
    labelled();
  } });
  const search = finder(log);
  const choice = tabs('Views of the session', { chat: 'Conversation', ...panels }, (id) => beside(id === 'chat' || id === shown ? '' : id), (id) => (id === 'chat' ? 'panel-chat' : 'panel-view'));
  const top = h('header', { class: 'top' }, h('div', { class: 'what' }, title, h('p', { class: 'meta' }, session.agent === 'scripted' ? 'Scripted agent: no model is at work' : session.agent,
    session.repo && ` · ${session.repo}`, session.branch && ` · ${session.branch}`, ` · ${session.id}`, session.continues && [' · continues ', h('a', { href: `#/s/${session.continues}` }, 'an earlier session')])), h('div', { class: 'row' }, search.button, labels, end), choice);
  const chat = h('section', { class: 'chat', id: 'panel-chat', role: 'tabpanel', 'aria-labelledby': 'tab-chat' }, search.el, log.el, news.el, h('div', { class: 'foot' }, latest, plan.el, h('div', { class: 'bar' }, status, link, costs), composer));
  const aside = h('section', { class: 'panel', id: 'panel-view', role: 'tabpanel', hidden: true, tabindex: '0' });
  const split = h('div', { class: 'split' }, chat, aside);
  main.replaceChildren(top, split);

  // beside shows a view beside the conversation, "" for none. The address contains the view, so that it can be
  // bookmarked and shared.
  let shown = '';
  let left = false; // the address already names another page
  const leaving = new AbortController();
  let closePanel = () => {};
  // Facts about the start, the turns and the files, for the views.
  const facts = { stages: [], turns: [], changed: new Set(), working: false };
  function beside(id, chosen = true) {
    if (left) return;
    const had = aside.contains(document.activeElement);
    closePanel();
    closePanel = () => {};
    shown = id in panels ? id : '';
    choice.select(shown || 'chat');
    if (had) choice.take(); // the focus was in the view that is replaced
    aside.hidden = shown === '';
    split.classList.toggle('beside', shown !== '');
    const address = `#/s/${session.id}${shown && `/${shown}`}`;
    if (chosen && address !== location.hash) history.pushState(null, '', address); // Back leads to the previous view
    else history.replaceState(null, '', address);
    if (shown) closePanel = openPanel(aside, shown, { session, facts, signIn, sandbox: sandboxID });
  }
  async function sandboxID() { // a session can change its sandbox
    if (!session.sandbox_id || stale) Object.assign(session, await call('GET', `v1/sessions/${session.id}`));
    stale = false;
    wanted = !session.sandbox_id;
    return session.sandbox_id;
  }
  let stale = true;
  let wanted = false; // a view waits for a sandbox

  let state = session.status;
  let replaying = false; // events of the past are coming
  let replayed = null; // the last state that they have shown
  let since = performance.now();
  let usage = { ...session.usage, turns: session.turns };
  let context = null; // how full the model's context is, if the agent reports that
  let over = false;
  let ending = false; // by this browser
  let started = null;
  let notice = null; // of the end

  const put = (part) => log.put(part);
  const talk = new Conversation(session, put, (prompt) => post(prompt));

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

  // show shows a state. While the past is replayed, the recorded state stays.
  function show(to, reason) {
    replayed = { to, reason };
    if (replaying) return;
    if (to !== state) since = performance.now();
    state = to;
    titled();
    facts.working = working.includes(to);
    status.dataset.status = to;
    stop.hidden = !working.includes(to);
    send.textContent = talk.asked.size > 0 ? 'Answer' : working.includes(to) || to === 'creating' ? 'Queue' : 'Send';
    tick(reason);
    changed(session.id, to, session.title);
  }
  function tick(reason) {
    const time = performance.now() - since;
    const text = words[state] ?? state;
    if (word.textContent !== text) word.textContent = text;
    elapsed.textContent = news.current && (working.includes(state) || state === 'creating') && time > 2000 ? ` · ${Math.floor(time / 1000)} s` : '';
    if (typeof reason === 'string') status.title = reason;
    started?.tick();
    for (const form of talk.asked.values()) form.tick();
  }
  function showCosts() {
    const inTokens = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens;
    costs.textContent = `${usage.turns} ${usage.turns === 1 ? 'turn' : 'turns'} · ${inTokens + usage.output_tokens} tokens · ${money(usage.cost_usd)}${context ? ` · context ${Math.round(100 * context.used / context.size)} %` : ''}`;
    if (context) costs.title = `The model's context has ${context.used} of ${context.size} tokens.`;
  }

  function stage(s) {
    started ??= put(new Start(session.created_at));
    started.stage(s, state === 'creating');
    facts.stages.push({ name: s.name, ms: s.ms });
  }
  function ready(ok, reason) {
    if (!started || started.finished) return;
    started.finish(ok, reason);
    stale = true;
    if (ok && wanted && shown) beside(shown, false); // it did not exist before
  }

  // named shows the session's name in its heading and in the title of the page, and passes it to the list.
  function named() {
    title.textContent = session.title || 'New session';
    titled();
    changed(session.id, state, session.title);
  }
  function titled() {
    document.title = `${titles[state] ?? ''}${title.textContent} · Harvest`;
  }
  // learnName gets the name that the server has derived from the first prompt.
  async function learnName() {
    const { title: text } = await call('GET', `v1/sessions/${session.id}`).catch(() => ({})); // best effort: the list gets it later
    if (!text || left) return;
    session.title = text;
    named();
  }

  // handlers do what events mean beside the conversation. part is the part of it that the event completes.
  const handlers = {
    'session.stage': (e) => stage(e.stage),
    'session.queued': () => put(note('The sandbox is queued: others start first.')),
    'session.status_changed': (e) => {
      if (e.status === 'failed' && !started?.finished) ready(false, e.reason);
      else if (e.status !== 'creating' && e.status !== 'ended') ready(true);
      show(e.status, e.reason);
    },
    'session.ended': (e) => {
      ready(e.status !== 'failed', e.reason);
      over = true;
      talk.settle();
      answering();
      queue.clear();
      show(e.status);
      finished(e.reason);
    },
    'message.queued': (e) => {
      if (!e.message.purpose) queue.add(e.message);
    },
    'message.held': (e) => queue.add(e.message),
    'stream.pruned': () => { queue.load().catch(() => {}); }, // best effort
    'message.sent': (e) => {
      ready(true);
      queue.remove(e.message.id);
      if (e.message.purpose) return;
      unsent.sent();
      if (!session.title) learnName();
      news.say(`Sent: ${e.message.prompt}`);
    },
    'message.cancelled': (e) => {
      queue.remove(e.message.id);
      if (e.reason && !e.message.purpose) unsent.cancel(e.message.prompt); // not by a person
    },
    'message.completed': (e, m) => {
      if (m && !m.thinking) news.say(`Agent: ${m.text}`);
    },
    'tool.completed': (e, tool) => {
      if (e.failed) news.say(`${tool?.tool ?? 'A tool'} failed`);
    },
    'session.renamed': (e) => {
      session.title = e.text;
      named();
    },
    'file.changed': (e) => facts.changed.add(e.path),
    'agent.asked': (e) => {
      news.say(`The agent asks: ${e.questions?.map((q) => q.text).join(' ') || `whether ${e.tool ?? 'a tool'} may run`}`);
      answering();
    },
    'agent.withdrawn': (e, focused) => {
      if (focused && keyboard()) input.focus();
      answering();
    },
    'agent.plan': (e) => plan.set(e.plan ?? []),
    'agent.commands': (e) => offers.set(e.commands),
    done: (e) => {
      answering();
      const u = e.usage;
      if (e.context?.size > 0) context = e.context;
      usage.turns++;
      facts.turns.push({ at: e.message?.ended_at, usage: u, ms: e.message?.started_at ? new Date(e.message.ended_at) - new Date(e.message.started_at) : 0 });
      for (const k of ['input_tokens', 'output_tokens', 'cache_read_tokens', 'cache_write_tokens', 'cost_usd']) usage[k] += u?.[k] ?? 0;
      if (!replaying) showCosts();
    },
  };

  // answering adapts the input if its text will answer a question.
  function answering() {
    input.placeholder = talk.asked.values().next().value?.wants() ?? 'Write a prompt';
    show(replayed?.to ?? state);
  }

  // finished shows that the session has ended, the reason, and the options.
  function finished(reason) {
    const had = isLost() || [composer, end].some((el) => el.contains(document.activeElement));
    composer.hidden = true;
    end.hidden = true;
    notice = put(endNotice({ session, reason, failed: started?.failure, again, signIn, patch: facts.patch, changed: facts.changed, unsent }));
    if (!news.current) return;
    if (ending && !chat.checkVisibility()) beside(''); // a narrow window shows one of them
    log.end();
    if (had) soon(() => { if (notice.isConnected) take(notice); });
  }

  // post sends a prompt once, even if it is retried.
  async function post(prompt) {
    const once = intent(`message:${session.id}`, { prompt });
    news.acted();
    const sent = await act(() => call('POST', `v1/sessions/${session.id}/messages`, { prompt }, once));
    if (sent) once.done();
    log.end();
    return sent;
  }

  const draft = promptOf(session.id);
  let sending = ''; // the prompt whose receipt the server has not confirmed
  async function submit(event) {
    event?.preventDefault();
    const prompt = trimmed(input.value);
    if (prompt === '' || send.disabled) return;
    send.disabled = true;
    input.value = ''; // later input belongs to the next prompt
    sending = prompt;
    grow();
    const open = talk.asked.values().next().value;
    if (!await (open ? open.say(prompt) : post(prompt))) input.value = [prompt, input.value].filter(Boolean).join('\n');
    sending = '';
    answering();
    grow();
    notice?.look(); // the session may have ended meanwhile
    send.disabled = false;
    input.focus();
  }
  const grow = () => {
    input.style.height = 'auto';
    input.style.height = `${Math.min(input.scrollHeight + 2, innerHeight / 3)}px`;
    keep(draft, [sending, input.value].filter(Boolean).join('\n'));
    offers.show();
  };
  composer.addEventListener('submit', submit);
  input.addEventListener('input', grow);
  input.addEventListener('keydown', (e) => {
    if (e.key === 'Enter' && !e.shiftKey && !e.isComposing) submit(e);
  });

  function confirmEnd() {
    ends(session, facts, act, (is) => {
      ending = is;
      news.acted();
    });
  }

  showCosts(); // as recorded; then the totals of the events
  usage = { input_tokens: 0, output_tokens: 0, cache_read_tokens: 0, cache_write_tokens: 0, cost_usd: 0, turns: 0 };
  composer.hidden = end.hidden = Boolean(session.ended_at); // its events tell the rest
  show(session.status, session.reason);
  named();
  const timer = setInterval(tick, 1000);
  const linked = (to) => {
    if (left) return;
    link.textContent = to === 'live' || to === 'paused' ? '' : 'Connection lost; trying again…';
    main.dataset.link = to;
  };
  let unfollow = () => {};
  const connection = { state: linked, signal: leaving.signal };
  Promise.all([
    past(session, connection).catch((p) => [note(`The earlier conversation could not be loaded: ${p.message}`)]),
    lastEvent(`v1/sessions/${session.id}/events`, connection).catch(() => 0), // following the events reports the error
  ]).then(([parts, last]) => {
    if (left) return;
    replaying = last > 0;
    for (const part of parts) put(part);
    started ??= put(new Start(session.created_at, state === 'creating'));
    unfollow = followEvents(last);
  });
  // broken reports an event that could not be shown. What it means beside the conversation happens all the same.
  const broken = (name, err) => {
    console.error(`event ${name}:`, err);
    put(note(`An event (${name}) could not be shown: ${err.message}`));
  };
  // followEvents follows the events; those up to last are of the past.
  const followEvents = (last) => follow(`v1/sessions/${session.id}/events?attended=true`, {
    event(name, e, id) {
      news.heard();
      let part;
      try {
        part = talk.show(name, e);
      } catch (err) {
        broken(name, err);
      }
      handlers[name]?.(e, part);
      if (replaying && (id >= last || name === 'stream.pruned' && e.first > last)) {
        replaying = false;
        showCosts();
        if (replayed) show(replayed.to, replayed.reason);
      }
    },
    state: linked,
    problem(p) {
      if (p.status === 401) signIn(p);
      else if (!over) put(problemBox(p));
    },
    broken,
  });
  beside(tab ?? '', false);
  input.value = kept(draft);
  grow();
  if (keyboard()) input.focus();
  const close = () => {
    left = true;
    leaving.abort();
    unfollow();
    closePanel();
    log.close();
    clearInterval(timer);
  };
  return Object.assign(close, { address: `#/s/${session.id}`, show: (view) => beside(view, false) });
}
