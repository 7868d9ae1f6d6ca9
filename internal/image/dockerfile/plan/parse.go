package plan

import (
	"bytes"
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/distribution/reference"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/dockerfile/files"
)

const (
	maxText   = 1 << 20 // bytes of a Dockerfile
	maxStages = 200
	maxSteps  = 2000 // instructions of all stages together
)

// document is a parsed Dockerfile.
type document struct {
	text   string
	stages []instructions.Stage
	what   string          // its name in errors
	first  int             // lines before the user's first
	words  map[string]word // names of images without variables, by normalised name
	epoch  time.Time       // SOURCE_DATE_EPOCH; zero if not set
}

// word is the name of an image in the text.
type word struct {
	text string
	line int
}

// read parses the Dockerfile of a spec, or its commands on top of its base.
func read(spec image.Spec) (*document, error) {
	d := &document{what: "the Dockerfile", words: map[string]word{}}
	text := spec.Dockerfile
	if text == "" && len(spec.Commands) > 0 {
		d.what, d.first = "the commands", 1
		base := cmp.Or(spec.Base, "base")
		if strings.ContainsAny(base, " \t\r\n$\\") {
			return nil, errors.Newf(errors.Invalid, "invalid base %.100q", base)
		}
		text = "FROM " + base + "\n" + strings.Join(spec.Commands, "\n") + "\n"
	}
	if err := d.check(text); err != nil {
		return nil, err
	}
	result, err := parser.Parse(strings.NewReader(text))
	if err != nil {
		return nil, d.syntax(err)
	}
	var globals []instructions.ArgCommand
	if d.stages, globals, err = instructions.Parse(result.AST, unlinted()); err != nil {
		return nil, d.syntax(err)
	}
	d.text = text
	if d.epoch, err = d.epochOf(globals, shell.NewLex(result.EscapeToken), spec.Args); err != nil {
		return nil, err
	}
	return d, d.checkStages()
}

// unlinted returns a linter that reports nothing. BuildKit's parser panics without one if a comment configures it.
func unlinted() *linter.Linter { return linter.New(&linter.Config{SkipAll: true}) }

// remedies say what to do about an error of the converter, by a part of its text.
var remedies = [][2]string{
	{"circular dependency", "copy from stages that do not need this one"},
	{"should not be blank", "give the ARG a default before the first FROM, or a value with --build-arg"},
	{"URL for COPY", "use ADD"},
	{"git ref for COPY", "use ADD"},
	{"chmod parameter", "write --chmod=755 or --chmod=u=rwX,go=rX"},
	{"checksum", "write --checksum=sha256: and 64 hex digits, for the URL of an ADD"},
	{"when used with --link", "give the numbers of the user and group, or leave --link out"},
	{"invalid mount target", "write --mount=type=cache,target=/path"},
	{"containerPort", "give a number such as 8080, 53/udp or 3000-3005"},
	{"invalid port", "give a number such as 8080, 53/udp or 3000-3005"},
}

// checkCommand refuses instructions about which the converter would report an error without a line. It records the
// names of images.
func (d *document) checkCommand(c instructions.Command) error {
	line := lineOf(c.Location())
	var names []string
	switch cmd := c.(type) {
	case *instructions.CopyCommand:
		names = append(names, cmd.From)
	case *instructions.RunCommand:
		if len(cmd.CmdLine) == 0 || cmd.CmdLine[0] == "" {
			return d.errorf(line, "RUN has no command")
		}
		for _, m := range instructions.GetMounts(cmd) {
			names = append(names, m.From)
		}
	}
	for _, name := range names {
		d.addWord(name, line)
		if strings.ContainsRune(name, '$') {
			return errors.Remedy(d.errorf(line, "from=%.100q: variables are not expanded there", name),
				"give the image a name of its own first: FROM … AS name")
		}
		if i, err := strconv.Atoi(name); err == nil && (i < 0 || i >= len(d.stages)) {
			return errors.Remedy(d.errorf(line, "there is no stage %s", name),
				"give the stages names, or count them from 0")
		}
	}
	return nil
}

// addWord records the name of an image. The converter normalises names, and the library also knows other forms.
func (d *document) addWord(text string, line int) {
	ref, err := reference.ParseNormalizedNamed(text)
	if err != nil {
		return
	}
	name := reference.TagNameOnly(ref).String()
	if _, again := d.words[name]; !again {
		d.words[name] = word{text, line}
	}
}

// written returns the name of an image as its author wrote it, and its line, or 0. A name with variables has none: for
// such, it is the shortest form of the normalised name.
func (d *document) written(normal string) (string, int) {
	if w, ok := d.words[normal]; ok {
		return w.text, w.line
	}
	ref, err := reference.ParseNormalizedNamed(normal)
	if err != nil {
		return normal, 0
	}
	return strings.TrimSuffix(reference.FamiliarString(ref), ":latest"), 0
}

