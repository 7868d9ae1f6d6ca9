// Texts of files in the form of an editor, and back. A browser's text area has only newlines as line endings,
// so its content is merged with the original text.

const mark = '\ufeff'; // byte order mark

// shownOf returns a file's text in the editor's form.
export const shownOf = (text) => (text.startsWith(mark) ? text.slice(1) : text).replace(/\r\n?/g, '\n');

// pieces returns the lines of a text, each as [words, ending].
const pieces = (text) => [...text.matchAll(/([^\r\n]*)(\r\n|\r|\n|$)/g)].map((m) => [m[1], m[2]]).filter(([words, ending]) => words !== '' || ending !== '');

// merged returns the edited text with the byte order mark and the line endings of the original. A new line gets
// the ending of most lines of the original.
export function merged(original, edited) {
  const begin = original.startsWith(mark) ? mark : '';
  const before = pieces(original.slice(begin.length));
  const after = pieces(edited);
  const counts = new Map();
  for (const [, ending] of before) if (ending) counts.set(ending, (counts.get(ending) ?? 0) + 1);
  const usual = [...counts].sort((a, b) => b[1] - a[1])[0]?.[0] ?? '\n';
  const same = (a, b) => a[0] === b[0] && (a[1] === '') === (b[1] === '');
  let start = 0;
  while (start < before.length && start < after.length && same(before[start], after[start])) start++;
  let end = 0;
  while (end < before.length - start && end < after.length - start && same(before[before.length - 1 - end], after[after.length - 1 - end])) end++;
  const lines = [
    before.slice(0, start), after.slice(start, after.length - end).map(([words, ending]) => [words, ending && usual]), before.slice(before.length - end),
  ].flat();
  return begin + lines.map(([words, ending]) => words + ending).join('');
}
