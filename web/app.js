// The page: who is here, the list of sessions, the form for a new one, and the session that the address names.

import { call } from './api.js';
import { openChat } from './chat.js';
import { ago, button, field, h, problemBox } from './dom.js';

const keys = ['ANTHROPIC_API_KEY', 'ANTHROPIC_AUTH_TOKEN', 'CLAUDE_CODE_OAUTH_TOKEN', 'AWS_BEARER_TOKEN_BEDROCK'];
const states = { running_tool: 'running a tool', waiting_for_input: 'waits for you' };

const main = h('main', { id: 'main', tabindex: '-1' });
const list = h('ul', { class: 'sessions' });
const search = h('input', { type: 'search', 'aria-label': 'Search sessions', placeholder: 'Search', oninput: () => showList() });
const menu = button('Sessions', () => open(!side.classList.contains('open')), { class: 'menu', 'aria-expanded': 'false', 'aria-controls': 'side' });
const side = h('nav', { id: 'side', 'aria-label': 'Sessions' },
  h('a', { class: 'brand', href: '#/' }, h('img', { src: 'ui/icon.svg', alt: '', width: '24', height: '24' }), 'Harvest'),
  h('a', { class: 'button primary', href: '#/' }, 'New session'), search, list,
  h('footer', null, h('span', { class: 'who' }), button('Sign out', signOut, { class: 'small' })));

let sessions = [];
let close = () => {};
let template = null; // settings for the next session

function open(on) {
  side.classList.toggle('open', on);
  menu.setAttribute('aria-expanded', String(on));
}

async function signOut() {
  try {
    await call('POST', 'v1/sign-out');
  } catch (p) {
    if (p.status !== 401) {
      side.querySelector('footer').append(problemBox(p));
      return;
    }
  }
  close();
  signedOut();
}

// signedOut says how to come in. What the server says about it fits how it was set up.
function signedOut(p) {
  clearInterval(timer);
  const provider = h('p', { hidden: true }, h('a', { class: 'button primary', href: 'sign-in/oidc' }, 'Sign in'));
  document.body.replaceChildren(h('main', { class: 'welcome', id: 'main' }, h('img', { src: 'ui/icon.svg', alt: '', width: '48', height: '48' }), h('h1', null, 'Harvest'),
    h('p', null, 'You are not signed in. Open the link that the server printed when it started, or make a new one:'), h('pre', null, 'harvest key link'),
    provider, p?.remedy && h('p', { class: 'meta' }, p.remedy), h('p', { class: 'meta' }, h('a', { href: 'docs' }, 'The API'))));
  call('GET', 'v1/openapi.json').then((doc) => { provider.hidden = !doc.paths['/sign-in/oidc']; }, () => {});
}

async function load() {
  try {
    sessions = (await call('GET', 'v1/sessions?all=true&limit=200')).data;
    showList();
  } catch (p) {
    if (p.status === 401) {
      close();
      signedOut(p);
    } else list.replaceChildren(h('li', null, problemBox(p)));
  }
}

const current = () => /^#\/s\/(ses_\w+)$/.exec(location.hash)?.[1];

function showList() {
  const wanted = search.value.trim().toLowerCase();
  const found = sessions.filter((s) => [s.title, s.repo, s.agent, s.id, s.status].join(' ').toLowerCase().includes(wanted));
  const focused = list.contains(document.activeElement) ? document.activeElement.getAttribute('href') : null;
  list.replaceChildren(...found.map((s) => h('li', null, h('a', { href: `#/s/${s.id}`, 'aria-current': s.id === current() ? 'page' : null },
    h('span', { class: 'title' }, s.title || 'New session'), h('span', { class: 'meta' }, h('i', { class: 'dot', 'data-status': s.status }), `${states[s.status] ?? s.status} · ${ago(s.active_at)}`)))));
  if (found.length === 0) list.append(h('li', { class: 'meta' }, wanted ? 'None is like that.' : 'None yet.'));
  if (focused) list.querySelector(`a[href="${focused}"]`)?.focus();
}

// changed keeps the list in step with the session that is shown.
function changed(id, status) {
  const s = sessions.find((v) => v.id === id);
  if (!s) load();
  else if (s.status !== status) {
    s.status = status;
    showList();
  }
}

