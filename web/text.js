// Texts of files in the form of an editor, and back. A browser's text area has only newlines as line endings,
// so its content is merged with the original text.

const mark = '\ufeff'; // byte order mark

// shownOf returns a file's text in the editor's form.
export const shownOf = (text) => (text.startsWith(mark) ? text.slice(1) : text).replace(/\r\n?/g, '\n');

// pieces returns the lines of a text, each as [words, ending].
const pieces = (text) => [...text.matchAll(/([^\r\n]*)(\r\n|\r|\n|$)/g)].map((m) => [m[1], m[2]]).filter(([words, ending]) => words !== '' || ending !== '');

const most = 2000; // maximum of compared lines; the cost is quadratic

// matches returns, for each line of y, the index of the line of x that corresponds to it in a longest common
// subsequence, or -1. Of too many lines none corresponds.
export function matches(x, y) {
  const found = new Int32Array(y.length).fill(-1);
  if (x.length * y.length > most * most) return found;
  const width = y.length + 1;
  const table = new Uint32Array((x.length + 1) * width);
  for (let i = x.length - 1; i >= 0; i--) {
    for (let j = y.length - 1; j >= 0; j--) {
      table[i * width + j] = x[i] === y[j] ? table[(i + 1) * width + j + 1] + 1 : Math.max(table[(i + 1) * width + j], table[i * width + j + 1]);
    }
  }
  for (let i = 0, j = 0; i < x.length && j < y.length;) {
    if (x[i] === y[j]) found[j++] = i++;
    else if (table[(i + 1) * width + j] >= table[i * width + j + 1]) i++;
    else j++;
  }
  return found;
}

// merged returns the edited text with the byte order mark and the line endings of the original. A line that was edited
// keeps its ending; a new line gets the ending of most lines of the original.
export function merged(original, edited) {
  const begin = original.startsWith(mark) ? mark : '';
  const before = pieces(original.slice(begin.length));
  const after = pieces(edited);
  const counts = new Map();
  for (const [, ending] of before) if (ending) counts.set(ending, (counts.get(ending) ?? 0) + 1);
  const usual = [...counts].sort((a, b) => b[1] - a[1])[0]?.[0] ?? '\n';
  let start = 0;
  while (start < before.length && start < after.length && before[start][0] === after[start][0]) start++;
  let end = 0;
  while (end < before.length - start && end < after.length - start && before[before.length - 1 - end][0] === after[after.length - 1 - end][0]) end++;
  const found = matches(before.slice(start, before.length - end).map(([words]) => words), after.slice(start, after.length - end).map(([words]) => words));
  const limits = new Int32Array(found.length); // the next line of the original that corresponds to one
  for (let j = found.length - 1, limit = before.length - end; j >= 0; j--) {
    limits[j] = limit;
    if (found[j] >= 0) limit = start + found[j];
  }
  let next = 0; // the first line of the original after the last one that corresponds to a line
  const lines = after.map(([words, ending], at) => {
    let old = -1;
    if (at < start) old = at;
    else if (at >= after.length - end) old = before.length - (after.length - at);
    else if (found[at - start] >= 0) old = start + found[at - start];
    else if (next < limits[at - start]) old = next; // an edited line, not a new one
    if (old >= 0) next = old + 1;
    return words + (ending && ((old >= 0 && before[old][1]) || usual));
  });
  return begin + lines.join('');
}