// aim makes a stage, by name or number, the one to build, and returns its name. The converter knows stages by name
// only. Without one, the stage becomes the last in the text: stages need nothing of later ones.
func (d *document) aim(target string) (string, error) {
	if target == "" {
		return "", nil
	}
	var names []string
	for i, s := range d.stages {
		if strings.EqualFold(s.Name, target) {
			return target, nil
		}
		names = append(names, cmp.Or(s.Name, strconv.Itoa(i)))
	}
	if i, err := strconv.Atoi(target); err == nil && i >= 0 && i < len(d.stages) {
		if i+1 < len(d.stages) {
			lines := strings.SplitAfter(d.text, "\n")
			d.text = strings.Join(lines[:lineOf(d.stages[i+1].Location)-1], "")
		}
		return d.stages[i].Name, nil
	}
	return "", errors.Remedy(errors.Newf(errors.Invalid, "there is no stage %.100q in %s", target, d.what),
		"the stages are %s", strings.Join(names, ", "))
}

// explain explains an error of the converter: one of Harvest's, which passed through it, or its own. line is used if
// the error has none.
func (d *document) explain(err error, line int) error {
	if errors.KindOf(err) == errors.Internal {
		return d.syntax(err)
	}
	return d.at(cmp.Or(located(err), line), err)
}

// check rejects texts that are not a Dockerfile before they are parsed.
func (d *document) check(text string) error {
	if len(text) > maxText {
		err := errors.Newf(errors.Invalid, "%s has %d bytes, more than the maximum of %d", d.what,
			len(text), maxText)
		return errors.Remedy(err, "put files into the build context and COPY them")
	}
	if i := strings.IndexByte(text, 0); i >= 0 {
		return errors.Remedy(d.errorf(lineAt(text, i), "there is a NUL byte"),
			"give the Dockerfile as text, not a program or an archive")
	}
	if !utf8.ValidString(text) {
		i := strings.IndexRune(text, utf8.RuneError)
		return errors.Remedy(d.errorf(lineAt(text, max(i, 0)), "there are bytes that are not UTF-8"),
			"save the Dockerfile as UTF-8")
	}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			return nil
		}
	}
	return errors.Remedy(errors.Newf(errors.Invalid, "%s is empty", d.what), "begin it with FROM and an image")
}

func lineAt(text string, i int) int { return 1 + bytes.Count([]byte(text[:i]), []byte("\n")) }

func (d *document) checkStages() error {
	if len(d.stages) == 0 {
		return errors.Remedy(errors.Newf(errors.Invalid, "%s has no FROM", d.what), "begin it with FROM and an image")
	}
	if d.first > 0 && len(d.stages) > 1 {
		return errors.Remedy(d.errorf(lineOf(d.stages[1].Location), "commands on top of an image cannot have a FROM"),
			"write a Dockerfile instead")
	}
	steps := 0
	for _, s := range d.stages {
		steps += len(s.Commands)
		d.addWord(s.BaseName, lineOf(s.Location))
		for _, c := range s.Commands {
			if err := d.checkCommand(c); err != nil {
				return err
			}
		}
	}
	if len(d.stages) > maxStages || steps > maxSteps {
		return errors.Newf(errors.Invalid, "%s has %d stages with %d instructions; the maximum is %d with %d", d.what,
			len(d.stages), steps, maxStages, maxSteps)
	}
	return nil
}

// syntax explains an error of the parser.
func (d *document) syntax(err error) error {
	line := located(err)
	text, remedy := err.Error(), "see https://docs.docker.com/reference/dockerfile/ for what can stand there"
	if _, rest, ok := strings.Cut(text, "dockerfile parse error on line "); ok {
		if _, message, ok := strings.Cut(rest, ": "); ok {
			text = message
		}
	}
	if _, meant, ok := strings.Cut(text, " (did you mean "); ok {
		remedy = "write " + strings.TrimSuffix(meant, "?)")
		text, _, _ = strings.Cut(text, " (did you mean ")
	}
	for _, r := range remedies {
		if strings.Contains(text, r[0]) {
			remedy = r[1]
			break
		}
	}
	return errors.Remedy(d.errorf(line, "%s", files.Clip(text)), "%s", remedy)
}

// located returns the line of an error of BuildKit's packages, or 0.
func located(err error) int {
	var at *parser.LocationError
	if errors.As(err, &at) && len(at.Locations) > 0 {
		return lineOf(at.Locations[len(at.Locations)-1])
	}
	return 0
}

// errorf returns an Invalid error with the line.
func (d *document) errorf(line int, format string, args ...any) error {
	return d.at(line, errors.Newf(errors.Invalid, format, args...))
}

// at adds the line of the Dockerfile, or the number of the command, to err.
func (d *document) at(line int, err error) error {
	if err == nil {
		return nil
	}
	where := d.what
	if line > d.first {
		where = fmt.Sprintf("line %d of %s", line-d.first, d.what)
	}
	if errors.KindOf(err) == errors.Internal {
		return errors.Wrapf(err, "%s", where)
	}
	return errors.Explainf(err, errors.KindOf(err), "%s: %s", where, errors.Message(err))
}

func lineOf(ranges []parser.Range) int {
	if len(ranges) == 0 {
		return 0
	}
	return ranges[0].Start.Line
}
