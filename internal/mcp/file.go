package mcp

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/RelevanceAI/harvest/client/errors"
)

// maxText is the size limit of files that read, write and edit handle, in bytes.
const maxText = 8 << 20

// maxPicture is the size limit of pictures, in bytes.
const maxPicture = 2 << 20

type readIn struct {
	Environment string `json:"environment"`
	Path        string `json:"path"`
	Offset      int    `json:"offset,omitempty"`
	Limit       int    `json:"limit,omitempty"`
}

func (readIn) arguments() arguments {
	return arguments{
		"environment": "name of the environment",
		"path":        "file, absolute or below the working directory",
		"offset":      "first line, counted from 1 (default: 1)",
		"limit":       "number of lines (default: as many as fit, at most 24 KiB)",
	}
}

type writeIn struct {
	Environment string `json:"environment"`
	Path        string `json:"path"`
	Content     string `json:"content"`
	Explanation string `json:"explanation"`
}

func (writeIn) arguments() arguments {
	return arguments{
		"environment": "name of the environment",
		"path":        "file, absolute or below the working directory; missing directories are created",
		"content":     "the whole new content",
		"explanation": "one line that says what the change is for; it becomes the message of the commit",
	}
}

type editIn struct {
	Environment string `json:"environment"`
	Path        string `json:"path"`
	OldText     string `json:"old_text"`
	NewText     string `json:"new_text"`
	ReplaceAll  bool   `json:"replace_all,omitempty"`
	Explanation string `json:"explanation"`
}

func (editIn) arguments() arguments {
	return arguments{
		"environment": "name of the environment",
		"path":        "file, absolute or below the working directory",
		"old_text":    "the text to replace, exactly as in the file, with enough context to be unique",
		"new_text":    "the text in its place",
		"replace_all": "replace every occurrence",
		"explanation": "one line that says what the change is for; it becomes the message of the commit",
	}
}

type findIn struct {
	Environment string `json:"environment"`
	Path        string `json:"path,omitempty"`
	Glob        string `json:"glob,omitempty"`
	Offset      int    `json:"offset,omitempty"`
}

func (findIn) arguments() arguments {
	return arguments{
		"environment": "name of the environment",
		"path":        "directory, absolute or below the working directory (default: the working directory)",
		"glob": "find files below the directory by name, such as *.go or src/**/*.ts; files that git ignores are " +
			"left out",
		"offset": "number of entries to skip",
	}
}

type searchIn struct {
	Environment string `json:"environment"`
	Pattern     string `json:"pattern"`
	Path        string `json:"path,omitempty"`
	Glob        string `json:"glob,omitempty"`
	IgnoreCase  bool   `json:"ignore_case,omitempty"`
	Offset      int    `json:"offset,omitempty"`
}

func (searchIn) arguments() arguments {
	return arguments{
		"environment": "name of the environment",
		"pattern":     "extended regular expression",
		"path":        "directory, absolute or below the working directory (default: the working directory)",
		"glob":        "search only files with such a name, such as *.go",
		"ignore_case": "upper and lower case are the same",
		"offset":      "number of matches to skip",
	}
}

// fileTools are the tools that work with files.
type fileTools struct{ *server }

func (s fileTools) add(to tools) {
	add(to, "read", "Read a file",
		`Read a text file of an environment, or a part of it by lines, or a picture. Long files are cut; the `+
			`answer says how to read the rest.`,
		reads, s.read)
	add(to, "write", "Write a file",
		`Create a file in an environment, or replace all of its content. The change is committed with the `+
			`explanation as its message. For a change of a part, use edit.`,
		changes, s.write)
	add(to, "edit", "Edit a file",
		`Replace a text in a file of an environment. The old text must occur exactly once, unless replace_all is `+
			`true. The change is committed with the explanation as its message.`,
		changes, s.edit)
	add(to, "list", "List files",
		`List a directory of an environment, or find files by name with glob.`,
		reads, s.files)
	add(to, "search", "Search in files",
		`Search files of an environment for a regular expression. Returns FILE:LINE:TEXT for each match. Files `+
			`that git ignores and binary files are left out.`,
		reads, s.search)
}

