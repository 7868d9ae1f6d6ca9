// The form for a new session. Everything in it has a default: one button is enough.

import { call } from './api.js';
import { intent, keep, kept, leave, left, trimmed } from './drafts.js';
import { button, field, h, problemBox, windowed } from './dom.js';
import { disable } from './focus.js';

const keys = ['ANTHROPIC_API_KEY', 'ANTHROPIC_AUTH_TOKEN', 'CLAUDE_CODE_OAUTH_TOKEN', 'AWS_BEARER_TOKEN_BEDROCK'];
const approvals = { '': 'No tool needs approval', edits: 'Commands need approval, changes of files do not', ask: 'Every tool needs approval', plan: 'The agent only plans' };

const text = (name, attrs) => h('input', { name, type: 'text', autocomplete: 'off', spellcheck: 'false', ...attrs });
const number = (name, attrs) => h('input', { name, type: 'number', min: '0', step: 'any', placeholder: 'default', ...attrs });
const check = (name, label, on) => h('label', { class: 'choice' }, h('input', { type: 'checkbox', name, checked: on }), h('span', null, label));
const words = (value) => value.split(',').map((v) => v.trim()).filter(Boolean);

// set leaves out fields with their default values.
const set = (values) => {
  const left = Object.entries(values).filter(([, v]) => v !== '' && v !== 0 && v !== false && v !== undefined && !(Array.isArray(v) && v.length === 0));
  return left.length > 0 ? Object.fromEntries(left) : undefined;
};

// request is the form's values as the body of POST /v1/sessions.
function request(form) {
  const f = (name) => form.elements[name].value.trim();
  const on = (name) => form.elements[name].checked;
  return set({
    agent: f('agent'), model: f('model'), prompt: trimmed(form.elements.prompt.value), repo: f('repo'), branch: f('branch'), approval: f('approval'),
    limits: set({ turns: Number(f('turns')), usd: Number(f('usd')), seconds: Number(f('seconds')) }),
    sandbox: set({
      image: f('image'), cpu: Number(f('cpu')), memory_bytes: Math.round(Number(f('memory')) * 2 ** 30), timeout_seconds: Number(f('hours')) * 3600, secrets: words(f('secrets')),
      network: set({ mode: f('network'), allow: f('network') === 'allow' ? words(f('allow')) : undefined }),
      volumes: f('volume') && [{ name: f('volume'), path: f('volumePath') || '/data' }],
      s3: f('mount') && { bucket: f('bucket'), prefix: f('prefix'), mount_path: f('mount'), init: on('init'), sync_on_terminate: on('sync') },
    }),
  });
}

// announcer returns a function that announces the form's session, without its prompt, so that the server can make one
// like it ahead. It does nothing while the session stays the same. The server takes an announcement a second: later
// ones wait, and the last one counts.
function announcer(form) {
  let last;
  let timer;
  let free = 0; // when the server takes the next one, in milliseconds
  const later = () => { timer = setTimeout(() => { if (form.isConnected) announce(); }, Math.max(0, free - Date.now())); };
  const announce = () => {
    clearTimeout(timer);
    const body = request(form) ?? {};
    delete body.prompt;
    delete body.limits;
    const text = JSON.stringify(body);
    if (text === last) return;
    if (Date.now() < free) {
      later();
      return;
    }
    [last, free] = [text, Date.now() + pause];
    call('POST', 'v1/sessions/warm', body).catch((p) => { // without it the session only takes longer
      if (p.status !== 429 || text !== last) return; // another tab announces, too
      [last, free] = [undefined, Date.now() + pause];
      later();
    });
  };
  return announce;
}

const pause = 1100; // milliseconds between announcements
const patience = 1000; // milliseconds

const draft = 'form:session';

// filled returns the form's fields that differ from their defaults, by name.
function filled(form) {
  const all = {};
  for (const el of form.elements) {
    // Without a choice, the available keys determine the agent.
    if (!el.name || (el.name === 'agent' && !form.dataset.chosen)) continue;
    if (el.type === 'checkbox') {
      if (el.checked !== el.defaultChecked) all[el.name] = el.checked;
    } else if (el.value !== '') all[el.name] = el.value;
  }
  return all;
}

