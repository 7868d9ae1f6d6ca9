package dockerfile

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/image"
)

const (
	maxText   = 1 << 20 // bytes of a Dockerfile
	maxStages = 200
	maxSteps  = 2000 // instructions of all stages together
)

// document is a parsed Dockerfile.
type document struct {
	stages  []instructions.Stage
	globals []instructions.ArgCommand // ARGs before the first FROM
	lex     *shell.Lex
	what    string // its name in errors
	first   int    // lines before the user's first
}

// read parses the Dockerfile of a spec, or its commands on top of its base.
func read(spec image.Spec) (*document, error) {
	d := &document{what: "the Dockerfile"}
	text := spec.Dockerfile
	if text == "" && len(spec.Commands) > 0 {
		d.what, d.first = "the commands", 1
		base := spec.Base
		if base == "" {
			base = "base"
		}
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
	if d.stages, d.globals, err = instructions.Parse(result.AST, nil); err != nil {
		return nil, d.syntax(err)
	}
	d.lex = shell.NewLex(result.EscapeToken)
	return d, d.checkStages()
}

// check rejects texts that are not a Dockerfile before they are parsed.
func (d *document) check(text string) error {
	if len(text) > maxText {
		err := errors.Newf(errors.Invalid, "%s has %d bytes, which is more than the %d that it may have", d.what,
			len(text), maxText)
		return errors.Remedy(err, "put files into the build context and COPY them")
	}
	if i := strings.IndexByte(text, 0); i >= 0 {
		return errors.Remedy(d.errorf(lineAt(text, i), "there is a NUL byte"),
			"give the Dockerfile as text, not a program or an archive")
	}
	if !utf8.ValidString(text) {
		i := strings.IndexRune(text, utf8.RuneError)
		return errors.Remedy(d.errorf(lineAt(text, max(i, 0)), "there are bytes that are no UTF-8"),
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
	}
	if len(d.stages) > maxStages || steps > maxSteps {
		return errors.Newf(errors.Invalid, "%s has %d stages with %d instructions; it may have %d with %d", d.what,
			len(d.stages), steps, maxStages, maxSteps)
	}
	return nil
}

// syntax explains an error of the parser.
func (d *document) syntax(err error) error {
	line := 0
	var located *parser.LocationError
	if errors.As(err, &located) && len(located.Locations) > 0 {
		line = lineOf(located.Locations[len(located.Locations)-1])
	}
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
	return errors.Remedy(d.errorf(line, "%s", clip(text)), "%s", remedy)
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
		where = d.where(line)
	}
	if errors.KindOf(err) == errors.Internal {
		return errors.Wrapf(err, "%s", where)
	}
	return errors.Explainf(err, errors.KindOf(err), "%s: %s", where, errors.Message(err))
}

func (d *document) where(line int) string {
	if d.first > 0 {
		return fmt.Sprintf("line %d of the commands", line-d.first)
	}
	return fmt.Sprintf("line %d of the Dockerfile", line)
}

func lineOf(ranges []parser.Range) int {
	if len(ranges) == 0 {
		return 0
	}
	return ranges[0].Start.Line
}
