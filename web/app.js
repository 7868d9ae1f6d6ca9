// The page: sign-in, the sidebar, and the view that the address names.

import { call, poll, single } from './api.js';
import { button, h, own, problemBox } from './dom.js';
import { keyboard, takeView } from './focus.js';
import { lists, openList } from './lists.js';
import { openNew } from './new.js';
import { sessionList } from './sidelist.js';
import { setTheme, theme, themes } from './theme.js';

// The conversation, with its Markdown libraries, is most of the page and is not needed at first. It loads once
// the page is usable.
const chat = () => import('./chat.js');

const main = h('main', { id: 'main', tabindex: '-1' });
const list = sessionList({ shown: () => current(), waits: (id) => inbox?.waits(id) });
const menu = button('Sessions', () => open(!side.classList.contains('open')), { class: 'menu', 'aria-expanded': 'false', 'aria-controls': 'side' });
const side = h('nav', { id: 'side', 'aria-label': 'Sessions' },
  h('a', { class: 'brand', href: '#/' }, h('img', { src: own('icon.svg'), alt: '', width: '24', height: '24' }), 'Harvest'),
  h('a', { class: 'button primary', href: '#/' }, 'New session'), list.parts,
  h('details', { class: 'more' }, h('summary', null, 'Everything else'), h('ul', null, Object.entries(lists).map(([id, name]) => h('li', null, h('a', { href: `#/${id}` }, name))))),
  h('label', { class: 'theme' }, h('span', null, 'Theme'), h('select', { onchange: (e) => setTheme(e.target.value) }, Object.entries(themes).map(([id, name]) => h('option', { value: id, selected: id === theme() }, name)))),
  h('footer', null, h('span', { class: 'who' }), button('Sign out', signOut, { class: 'small' })));

let close = () => {};
let template = null; // settings for the next session
let routes = 0; // views that were opened