// restore fills the form with earlier input, unless t has settings of another session.
function restore(form, t) {
  let all = {};
  try {
    all = JSON.parse(kept(draft) || '{}');
  } catch {
    return; // it is from another version of the page
  }
  if (Object.keys(t).length > 0) all = { prompt: all.prompt ?? '' };
  for (const [name, value] of Object.entries(all)) {
    const el = form.elements[name];
    if (!el) continue;
    if (el.type === 'checkbox') el.checked = value;
    else el.value = value;
  }
  if (all.agent) form.dataset.chosen = 'yes';
  const details = form.querySelector('details');
  details.open = Object.keys(all).some((name) => details.contains(form.elements[name])); // nothing is set unseen
}

// showUnsent puts the prompts that an ended session could not send into the form: the first one as the first prompt, unless
// the form has one, and the others into a list in box. The session that is created offers those.
function showUnsent(form, box) {
  let { prompts, typed } = left();
  const { prompt } = form.elements;
  if (prompt.value === '' && (prompts.length > 0 || typed)) {
    if (prompts.length > 0) prompt.value = prompts.shift();
    else [prompt.value, typed] = [typed, ''];
    keep(draft, JSON.stringify(filled(form)));
    leave(prompts, typed);
  }
  const texts = typed ? [...prompts, typed] : prompts;
  if (texts.length === 0) return;
  box.append(h('p', null, 'The new session offers these prompts of the one before:'), windowed(h('ul', { class: 'unsent' }), texts.length, (i) => h('li', null, texts[i].slice(0, 1000)), { first: 20, what: 'prompts' }),
    button('Discard these prompts', () => {
      leave([], '');
      box.replaceChildren();
      prompt.focus();
    }, { class: 'small' }));
}

