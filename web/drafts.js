// What a person has typed and neither sent nor saved. It survives a change of views and a reload of the page; what is only in a file's editor also asks
// before the tab is closed.

const memory = new Map(); // all drafts of this page; the browser's storage may be full or switched off
const prefix = 'draft:';

// kept returns a draft, '' if there is none.
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
    // It is in memory.
  }
}

// unsaved returns the names of drafts that begin so.
export function unsaved(start) {
  const names = new Set([...memory.keys()]);
  try {
    for (let i = 0; i < sessionStorage.length; i++) {
      const key = sessionStorage.key(i);
      if (key.startsWith(prefix)) names.add(key.slice(prefix.length));
    }
  } catch {
    // There is only the memory.
  }
  return [...names].filter((name) => name.startsWith(start));
}

export const files = 'file:'; // how names of drafts of files begin

addEventListener('beforeunload', (e) => {
  if (unsaved(files).length > 0) e.preventDefault();
});

// intent returns the idempotency key of a request that a person wants once. The same request has the same key until done is called, however often it
// is sent and whatever becomes of the answers.
export function intent(name, body) {
  const text = JSON.stringify(body);
  const stored = kept(`intent:${name}`);
  let known = null;
  try {
    known = stored && JSON.parse(stored);
  } catch {
    // It is of another version of the page.
  }
  if (known?.text !== text) {
    known = { text, key: newKey() };
    keep(`intent:${name}`, JSON.stringify(known));
  }
  return { key: known.key, done: () => keep(`intent:${name}`, '') };
}

// newKey returns a random idempotency key.
export const newKey = () => Array.from(crypto.getRandomValues(new Uint32Array(4)), (n) => n.toString(16)).join('-');