// open shows or hides the list on a narrow window, where it covers the view.
function open(on) {
  const was = side.classList.contains('open');
  if (on === was) return;
  const focused = side.contains(document.activeElement);
  side.classList.toggle('open', on);
  menu.setAttribute('aria-expanded', String(on));
  main.inert = on;
  if (on) side.querySelector('a').focus();
  else if (focused) menu.focus();
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

// After signing in, the page goes to the address that was opened before. The sign-in link may open in another
// tab.
const wanted = 'harvest:wanted';
const wantedFor = 15 * 60e3; // milliseconds

function want(hash) {
  if (hash.length <= 2) return;
  try {
    localStorage.setItem(wanted, JSON.stringify({ hash, at: Date.now() }));
  } catch { /* no storage: start at the default view */ }
}

function goWanted() {
  try {
    const found = JSON.parse(localStorage.getItem(wanted));
    localStorage.removeItem(wanted);
    if (found && location.hash.length <= 2 && Date.now() - found.at < wantedFor && found.hash.startsWith('#/')) history.replaceState(null, '', found.hash);
  } catch { /* as above */ }
}

// signedOut shows the one way to sign in that the server offers: the identity provider, or else a sign-in link.
async function signedOut() {
  stopPoll();
  inbox?.close();
  inbox = null;
  want(location.hash);
  document.title = 'Sign in · Harvest';
  const next = h('div');
  document.body.replaceChildren(h('main', { class: 'welcome', id: 'main' }, h('img', { src: own('icon.svg'), alt: '', width: '48', height: '48' }), h('h1', null, 'Harvest'), h('p', null, 'You are not signed in.'), next));
  const { paths } = await call('GET', 'v1/openapi.json').catch(() => ({})); // without it, a link works
  if (paths?.['/sign-in/oidc']) next.replaceChildren(h('a', { class: 'button primary', href: 'sign-in/oidc' }, 'Sign in'));
  else next.replaceChildren(h('p', null, 'Create a sign-in link, and open it in this browser:'), h('pre', null, 'harvest key link'));
}

const ask = () => call('GET', 'v1/sessions?all=true&limit=200');

const load = single(async () => {
  try {
    const asked = early ?? ask();
    early = null;
    const { data, next_cursor: more } = await asked;
    const pinned = more ? (await call('GET', 'v1/sessions?all=true&pinned=true&limit=200')).data : [];
    list.set([...data, ...pinned.filter((p) => !data.some((s) => s.id === p.id))]);
  } catch (p) {
    if (p.status === 401) {
      close();
      signedOut();
    } else list.problem(problemBox(p));
  }
});

const current = () => /^#\/s\/(ses_\w+)/.exec(location.hash)?.[1];

// changed keeps the list in step with the open session.
function changed(id, status, title) {
  if (!list.changed(id, status, title)) load();
}

// route shows the view in the address: #/s/SESSION/VIEW, #/b/SANDBOX/VIEW, #/LIST, or the form for a new
// session.
async function route() {
  const [, kind, id, tab] = /^#\/(\w*)\/?(\w*)\/?(\w*)$/.exec(location.hash) ?? ['', '', '', ''];
  if (id && close.address === `#/${kind}/${id}`) { // another view of the open object
    close.show(tab);
    return;
  }
  close();
  close = () => {};
  open(false);
  list.draw();
  const turn = ++routes;
  const view = await show(kind, id, tab);
  // The focus is at the beginning of the new view. When the page is opened, it stays where the browser puts it.
  if (turn > 1 && turn === routes) takeView(view);
}

// show fills main with a view. It returns the element that the focus goes to; undefined is the heading.
async function show(kind, id, tab) {
  const signIn = () => {
    close();
    signedOut();
  };
  for (const a of side.querySelectorAll('.more a')) {
    if (a.getAttribute('href') === `#/${kind}`) a.setAttribute('aria-current', 'page');
    else a.removeAttribute('aria-current');
  }
  if (kind in lists) {
    side.querySelector('.more').open = true;
    close = openList(main, kind, { signIn });
    return undefined;
  }
  if (kind === 'b' && id) {
    const { openBox } = await import('./box.js');
    if (location.hash.startsWith(`#/b/${id}`)) close = openBox(main, id, { signIn, tab });
    return undefined;
  }
  if (kind === 's' && id) {
    await openSession(id, tab, signIn);
    return keyboard() ? main.querySelector('.composer:not([hidden]) textarea') ?? undefined : undefined;
  }
  const settings = template ?? {};
  template = null;
  const here = location.hash;
  await openNew(main, settings, { signIn, still: () => location.hash === here && main.isConnected, created: (made) => {
    list.add(made);
    location.hash = `#/s/${made.id}`;
  } });
  return keyboard() ? main.querySelector('[name=prompt]') ?? undefined : undefined;
}

async function openSession(id, tab, signIn) {
  try {
    const [session, { openChat }] = await Promise.all([call('GET', `v1/sessions/${id}`), chat()]);
    if (current() !== id) return;
    close = openChat(main, session, {
      changed, signIn, tab, labelled: load, again: (s) => {
        template = s;
        location.hash = '#/';
      },
    });
  } catch (p) {
    if (p.status === 401) signIn(p);
    else {
      document.title = 'Session · Harvest';
      main.replaceChildren(h('div', { class: 'scroll' }, h('h1', null, 'Session'), problemBox(p, h('a', { class: 'button', href: '#/' }, 'New session'))));
    }
  }
}

let stopPoll = () => {};
let inbox = null;
const bell = h('div', { class: 'inbox' });

// openBell shows the inbox, which is not needed at first.
async function openBell() {
  const { openInbox } = await import('./inbox.js');
  inbox = openInbox(bell, { shown: current, changed: list.draw, signIn: () => {
    close();
    signedOut();
  } });
}
let early = null; // the first request for the sessions

// begin sends the first requests of the page at once, and shows the page as soon as the user is known.
async function begin() {
  early = ask();
  early.catch(() => {}); // load reports the error
  if (current()) chat().catch(() => {}); // openSession reports the error
  try {
    const self = await call('GET', 'v1/account');
    side.querySelector('.who').textContent = self.user || self.account;
  } catch (p) {
    if (p.status === 401) signedOut();
    else {
      document.body.replaceChildren(h('main', { class: 'welcome' }, problemBox(p, button('Try again', () => location.reload()))));
    }
    return;
  }
  goWanted();
  document.body.replaceChildren(button('To the content', () => main.focus(), { class: 'skip' }), menu, bell, side, main);
  addEventListener('hashchange', route);
  addEventListener('keydown', (e) => { if (e.key === 'Escape') open(false); });
  document.body.addEventListener('click', (e) => { if (!side.contains(e.target) && !menu.contains(e.target)) open(false); });
  matchMedia('(max-width: 46rem)').addEventListener('change', () => open(false));
  await Promise.all([load(), route()]);
  performance.mark('interactive');
  import('./shortcuts.js').then(({ listen }) => listen({ sessions: list.sessions, shown: current })).catch(() => {}); // all of it has a control, too
  openBell().catch(() => {}); // the list of sessions shows the same, by session
  stopPoll = poll(load, 5000);
  chat().catch(() => {});
}

begin();
