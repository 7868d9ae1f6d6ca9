// Drafts: typed text that was neither sent nor saved. A draft survives a change of views and a reload of the
// page. A draft that exists only in a file's editor also asks for confirmation before the tab is closed.

const memory = new Map(); // all drafts of this page; the browser's storage may be full or disabled
const prefix = 'draft:';

// kept returns a draft, '' if it does not exist.
export function kept(name) {
  if (memory.has(name)) return memory.get(name);
  try {
    return sessionStorage.getItem(prefix + name) ?? '';
  } catch {
    return '';
  }
}

// keep stores a draft; '' removes it.
export function keep(name, text) {
  if (text === '') memory.delete(name);
  else memory.set(name, text);
  try {
    if (text === '') sessionStorage.removeItem(prefix + name);
    else sessionStorage.setItem(prefix + name, text);
  } catch {
    // The draft is in memory.
  }
}

// unsaved returns the names of drafts that begin with start.
export function unsaved(start) {
  const names = new Set([...memory.keys()]);
  try {
    for (let i = 0; i < sessionStorage.length; i++) {
      const key = sessionStorage.key(i);
      if (key.startsWith(prefix)) names.add(key.slice(prefix.length));
    }
  } catch {
    // Only the memory is available.
  }
  return [...names].filter((name) => name.startsWith(start));
}

export const files = 'file:'; // name prefix of the drafts of files

// trimmed returns a prompt without empty lines before it and without space after it. Its first line keeps its indentation.
export const trimmed = (text) => text.replace(/^(?:[^\S\n]*\n)+/, '').trimEnd();

// promptOf is the name of the draft of a session's half-typed prompt.
export const promptOf = (session) => `prompt:${session}`;

// preference returns a choice of the person for this browser, '' for none. prefer stores it, where there is storage.
export function preference(name) {
  try {
    return localStorage.getItem(`harvest:${name}`) ?? '';
  } catch {
    return '';
  }
}

export function prefer(name, value) {
  try {
    if (value) localStorage.setItem(`harvest:${name}`, value);
    else localStorage.removeItem(`harvest:${name}`);
  } catch {
    // The choice lasts as long as the view.
  }
}

const unsent = 'unsent';

// left returns the prompts that an ended session could not send, and its half-typed one, which are for the next session.
export const left = () => JSON.parse(kept(unsent) || '{"prompts":[],"typed":""}');

// leave stores prompts for the next session.
export const leave = (prompts, typed) => keep(unsent, prompts.length > 0 || typed ? JSON.stringify({ prompts, typed }) : '');

addEventListener('beforeunload', (e) => {
  if (unsaved(files).length > 0) e.preventDefault();
});

// intent returns the idempotency key of a request that must take effect once. The same request has the same key
// until done is called, however often it is sent and whatever its answers are.
export function intent(name, body) {
  const text = JSON.stringify(body);
  const stored = kept(`intent:${name}`);
  let known = null;
  try {
    known = stored && JSON.parse(stored);
  } catch {
    // The entry is from another version of the page.
  }
  if (known?.text !== text) {
    known = { text, key: newKey() };
    keep(`intent:${name}`, JSON.stringify(known));
  }
  return { key: known.key, done: () => keep(`intent:${name}`, '') };
}

// newKey returns a random idempotency key.
export const newKey = () => Array.from(crypto.getRandomValues(new Uint32Array(4)), (n) => n.toString(16)).join('-');