// content returns a file of at most limit bytes.
func (s *server) content(ctx context.Context, at *place, name string, limit int64) ([]byte, error) {
	file, err := s.Client.ReadFile(ctx, at.box.ID, at.path(name), 0, -1)
	if err != nil {
		return nil, fileError(err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = errors.Remedy(errors.Newf(errors.Invalid, "%s: larger than %d MiB", name, limit>>20),
			"use a command with run, such as head, tail or sed")
	}
	return text, err
}

// fileError gives an error about a path a next step.
func fileError(err error) error {
	if errors.KindOf(err) == errors.NotFound || errors.KindOf(err) == errors.Invalid {
		return errors.Remedy(errors.Newf(errors.KindOf(err), "%s", errors.Message(err)),
			"call list for the files of a directory")
	}
	return err
}

func (s fileTools) read(ctx context.Context, _ progress, in readIn) (answer, error) {
	at, err := s.enter(ctx, in.Environment)
	if err != nil {
		return answer{}, err
	}
	text, err := s.content(ctx, at, in.Path, maxText)
	if err != nil {
		return answer{}, err
	}
	if bytes.IndexByte(text[:min(len(text), 8000)], 0) >= 0 {
		return picture(at, in.Path, text)
	}
	a := answer{at: at}
	first := max(in.Offset, 1)
	body, last, total := lines(text, first, in.Limit)
	a.text = body
	switch {
	case total == 0:
		a.notes = append(a.notes, "the file is empty")
	case first > total:
		return answer{}, errors.Remedy(errors.Newf(errors.Invalid, "%s has %d lines", in.Path, total),
			"give a smaller offset")
	case first > 1 || last < total:
		a.notes = append(a.notes, fmt.Sprintf("lines %d to %d of %d", first, last, total))
	}
	if last < total && in.Limit == 0 {
		a.notes = append(a.notes, fmt.Sprintf(`the rest: read {"environment": %q, "path": %q, "offset": %d}`, at.name,
			in.Path, last+1))
	}
	return a, nil
}

// lines returns lines of a text from first on: at most limit, if it is not 0, and at most pageBytes, but a whole line.
// A longer line is cut.
func lines(text []byte, first, limit int) (body string, last, total int) {
	var b strings.Builder
	scan := bufio.NewScanner(bytes.NewReader(text))
	scan.Buffer(nil, len(text)+1)
	full := false
	for scan.Scan() {
		total++
		line := scan.Bytes()
		full = full || b.Len() > 0 && b.Len()+len(line) > pageBytes || limit > 0 && total >= first+limit
		if total < first || full {
			continue
		}
		if len(line) > pageBytes {
			b.Write(line[:pageBytes])
			fmt.Fprintf(&b, " … %d bytes of this line are left out", len(line)-pageBytes)
		} else {
			b.Write(line)
		}
		b.WriteByte('\n')
		last = total
	}
	return b.String(), last, total
}

// picture returns a file that is not text, if clients can show it.
func picture(at *place, name string, data []byte) (answer, error) {
	media := http.DetectContentType(data)
	if !strings.HasPrefix(media, "image/") || len(data) > maxPicture {
		return answer{}, errors.Remedy(errors.Newf(errors.Unsupported, "%s: %d bytes of %s, not text", name, len(data),
			media), "use a command with run, such as file, xxd or strings")
	}
	return answer{at: at, image: &sdk.ImageContent{Data: data, MIMEType: media}}, nil
}

func (s fileTools) write(ctx context.Context, _ progress, in writeIn) (answer, error) {
	at, err := s.enter(ctx, in.Environment)
	if err != nil {
		return answer{}, err
	}
	if len(in.Content) > maxText {
		return answer{}, errors.Remedy(errors.Newf(errors.Invalid, "the content is larger than %d MiB", maxText>>20),
			"write it in parts with run")
	}
	defer s.Locks.lock(at.box.ID)()
	if err := s.put(ctx, at, in.Path, in.Content, ""); err != nil {
		return answer{}, err
	}
	a := answer{at: at, text: fmt.Sprintf("Wrote %d bytes to %s.", len(in.Content), at.path(in.Path))}
	return s.after(ctx, a, in.Explanation, "write", ""), nil
}

// put writes a file as the user of the environment's commands does. sum is "", or the checksum that it must have.
func (s fileTools) put(ctx context.Context, at *place, name, content, sum string) error {
	_, err := s.run(ctx, at.box.ID, script{name: "write", args: []string{at.path(name)}, stdin: content,
		env: map[string]string{"SUM": sum}})
	return err
}

func (s fileTools) edit(ctx context.Context, _ progress, in editIn) (answer, error) {
	at, err := s.enter(ctx, in.Environment)
	if err != nil {
		return answer{}, err
	}
	defer s.Locks.lock(at.box.ID)()
	text, err := s.content(ctx, at, in.Path, maxText)
	if err != nil {
		return answer{}, err
	}
	changed, n, err := replace(string(text), in)
	if err != nil {
		return answer{}, err
	}
	sum := sha256.Sum256(text)
	if err := s.put(ctx, at, in.Path, changed, hex.EncodeToString(sum[:])); err != nil {
		return answer{}, err
	}
	a := answer{at: at, text: fmt.Sprintf("Replaced %d occurrence(s) in %s.", n, at.path(in.Path))}
	return s.after(ctx, a, in.Explanation, "edit", ""), nil
}

// replace returns the text after an edit, and the number of changes.
func replace(text string, in editIn) (string, int, error) {
	n := strings.Count(text, in.OldText)
	switch {
	case in.OldText == "":
		return "", 0, errors.Remedy(errors.Newf(errors.Invalid, "old_text is empty"), "use write for a new file")
	case in.OldText == in.NewText:
		return "", 0, errors.Remedy(errors.Newf(errors.Invalid, "old_text and new_text are the same"),
			"give the new text")
	case n == 0:
		return "", 0, errors.Remedy(errors.Newf(errors.Conflict, "%s does not contain old_text", in.Path),
			"read the file, and copy the text exactly, with its spaces and line ends")
	case n > 1 && !in.ReplaceAll:
		return "", 0, errors.Remedy(errors.Newf(errors.Conflict, "%s contains old_text %d times", in.Path, n),
			"give more lines around it, or pass replace_all: true")
	}
	return strings.ReplaceAll(text, in.OldText, in.NewText), n, nil
}

// pageLines is the number of entries in an answer of list and search.
const pageLines = 200

func (s fileTools) files(ctx context.Context, _ progress, in findIn) (answer, error) {
	at, err := s.enter(ctx, in.Environment)
	if err != nil {
		return answer{}, err
	}
	dir := at.path(in.Path)
	if in.Glob != "" {
		out, err := s.run(ctx, at.box.ID, script{name: "find", args: []string{dir},
			env: page(in.Offset, map[string]string{"GLOB": in.Glob})})
		if err != nil {
			return answer{}, err
		}
		return paged(answer{at: at}, out, in.Offset, "files"), nil
	}
	all, err := s.Client.ListFiles(ctx, at.box.ID, dir)
	if err != nil {
		return answer{}, fileError(err)
	}
	var b strings.Builder
	fmt.Fprintln(&b, len(all))
	for i := min(in.Offset, len(all)); i < min(in.Offset+pageLines, len(all)); i++ {
		switch f := all[i]; f.Kind {
		case "directory":
			fmt.Fprintf(&b, "%s/\n", f.Name)
		case "symlink":
			fmt.Fprintf(&b, "%s -> %s\n", f.Name, f.Link)
		default:
			fmt.Fprintf(&b, "%s  %d bytes\n", f.Name, f.Size)
		}
	}
	return paged(answer{at: at}, b.String(), in.Offset, "entries of "+dir), nil
}

func (s fileTools) search(ctx context.Context, _ progress, in searchIn) (answer, error) {
	at, err := s.enter(ctx, in.Environment)
	if err != nil {
		return answer{}, err
	}
	fold := ""
	if in.IgnoreCase {
		fold = "yes"
	}
	out, err := s.run(ctx, at.box.ID, script{name: "search", args: []string{at.path(in.Path)}, env: page(in.Offset,
		map[string]string{"PATTERN": in.Pattern, "GLOB": in.Glob, "FOLD": fold})})
	if err != nil {
		return answer{}, err
	}
	return paged(answer{at: at}, out, in.Offset, "matches"), nil
}

// page adds the first and the last line of a page to the environment of a script.
func page(offset int, env map[string]string) map[string]string {
	env["FIRST"], env["LAST"] = strconv.Itoa(max(offset, 0)+1), strconv.Itoa(max(offset, 0)+pageLines)
	return env
}

// paged makes the output of a script an answer: the number of all entries, then those of the page.
func paged(a answer, out string, offset int, what string) answer {
	first, rest, _ := strings.Cut(out, "\n")
	total, _ := strconv.Atoi(strings.TrimSpace(first)) // written by the script
	shown := strings.Count(rest, "\n")
	if len(rest) > pageBytes {
		rest = rest[:strings.LastIndexByte(rest[:pageBytes], '\n')+1]
		shown = strings.Count(rest, "\n")
	}
	a.text = rest
	switch {
	case total == 0:
		a.notes = append(a.notes, "no "+what)
	case offset > 0 || shown < total:
		a.notes = append(a.notes, fmt.Sprintf("%d to %d of %d %s", offset+1, offset+shown, total, what))
	default:
		a.notes = append(a.notes, fmt.Sprintf("%d %s", total, what))
	}
	if next := offset + shown; next < total {
		a.notes = append(a.notes, fmt.Sprintf("the next ones: offset %d", next))
	}
	return a
}