// openNew shows the form in main. t has initial settings; created gets the session; still reports whether the
// form is still needed.
export async function openNew(main, t, { created, signIn, still }) {
  const error = h('div');
  const rest = h('div');
  const agent = h('select', { name: 'agent' }, h('option', { value: 'claude' }, 'Claude Code'), h('option', { value: 'opencode' }, 'OpenCode'),
    h('option', { value: 'scripted' }, 'Scripted agent (to try Harvest without a model)'));
  const prompt = h('textarea', { name: 'prompt', rows: '3', placeholder: 'What should the agent do? You can also send it later.' });
  const [images, volumes, repos] = ['images', 'volumes', 'repos'].map((id) => h('datalist', { id }));
  const network = h('select', { name: 'network' }, h('option', { value: '' }, 'The internet'), h('option', { value: 'allow' }, 'Only listed hosts'), h('option', { value: 'none' }, 'Nothing'));
  const allowField = field('Allowed hosts', text('allow', { placeholder: 'example.org, *.example.com:443' }), 'Domains, addresses or networks, with commas between them');
  const seen = () => { allowField.hidden = network.value !== 'allow'; };
  network.addEventListener('change', seen);
  seen();
  const create = h('button', { type: 'submit', class: 'primary large' }, 'Create a sandbox');
  const hint = h('div', { class: 'hint', hidden: true }, h('p', null, h('b', null, 'No model key is set. '), 'Claude Code and OpenCode need one: '), h('pre', { tabindex: '0' }, 'harvest secret set anthropic ANTHROPIC_API_KEY=sk-ant-…'),
    h('p', null, 'Or ', h('a', { href: '#/secrets' }, 'add it here'), '. Until then, try the scripted agent. It has no model: it repeats your prompts, and runs lines such as ', h('code', null, '/run ls -la'), '.'));
  const grid = (...all) => h('div', { class: 'grid' }, all);
  const form = h('form', { class: 'new', 'aria-label': 'New session' },
    h('h1', null, 'New session'), h('p', { class: 'meta' }, 'The agent works in its own sandbox. Nothing leaves it unless you take it.'),
    hint, field('Agent', agent), field('Repository', text('repo', { list: 'repos', placeholder: 'https://github.com/… (or none)', value: t.repo ?? '' })), repos, field('First prompt', prompt), rest,
    h('details', null, h('summary', null, 'Branch, image, network, limits'),
      h('fieldset', null, h('legend', null, 'Session'), grid(field('Branch', text('branch', { placeholder: 'default', value: t.branch ?? '' })), field('Model', text('model', { placeholder: 'that of the agent', value: t.model ?? '' })),
        field('Approval', h('select', { name: 'approval' }, Object.entries(approvals).map(([v, name]) => h('option', { value: v }, name)))))),
      h('fieldset', null, h('legend', null, 'Sandbox'), grid(field('Image', text('image', { list: 'images', placeholder: 'that of the agent' })), images, field('Network', network), allowField,
        field('Secrets', text('secrets', { placeholder: 'names, with commas between them' })), field('Cores', number('cpu')), field('Memory, GiB', number('memory')), field('Lifetime, hours', number('hours', { placeholder: '24' })))),
      h('fieldset', null, h('legend', null, 'Volume'), grid(field('Name', text('volume', { list: 'volumes', placeholder: 'none' })), volumes, field('Path', text('volumePath', { placeholder: '/data' })))),
      h('fieldset', null, h('legend', null, 'S3'), grid(field('Directory', text('mount', { placeholder: 'none, or a directory such as /data' })), field('Bucket', text('bucket', { placeholder: 'the server\'s own' })), field('Prefix', text('prefix', { placeholder: 'none' })),
        check('init', 'Download the files at the start', true), check('sync', 'Upload the files at the end', true))),
      h('fieldset', null, h('legend', null, 'Limits'), grid(field('Turns at most', number('turns', { placeholder: 'no limit', step: '1', value: t.limits?.turns ?? '' })),
        field('Seconds per turn at most', number('seconds', { placeholder: 'no limit', value: t.limits?.seconds ?? '' })), field('Cost at most, $', number('usd', { placeholder: 'no limit', value: t.limits?.usd ?? '' }))))),
    error, create);
  agent.value = t.agent ?? 'claude';
  prompt.addEventListener('keydown', (e) => { if (e.key === 'Enter' && (e.ctrlKey || e.metaKey)) form.requestSubmit(); });
  agent.addEventListener('change', () => { form.dataset.chosen = 'yes'; });
  restore(form, t);
  showUnsent(form, rest);
  const announce = announcer(form);
  prompt.addEventListener('input', announce);
  form.addEventListener('change', announce);
  form.addEventListener('input', () => keep(draft, JSON.stringify(filled(form))));
  seen();
  let busy = false;
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    if (busy) return;
    busy = true;
    const enable = disable([create]);
    create.replaceChildren(h('span', { class: 'spinner', 'aria-hidden': 'true' }), 'Creating…');
    error.replaceChildren();
    await known; // wait for the available agents
    try {
      const body = request(form);
      const once = intent('session', body);
      const made = await call('POST', 'v1/sessions', body, once);
      once.done();
      keep(draft, '');
      const rest = left();
      if (rest.prompts.length > 0 || rest.typed) await (await import('./unsent.js')).pass(made.id, rest);
      leave([], '');
      created(made);
    } catch (p) {
      busy = false;
      if (p.status === 401) signIn(p);
      error.replaceChildren(problemBox(p));
      create.replaceChildren('Create a sandbox');
      enable();
    }
  });
  const known = call('GET', 'v1/secrets?limit=200').then(({ data }) => {
    const has = data.some((s) => s.keys.some((k) => keys.includes(k)));
    hint.hidden = has;
    if (!has && !t.agent && !form.dataset.chosen) agent.value = 'scripted';
  }, () => {}); // without permission to list secrets, choose without them
  // Avoids a later shift of the layout.
  await Promise.race([known, new Promise((done) => { setTimeout(done, patience); })]);
  if (!still()) return;
  main.replaceChildren(h('div', { class: 'scroll' }, form));
  document.title = 'New session · Harvest';
  if (t.repo) announce();
  const offer = (path, into, names) => call('GET', path).then(({ data }) => into.replaceChildren(...data.flatMap(names).map((n) => h('option', { value: n }))), () => {});
  offer('v1/images?limit=200', images, (i) => i.names);
  offer('v1/volumes?limit=200', volumes, (v) => [v.name]);
  offer('v1/repos?limit=200', repos, (r) => [r.url]);
}