async function newSession() {
  const t = template ?? {};
  template = null;
  const error = h('div');
  const agent = h('select', { name: 'agent' }, h('option', { value: 'claude' }, 'Claude Code'), h('option', { value: 'opencode' }, 'OpenCode'),
    h('option', { value: 'scripted' }, 'Scripted agent (no model; shows how it goes)'));
  const text = (name, attrs) => h('input', { name, type: 'text', autocomplete: 'off', spellcheck: 'false', ...attrs });
  const number = (name, attrs) => h('input', { name, type: 'number', min: '0', step: 'any', placeholder: 'default', ...attrs });
  const prompt = h('textarea', { name: 'prompt', rows: '3', placeholder: 'What shall the agent do? You can also say it later.' });
  const repo = text('repo', { placeholder: 'https://github.com/…  (none: an empty one)', value: t.repo ?? '' });
  const branch = text('branch', { placeholder: 'default', value: t.branch ?? '' });
  const images = h('datalist', { id: 'images' });
  const image = text('image', { list: 'images', placeholder: 'that of the agent' });
  const network = h('select', { name: 'network' }, h('option', { value: '' }, 'The internet'), h('option', { value: 'allow' }, 'Only what is listed'), h('option', { value: 'none' }, 'Nothing'));
  const allow = text('allow', { placeholder: 'example.org, *.example.com:443' });
  const allowField = field('It may reach', allow, 'Domains, addresses or networks, with commas between them');
  const seen = () => { allowField.hidden = network.value !== 'allow'; };
  network.addEventListener('change', seen);
  seen();
  const [cpu, memory, hours, turns, usd] = [number('cpu'), number('memory'), number('hours', { placeholder: '24' }), number('turns', { placeholder: 'no limit', step: '1', value: t.limits?.turns ?? '' }),
    number('usd', { placeholder: 'no limit', value: t.limits?.usd ?? '' })];
  const create = h('button', { type: 'submit', class: 'primary large' }, 'Create a sandbox');
  const hint = h('div', { class: 'hint', hidden: true }, h('p', null, h('b', null, 'No model key is set. '), 'Claude Code and OpenCode need one: '), h('pre', null, 'harvest secret set anthropic ANTHROPIC_API_KEY=sk-ant-…'),
    h('p', null, 'Until then the scripted agent shows how it goes. It has no model: it repeats what you say, and runs lines such as ', h('code', null, '/run ls -la'), '.'));
  const form = h('form', { class: 'new', 'aria-label': 'New session' },
    h('h1', null, 'New session'), h('p', { class: 'meta' }, 'The agent works in a sandbox of its own, which nothing leaves but what you take.'),
    hint, field('Agent', agent), field('First prompt', prompt),
    h('details', { open: Boolean(t.repo) }, h('summary', null, 'Repository, image, network, limits'), h('div', { class: 'grid' },
      field('Repository', repo), field('Branch', branch), field('Image', image), images, field('Network', network), allowField,
      field('Processors', cpu), field('Memory, GiB', memory), field('Lifetime, hours', hours), field('Turns at most', turns), field('Dollars at most', usd))),
    error, create);
  agent.value = t.agent ?? 'claude';
  prompt.addEventListener('keydown', (e) => { if (e.key === 'Enter' && (e.ctrlKey || e.metaKey)) form.requestSubmit(); });
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    create.disabled = true;
    create.replaceChildren(h('span', { class: 'spinner', 'aria-hidden': 'true' }), 'Creating…');
    error.replaceChildren();
    const set = (pairs) => Object.fromEntries(Object.entries(pairs).filter(([, v]) => v !== '' && v !== 0 && v !== undefined && !(typeof v === 'object' && Object.keys(v).length === 0)));
    const body = set({
      agent: agent.value, prompt: prompt.value.trim(), repo: repo.value.trim(), branch: branch.value.trim(),
      limits: set({ turns: Number(turns.value), usd: Number(usd.value) }),
      sandbox: set({
        image: image.value.trim(), cpu: Number(cpu.value), memory_bytes: Math.round(Number(memory.value) * 2 ** 30), timeout_seconds: Number(hours.value) * 3600,
        network: set({ mode: network.value, allow: network.value === 'allow' ? allow.value.split(',').map((v) => v.trim()).filter(Boolean) : undefined }),
      }),
    });
    try {
      const made = await call('POST', 'v1/sessions', body);
      sessions.unshift(made);
      location.hash = `#/s/${made.id}`;
    } catch (p) {
      if (p.status === 401) signedOut(p);
      error.replaceChildren(problemBox(p));
      create.disabled = false;
      create.replaceChildren('Create a sandbox');
    }
  });
  main.replaceChildren(h('div', { class: 'scroll' }, form));
  document.title = 'New session · Harvest';
  call('GET', 'v1/images?limit=200').then(({ data }) => images.replaceChildren(...data.flatMap((i) => i.names).map((n) => h('option', { value: n }))), () => {});
  try {
    const secrets = (await call('GET', 'v1/secrets?limit=200')).data;
    const has = secrets.some((s) => s.keys.some((k) => keys.includes(k)));
    hint.hidden = has;
    if (!has && !t.agent) agent.value = 'scripted';
  } catch { // who may not read the secrets' names chooses without that help
    hint.hidden = true;
  }
}

async function route() {
  close();
  close = () => {};
  open(false);
  const id = current();
  showList();
  if (!id) {
    newSession();
    return;
  }
  try {
    const session = await call('GET', `v1/sessions/${id}`);
    if (current() !== id) return;
    document.title = `${session.title || 'New session'} · Harvest`;
    close = openChat(main, session, {
      changed, signIn: (p) => {
        close();
        signedOut(p);
      },
      again: (s) => {
        template = s;
        location.hash = '#/';
      },
    });
  } catch (p) {
    if (p.status === 401) signedOut(p);
    else main.replaceChildren(h('div', { class: 'scroll' }, problemBox(p, h('a', { class: 'button', href: '#/' }, 'New session'))));
  }
}

let timer;

async function begin() {
  try {
    const self = await call('GET', 'v1/account');
    side.querySelector('.who').textContent = self.user || self.account;
  } catch (p) {
    if (p.status === 401) signedOut(p);
    else {
      document.body.replaceChildren(h('main', { class: 'welcome' }, problemBox(p, button('Try again', () => location.reload()))));
    }
    return;
  }
  document.body.replaceChildren(button('To the content', () => main.focus(), { class: 'skip' }), menu, side, main);
  addEventListener('hashchange', route);
  addEventListener('keydown', (e) => { if (e.key === 'Escape') open(false); });
  await load();
  route();
  timer = setInterval(() => { if (!document.hidden) load(); }, 5000);
}

begin();
